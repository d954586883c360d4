"""``[sizes]`` and ``[evidence]`` in an experiment."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hanse.core.declared import Digest
from hanse.runs.sections import Section


class SizesSection(Section):
    """``[sizes]``: whether members prove how many samples they have (:mod:`hanse.wings.evidence.proved_sizes`).

    Attributes:
        proved: whether members must commit to their distinct samples before they train, and are audited. Until a member
            has proved its size, it counts as having no samples. Otherwise sizes are the members' claims.
        leaves: how many samples an audit opens. A claim of x times the samples passes with probability at most
            x^-leaves.
        bond: how many tokens of a member's grant are held in escrow until it passes. If it fails, it loses them.
        repeats: how often an unanswered audit is repeated, once per round, before it counts as failed. On a network at
            least once, since an auditor signs between two questions.
        auditors: public keys (Ed25519, 64 hexadecimal digits) of the auditors that the members name. A network needs at
            least one auditor, a simulation none.
    """

    proved: bool = False
    leaves: Annotated[int, Field(ge=1, le=10_000)] = 30
    bond: Annotated[float, Field(ge=1e-6, le=1e12)] = 10.0
    repeats: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    auditors: list[Digest] = Field([])


class EvidenceSection(Section):
    """``[evidence]``: what members prove beside their sizes, and who judges.

    Attributes:
        training: whether members prove that they trained on the samples that they committed to, ``{}`` or a table of
            options (:class:`hanse.wings.evidence.training.ProofOfTraining`). It needs ``sizes.proved = true``. The
            update of a member that does not pass is worth 0 at most, and its model is not for sale.
        judges: whether each round is judged by validation samples of its own, ``{}`` or ``{ share = 0.5 }``
            (:mod:`hanse.wings.evidence.judges`); in a simulation, by none that a client trains on. Otherwise all
            validation samples judge every round.
    """

    training: dict[str, Any] | None = None
    judges: dict[str, Any] | None = None
