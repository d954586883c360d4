"""What a statement says below its headline: the model, the contribution, what to do next (:func:`in_short`)."""

from __future__ import annotations

from collections.abc import Sequence

from hanse.learning.metrics import ACCURACY, LOSS
from hanse.reports.contributions import DOUBTFUL
from hanse.reports.digits import points, rounded
from hanse.reports.statement_contributed import Contributed
from hanse.reports.statement_fit import Fit
from hanse.reports.statement_verdict import Answer

_FEW = 400  # test samples: with fewer, five points of accuracy may be chance


def in_short(
    answer: Answer,
    fit: Fit,
    given: Contributed,
    *,
    doubts: Sequence[str] = (),
    finished: bool = True,
    privacy: str = "",
    alone: str = "",
) -> dict[str, str]:
    """Return up to four short answers by what they are about; without privacy, at most 60 words with the headline.

    Args:
        answer: the verdict.
        fit: how good the client's model is.
        given: what its updates were worth.
        doubts: what must stand before any result.
        finished: whether the run is.
        privacy: what the client has spent of its privacy budget; "": it has none.
        alone: the Python that plays the run of single clients, or who else can; "": the command line does.

    Example:
        >>> fit = Fit((9,), (0.9,), (0.4,), 400, alone="alone", alone_accuracy=0.8, alone_loss=0.6)
        >>> given = Contributed(rounds=(), value=0.7, drawn=0.17, place=1, ranked=8, tied=(2, 3), valued=8)
        >>> for about, told in in_short("yes", fit, given).items():
        ...     print(f"{about}: {told}")
        Its model: accuracy on its own test data 90 %, alone 80 %. Difference +10 points (95 % interval +5 to +15).
        Its contribution: worth 0.7 (95 % interval 0.4 to 1.0); number 1 of 8, perhaps 1 to 3.
        What next: stay in.
    """
    gave = _gave(given)
    if doubts and given.value is not None:
        gave = f"{DOUBTFUL[0].lower()}{DOUBTFUL[1:]}: {gave}"
    found = {"Its model": _model(fit), "Its contribution": gave, "Its privacy": privacy}
    found["What next"] = _next(answer, fit, given, doubts, finished, alone)
    return {about: told for about, told in found.items() if told}


def _model(fit: Fit) -> str:
    """Return how good the model is, compared with the one alone, and how sure the difference is."""
    interval = None
    if fit.main is not None:
        reading, ours, alone = fit.main.reading, fit.main.last, fit.main.alone
        interval = fit.main.difference_interval
    elif fit.last is not None:
        reading, ours, alone, interval = ACCURACY, fit.last, fit.alone_accuracy, fit.difference_interval
    else:
        reading, ours, alone = LOSS, fit.last_loss, fit.alone_loss
    if ours is None:
        return ""
    factor, unit = reading.factor, " %" if reading.percent else ""
    half = None if interval is None else factor * (interval[1] - interval[0]) / 2
    less = " (less is better)" if reading.less_is_better else ""
    told = f"{reading.title} on its own test data{less} {rounded(factor * ours, half, most=2 + (not unit))}{unit}"
    if alone is None:
        return f"{told}; alone is not known."
    told += f", alone {rounded(factor * alone, half, most=2 + (not unit))}{unit}."
    if interval is None or not half:
        return told
    low, high = (rounded(factor * end, half, sign=True) for end in interval)
    more = rounded(factor * (ours - alone), half, sign=True)
    return f"{told} Difference {more}{unit and points(more)} (95 % interval {low} to {high})."


def _gave(given: Contributed) -> str:
    """Return what its updates were worth, and its place with the places from which it cannot be told apart."""
    if given.value is None:
        return "none of its updates was valued." if given.valued else ""
    part = given.share if given.share is not None and given.share > 0 else None
    interval, factor = (given.interval, 1.0) if part is None else (given.share_interval, 100.0)
    half = None if interval is None else factor * (interval[1] - interval[0]) / 2
    told = f"worth {rounded(given.value, half)}"
    if part is not None:
        told = f"{rounded(100 * part, half, most=2)} % of what all gave"
    if given.exact:
        told += ", exactly on the validation samples"
    if interval is not None and half:
        told += f" (95 % interval {' to '.join(rounded(factor * end, half) for end in interval)})"
    if given.harmful:
        return f"its updates did harm: {told}."
    if given.updates == 1:
        return f"{told}, by one update, which says little."
    if given.place is None:
        return f"{told}."
    place = f"number {given.place} of {given.ranked}"
    places = sorted({given.place, *(given.tied or ())})
    return f"{told}; {place}{f', perhaps {places[0]} to {places[-1]}' if len(places) > 1 else ''}."


def _next(answer: Answer, fit: Fit, given: Contributed, doubts: Sequence[str], finished: bool, alone: str) -> str:
    """Return the one thing that would tell or help this client most."""
    if not finished:
        return "wait for the end of the run; this is how things stand now."
    if doubts:
        return "mind the warning above before using any number."
    if given.harmful:
        return "check its data and labels, since its updates made the model worse."
    if given.gaps and not given.valued:
        return "ask why no round has values; the whole statement gives the reason."
    if answer == "unknown":
        if fit.last is None and fit.last_loss is None:
            return "ask for a run that tests clients on data of their own."
        return f"compare with training alone ({alone or '--train-alone'})."
    between = fit.difference_interval
    if answer == "no" and between is not None and between[1] < 0:
        return "ask for a personal mechanism, such as ditto, or train alone."
    if answer == "mixed":
        return "decide what a point of accuracy is worth in tokens."
    if answer == "even" and fit.samples is not None and fit.samples < _FEW:
        return f"test on more samples; {fit.samples} are few."
    return "stay in." if answer == "yes" else "decide by what taking part costs."
