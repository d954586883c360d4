"""Evidence: members that prove how many samples they have and that they train on them; a run's record for other tools.

``sections.py`` has the keys of ``[sizes]`` and ``[evidence]``. ``judges.py`` draws the samples that judge a round.
``training.py`` holds updates against the samples that were committed to. ``proved_sizes.py`` asks for commitments and
audits, and moves the bonds. ``audits.py`` is a member's side, and ``size_command.py`` an auditor's. ``replay_bonds.py``
checks the bonds in a book. ``forbids.py`` says what does not go with proofs. ``crate.py`` writes a run's RO-Crate.
"""

from hanse.base.wings import Command, Wing

WING = Wing(
    "evidence",
    commands=(
        Command("audit size", "hanse.wings.evidence.size_command:size", ""),
        Command("crate", "hanse.wings.evidence.crate:crate", "Look at runs"),
    ),
    names={
        "settings": {
            "sizes": "hanse.wings.evidence.sections:SizesSection",
            "evidence": "hanse.wings.evidence.sections:EvidenceSection",
        },
        "guards": {
            "evidence.judges": "hanse.wings.evidence.judges:JudgesGuard",
            "sizes.proved": "hanse.wings.evidence.proved_sizes:SizesGuard",
            "evidence.training": "hanse.wings.evidence.training:TrainingGuard",
        },
        "forbids": {"evidence": "hanse.wings.evidence.forbids:FORBIDS"},
        "answers": {
            "CommitSize": "hanse.wings.evidence.audits:commits",
            "AuditSize": "hanse.wings.evidence.audits:opens",
            "training seal": "hanse.wings.evidence.training:seals",
            "training number": "hanse.wings.evidence.training:numbers",
            "training gains": "hanse.wings.evidence.training:tells_gains",
        },
        "replays": {"sizes": "hanse.wings.evidence.replay_bonds:Bonds"},
        "checks": {"evidence.training": "hanse.wings.evidence.training:checks"},
    },
)
