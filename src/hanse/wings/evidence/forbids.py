"""What ``[sizes] proved`` does not go with, in the form of :data:`hanse.mechanisms.fits.FORBIDS`."""

from __future__ import annotations

from collections.abc import Mapping

from hanse.mechanisms.fits import LOCAL

FORBIDS: Mapping[str, Mapping[str, str]] = {
    "sizes.auditors/none": {"network": f"an auditor must inspect the samples: give a public key{LOCAL}"},
    "run.recomputable": {"sizes.proved": "audits of sizes cannot be replayed; leave it out"},
}
