"""What proofs of sizes and of training do not go with, in the form of :data:`hanse.mechanisms.fits.FORBIDS`."""

from __future__ import annotations

from collections.abc import Mapping

from hanse.mechanisms.fits import LOCAL

FORBIDS: Mapping[str, Mapping[str, str]] = {
    "sizes.auditors/none": {"network": f"an auditor must inspect the samples: give a public key{LOCAL}"},
    "run.recomputable": {
        "sizes.proved": "audits of sizes cannot be replayed; leave it out",
        "evidence.judges": "an auditor cannot draw them without what clients train on; leave it out",
    },
    "evidence.training": {
        "federation.secure": "the server must see each update; leave it out",
        "federation.private": "noise hides what a client trained on; leave it out",
        "federation.late": "updates are held against samples of their own round; leave it out",
        "federation.enough": "updates are held against samples of their own round; leave it out",
    },
}
