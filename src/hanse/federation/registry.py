"""All behaviours by their names in ``[behaviour.NAME]`` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping

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
from hanse.federation.deviant import Deviant

BEHAVIOURS: Mapping[str, type[Behaviour]] = {
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
    "deviant": Deviant,
}
