"""What proofs of sizes and of training do not go with, in the form of :data:`hanse.mechanisms.fits.FORBIDS`."""

from __future__ import annotations

from collections.abc import Mapping

from hanse.mechanisms.fits import LOCAL, WORDS

UNPROVED = "has no effect without sizes.proved = true"
FORBIDS: Mapping[str, Mapping[str, str]] = {
    "sizes.auditors/none": {"network": f"an auditor must inspect the samples: give a public key{LOCAL}"},
    "sizes.repeats/none": {"network": "an auditor cannot sign before the only question: must be at least 1"},
    "run.recomputable": {
        "sizes.proved": "audits of sizes cannot be replayed; leave it out",
        "evidence.judges": "an auditor cannot draw them without what clients train on; leave it out",
    },
    **{f"sizes.{key}": {"no sizes.proved": UNPROVED} for key in ("leaves", "bond", "repeats", "auditors")},
    "evidence.judges": {"no validation": f"needs {WORDS['validation']}"},
    "evidence.training": {
        "no validation": f"needs {WORDS['validation']}",
        "federation.secure": "the server must see each update; leave it out",
        "federation.private": "noise hides what a client trained on; leave it out",
        "federation.late": "updates are held against samples of their own round; leave it out",
        "federation.enough": "updates are held against samples of their own round; leave it out",
    },
}
