"""SELECT: who sits at a round's training."""

from hanse.mechanisms.select.basic import (
    Everyone,
    RoundRobin,
    Seated,
    TheOne,
    Uniform,
    round_robin,
    rounds_to_meet_all,
    who,
)
from hanse.mechanisms.select.by_loss import Oort, PowerOfChoice
from hanse.mechanisms.select.by_value import UCB, Greedy, SFedAvg, greedy
from hanse.mechanisms.select.set_aware import SetAware

__all__ = [
    "UCB",
    "Everyone",
    "Greedy",
    "Oort",
    "PowerOfChoice",
    "RoundRobin",
    "SFedAvg",
    "Seated",
    "SetAware",
    "TheOne",
    "Uniform",
    "greedy",
    "round_robin",
    "rounds_to_meet_all",
    "who",
]
