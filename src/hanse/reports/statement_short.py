"""What a statement says below its headline: the model, the contribution, what to do next (:func:`in_short`)."""

from __future__ import annotations

from collections.abc import Sequence

from hanse.learning.metrics import ACCURACY, LOSS
from hanse.reports.contributions import DOUBTFUL, HELPFUL
from hanse.reports.digits import agreeing, ends, points, rounded
from hanse.reports.statement_contributed import Contributed
from hanse.reports.statement_fit import ModelQuality
from hanse.reports.statement_verdict import sign_of

_FEW = 400  # test samples: with fewer, five points of accuracy may be chance
_VERY_FEW = 30  # test samples: with fewer, a difference in one run is no ground for a decision


def in_short(
    fit: ModelQuality,
    given: Contributed,
    *,
    net: int = 0,
    doubts: Sequence[str] = (),
    finished: bool = True,
    privacy: str = "",
    alone: str = "",
) -> dict[str, str]:
    """Return up to four short answers, by what they are about.

    Without privacy, they and the headline have at most 60 words.

    Args:
        fit: how good the client's model is.
        given: what its updates were worth.
        net: the millionths of a token that the client received, less those that it paid.
        doubts: what a reader must know before any result.
        finished: whether the run is.
        privacy: what the client has spent of its privacy budget; "" if it has none.
        alone: the Python that plays the run of clients that train alone, or who else can play it; "" if the command
            line can.

    Example:
        >>> fit = ModelQuality((9,), (0.9,), (0.4,), 400, alone="alone", alone_accuracy=0.8, alone_loss=0.6)
        >>> given = Contributed(rounds=(), value=0.7, drawn=0.17, place=1, ranked=8, tied=(2, 3), valued=8)
        >>> for about, told in in_short(fit, given).items():
        ...     print(f"{about}: {told}")
        Its model: accuracy on its own test data 90 %, alone 80 %: +10 points (95 % interval +5 to +15).
        Its contribution: worth 0.7 (95 % interval 0.4 to 1.0); number 1 of 8, perhaps 1 to 3.
        What next: stay in.
    """
    gave = _gave(given)
    if doubts and given.value is not None:
        gave = f"{DOUBTFUL[0].lower()}{DOUBTFUL[1:]}: {gave}"
    found = {"Its model": _model(fit), "Its contribution": gave, "Its privacy": privacy}
    found["What next"] = _next(fit, given, net, doubts, finished, alone)
    return {about: told for about, told in found.items() if told}


def _model(fit: ModelQuality) -> str:
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
    told = f"{reading.title} on its own test data{less} "
    if alone is None:
        return f"{told}{rounded(factor * ours, half, most=2 + (not unit))}{unit}; alone is not known."
    if interval is None or not half:
        mine, single = (rounded(factor * value, half, most=2 + (not unit)) for value in (ours, alone))
        return f"{told}{mine}{unit}, alone {single}{unit}."
    mine, single, more = agreeing(factor * ours, factor * alone, half)
    told += f"{mine}{unit}, alone {single}{unit}"
    if fit.main is None and fit.samples and fit.samples < _FEW:
        right = [fit.samples * value for value in (ours, alone)]
        if max(abs(count - round(count)) for count in right) < 1e-6 * fit.samples:
            told = f"{round(right[0])} of {fit.samples} own test cases right, alone {round(right[1])}"
    low, high = ends(factor * interval[0], factor * interval[1], half, sign=True)
    if not float(more):
        return f"{told}: the same (95 % interval {low} to {high}{unit and ' points'})."
    return f"{told}: {more}{unit and points(more)} (95 % interval {low} to {high})."


def _gave(given: Contributed) -> str:
    """Return what its updates were worth, and its place with the places from which it cannot be told apart."""
    if given.value is None:
        return "none of its updates was valued." if given.valued else ""
    part = given.share if given.share is not None and given.share > 0 else None
    interval, factor = (given.interval, 1.0) if part is None else (given.share_interval, 100.0)
    half = None if interval is None else factor * (interval[1] - interval[0]) / 2
    told = f"worth {rounded(given.value, half)}"
    if given.relative and given.value:
        side = "above" if given.value > 0 else "below"
        told = f"on average {side} the middle of those who trained with it"
    if part is not None:
        told = f"{rounded(100 * part, half, most=2)} % of {HELPFUL}"
    if given.exact:
        told += ", exactly on the validation samples"
    if interval is not None and half:
        told += f" (95 % interval {' to '.join(ends(factor * interval[0], factor * interval[1], half))})"
    if given.harmful:
        return f"its updates did harm: {told}."
    if given.updates == 1:
        return f"{told}, by one update, which says little."
    if given.place is None:
        return f"{told}."
    place = f"number {given.place} of {given.ranked}"
    places = sorted({given.place, *(given.tied or ())})
    return f"{told}; {place}{f', perhaps {places[0]} to {places[-1]}' if len(places) > 1 else ''}."


def _next(fit: ModelQuality, given: Contributed, net: int, doubts: Sequence[str], finished: bool, alone: str) -> str:
    """Return the one thing that would tell or help this client most."""
    if not finished:
        return "wait for the end of the run; this is how things stand now."
    if doubts:
        return "mind the warning above before using any number."
    if given.harmful:
        return "with the operator, check what it sent, then its data and labels."
    if given.gaps and not given.valued:
        return "ask why no round has values; the whole statement gives the reason."
    model = sign_of(fit)
    if model is None:
        if fit.last is None and fit.last_loss is None:
            return "ask for a run that tests clients on data of their own."
        return f"compare with training alone ({alone or '--train-alone'})."
    if model and fit.samples is not None and fit.samples < _VERY_FEW:
        return f"see whether it holds with other test rows before deciding; {fit.samples} are few."
    if model * net < 0:
        return "decide what a better model is worth to it in tokens."
    if model == 0 and fit.samples is not None and fit.samples < _FEW:
        return f"compare on more test samples than the {fit.samples} there are."
    if model < 0:
        return "ask for a personal mechanism (ditto), or train alone."
    return "stay in." if model == 1 else "decide by what taking part costs."
