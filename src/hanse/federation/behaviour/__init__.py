"""What a client does to what it is asked and to what it sends: honest unless one of these wraps it."""

from collections.abc import Mapping

from hanse.federation.behaviour.attackers import Attacker
from hanse.federation.behaviour.basic import Behaviour, DropOut, Me, Noisy, OfSome, Straggler, with_updates
from hanse.federation.behaviour.free_riders import FreeRider
from hanse.federation.behaviour.liars import Liar
from hanse.federation.behaviour.movers import Drift, Joiner, Leaver

__all__ = [
    "BEHAVIOURS",
    "Attacker",
    "Behaviour",
    "Drift",
    "DropOut",
    "FreeRider",
    "Joiner",
    "Leaver",
    "Liar",
    "Me",
    "Noisy",
    "OfSome",
    "Straggler",
    "with_updates",
]

BEHAVIOURS: Mapping[str, type[Behaviour]] = {
    "straggler": Straggler,
    "noisy": Noisy,
    "dropout": DropOut,
    "free_rider": FreeRider,
    "attacker": Attacker,
    "liar": Liar,
    "joiner": Joiner,
    "leaver": Leaver,
    "drift": Drift,
}
