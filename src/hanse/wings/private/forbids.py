"""What ``[federation] private`` and ``secure`` do not go with, in the form of :data:`hanse.mechanisms.fits.FORBIDS`."""

from __future__ import annotations

from collections.abc import Mapping

from hanse.mechanisms.fits import EARLIER

FORBIDS: Mapping[str, Mapping[str, str]] = {
    "federation.refuse": {"federation.secure": "it looks at single updates"},
    "federation.enough": {"federation.secure": "a group is summed once all have answered"},
    "federation.half_precision": {"federation.secure": "members sign the model that was sent; leave it out"},
    "federation.late": {"federation.secure": "a late update has no group to be summed with"},
    "federation.secure": {"single": "allowed: {accepting}"},
    "federation.secure/regroup/False": {"secure": "in groups that change; leave regroup out"},
    "federation.private": {
        **dict.fromkeys(
            ("scores", "answers", "labels", "samples", "bills"), "made of samples, and no update that could be noised"
        ),
        "buffers": "the model has batch norm or other buffers, which are made of samples and would leave a client "
        "without noise; take group norm or layer norm",
        "behaviour.noisy": "updates have their noise already; leave it out",
        "sizes.proved": "commitments and audits are made of samples; must be false",
        "train.loss/weights/balanced": "they are counts of clients' samples; give numbers",
        **dict.fromkeys(EARLIER, "what a client did before would show; leave it out"),
    },
    "federation.private/by client": {"frozen": "frozen parameters would get noise; must be model.send = 'trainable'"},
    "federation.private/quantile": {"federation.secure": "what a client says of the clip is in no sum; leave it out"},
    "federation.private/unit/sample": {
        **dict.fromkeys(("penalty", "batch_loss"), "that is no sample's gradient, as DP-SGD takes it"),
        "train.loop": "training is DP-SGD; leave it out",
        "train.optimizer": "DP-SGD steps as SGD; must be 'sgd'",
        "data.augment": "one sample would count several times; leave it out",
    },
    "moving samples": {"federation.private/unit/sample": "each step draws a share of the first samples"},
    "sizes.proved": {"federation.secure": "its sums are weighted by claimed sizes"},
    "run.recomputable": {"federation.secure": "secure sums hide single updates; leave it out"},
    **{key: {"federation.secure": "it depends on each client's last training"} for key in EARLIER},
}
