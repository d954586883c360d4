"""Facts of clients that gained by joining."""

from hanse.learning.metrics import ACCURACY
from hanse.reports.facts import ClientFacts, answer_of


def gained(
    name: str, gain: float, low: float | None, high: float | None, joined: float = 0.5, alone: float = 0.5
) -> ClientFacts:
    """Return the facts of a client with a gain in accuracy and the ends of its interval."""
    return ClientFacts(
        run="", client=0, name=name, unit="row", joined=joined, alone=alone, gain=gain, gain_low=low, gain_high=high,
        paid_to_join=answer_of(ACCURACY, gain, low, high),
    )  # fmt: skip
