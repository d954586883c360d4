"""All behaviours by their names in ``[behaviour.NAME]`` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping

from hanse.base.wings import Names
from hanse.federation.behaviour import (
    Attacker,
    Behaviour,
    Drift,
    DropOut,
    FreeRider,
    Joiner,
    Leaver,
    Liar,
    Noisy,
    Speed,
    Straggler,
)

BEHAVIOURS: Mapping[str, type[Behaviour]] = Names(
    {
        "straggler": Straggler,
        "noisy": Noisy,
        "dropout": DropOut,
        "speed": Speed,
        "free_rider": FreeRider,
        "attacker": Attacker,
        "liar": Liar,
        "joiner": Joiner,
        "leaver": Leaver,
        "drift": Drift,
    },
    "behaviours",
)
