"""Whether joining paid, said no more surely than the numbers allow (:func:`verdict_of`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hanse.core.entry import TOKEN, tokens
from hanse.games.jackknife import SURE
from hanse.learning.metrics import ACCURACY
from hanse.reports.digits import between, ends, rounded
from hanse.reports.statement_fit import MainFit, ModelQuality
from hanse.reports.statement_models import Models
from hanse.reports.statement_money import Money

Answer = Literal["yes", "no", "even", "unknown"]
"""What the statement says of joining; :class:`JoiningVerdict` explains each."""

_UNSURE = "How much of the difference is chance is not known, so that it does not count."


@dataclass(frozen=True)
class JoiningVerdict:
    """Whether joining paid.

    The model decides: the client's against the one that it trains alone. Tokens have no interval, and a market's
    formula measures nothing, so the headline names them beside the answer.

    Attributes:
        answer: "yes" if the model is better, "no" if it is worse, "even" if the numbers show no difference, "unknown"
            if there is nothing to compare.
        headline: the answer in a sentence, then what came in or went out in tokens.
        reasons: a sentence on the model and one on the tokens. If the two disagree, a third says what one cost in terms
            of the other.
    """

    answer: Answer
    headline: str
    reasons: tuple[str, ...]


_FORMULA = {1: "it gained", -1: "it lost", 0: "it neither gained nor lost"}


def verdict_of(fit: ModelQuality, money: Money | None, models: Models) -> JoiningVerdict:
    """Return whether joining paid: the model decides, and the tokens are given beside it.

    Args:
        fit: the client's model compared with the one alone.
        money: the client's books. None: nobody pays.
        models: what the client got in a market, if there is one.

    Example:
        >>> models = Models(asked=10, answered=10, used=10, reached=3, deliveries=30)
        >>> for samples in (400, 30):  # 90 % against 80 %, by how many test samples
        ...     fit = ModelQuality((9,), (0.9,), (0.4,), samples, alone="alone", alone_accuracy=0.8, alone_loss=0.6)
        ...     print(verdict_of(fit, None, models).headline)
        Yes, joining paid (on its 400 test samples, in this run)
        Not known whether joining paid: the difference may be chance
    """
    model, of_model = _model(fit)
    reasons = [of_model, _economy(money, models), _rate(fit, money, models) if model else ""]
    beside = [] if money is None else [f"in tokens: {'+' if money.net > 0 else ''}{about(money.net)}"]
    if models.utility is not None:
        beside.append(f"by the market's formula {_FORMULA[(models.utility > 0) - (models.utility < 0)]}")
    return JoiningVerdict(answer_of(model), "; ".join([_headline(fit, model), *beside]), tuple(filter(None, reasons)))


def answer_of(model: int | None) -> Answer:
    """Return whether joining paid.

    Args:
        model: 1 if the client's model is better than the one trained alone, -1 if it is worse, 0 if that cannot be
            told. None: there is nothing to compare.

    Example:
        >>> answer_of(0), answer_of(-1), answer_of(None)
        ('even', 'no', 'unknown')
    """
    return "unknown" if model is None else "yes" if model > 0 else "no" if model < 0 else "even"


def about(units: int) -> str:
    """Return tokens with two digits after the point, or with two significant digits if below a tenth.

    (The books have all digits.)
    """
    if abs(units) >= TOKEN // 10:
        return tokens(round(units, -4))
    return tokens(int(float(f"{units:.2g}")))


def sign_of(fit: ModelQuality) -> int | None:
    """Return how the client's model compares with the one trained alone.

    It is 1 if the client's model is better, -1 if it is worse, 0 if that cannot be told, and None if there is nothing
    to compare.
    """
    return _model(fit)[0]


def _headline(fit: ModelQuality, model: int | None) -> str:
    """Return the answer in a sentence, which says what it was seen on: the test rows of one split, with one seed."""
    if not model:
        unknown = "Whether joining paid is not known"
        return unknown if model is None else "Not known whether joining paid: the difference may be chance"
    said = "Yes, joining paid" if model > 0 else "No, joining did not pay"
    return f"{said} (on its {fit.samples or 'own'} test samples, in this run)"


def _model(fit: ModelQuality) -> tuple[int | None, str]:
    """Return how the model compares with the one alone, and the sentence that says so.

    The first is 1 for a better model, -1 for a worse one, 0 if it cannot be told, and None if there is nothing to
    compare.
    """
    if fit.last is None and fit.last_loss is None:
        return None, f"How good its model is, is not known: {fit.how}."
    if fit.main is not None:
        return _by_main(fit.main)
    ours, alone = fit.last, fit.alone_accuracy
    if ours is None or alone is None:
        return _loss(fit)
    points = 100 * (ours - alone)
    told = f"Its model gets {100 * ours:.1f} % of its own test data right; alone it would reach {100 * alone:.1f} %"
    between = fit.difference_interval
    if between is None:
        unsure = "The number of test samples is not recorded, so that the difference may be chance."
        return 0, f"{told}. {unsure}"
    if points == 0:
        return 0, f"{told}, so the two are the same."
    low, high = (100 * end for end in between)
    said = f"95 % interval {' to '.join(ends(low, high, 0.1, sign=True))}"
    if low <= 0 <= high:
        return 0, f"{told}. On {fit.samples} samples a difference of {points:+.1f} points may be chance ({said})."
    return (1 if points > 0 else -1), f"{told}: a difference of {points:+.1f} points ({said})."


def _by_main(main: MainFit) -> tuple[int | None, str]:
    """Return the same as :func:`_model`, judged by the run's main metric.

    Both models are tested on the same samples, so the error is that of the difference itself and not an upper bound.
    """
    reading, last = main.reading, main.last
    if last is None:
        return None, f"Its model's {reading.title} on its own test data is not known: {main.gap}."
    sure = "" if main.interval is None else f" (95 % interval {' to '.join(map(reading.show, main.interval))})"
    told = f"Its model's {reading.title} on its own test data is {reading.show(last)}{sure}"
    if main.difference is None or main.alone is None:
        return None, f"{told}; what it would be alone is not known{f': {main.alone_gap}' if main.alone_gap else ''}."
    told += f"; alone it would be {reading.show(main.alone)}{' (less is better)' if reading.less_is_better else ''}"
    between = main.difference_interval
    if between is None:
        return 0, f"{told}. {_UNSURE}"
    low, high = map(reading.show_difference, between)
    said = f"95 % interval {low} to {high}"
    if low == high == reading.show_difference(0.0):
        return 0, f"{told}: in these digits the two are the same."
    if not main.sign:
        return 0, f"{told}. A difference of {reading.show_difference(main.difference)} may be chance ({said})."
    return main.sign, f"{told}: a difference of {reading.show_difference(main.difference)} ({said})."


def _loss(fit: ModelQuality) -> tuple[int | None, str]:
    """Return the same as :func:`_model` for a model without an accuracy, as of a regression, judged by its loss."""
    if fit.last is not None and fit.alone is None:
        right = f"Its model gets {100 * fit.last:.1f} % of its own test data right"
        return None, f"{right}; how much it would be alone is not known."
    ours, alone = fit.last_loss, fit.alone_loss
    if ours is None or alone is None:
        told = f"Its model's loss on its own test data is {ours:.4g}; what it would be alone is not known."
        return None, "" if ours is None else told
    told = f"Its model's loss on its own test data is {ours:.4g}; alone it would be {alone:.4g} (less is better)."
    if fit.loss_error is None:
        return 0, f"{told} {_UNSURE}"
    more, half = ours - alone, SURE * fit.loss_error
    said = f"difference of {rounded(more, half, sign=True)}"
    said += f" (95 % interval {between(more, half, sign=True)})" if half else ""
    if abs(more) <= half:
        return 0, f"{told} A {said} may be chance."
    return (1 if ours < alone else -1), f"{told} That is a {said}."


def _economy(money: Money | None, models: Models) -> str:
    """Return a sentence on the tokens, and one on a market's utility, which has its payments in it already."""
    told = ""  # the section on payments says it
    if money is not None:
        told = f"Not counting its grant, it received {about(money.received)} tokens and paid {about(money.paid)}, "
        told += f"which makes {'+' if money.net >= 0 else ''}{about(money.net)}."
        told += f" Of its tokens {about(money.escrow)} are held in escrow." if money.escrow else ""
    if models.utility is None:
        return told
    u = models.utility
    told += (
        f" By the market's formula it {'lost' if u < 0 else 'gained'} {abs(u):.2f}: what others' models should bring "
    )
    told += "it, less the cost of sharing its own" + (" and that net payment" if money is not None else "") + ". The "
    told += "formula takes sample counts and the eagerness set in the file, not measured accuracy; no payment follows."
    return told.lstrip()


def _rate(fit: ModelQuality, money: Money | None, models: Models) -> str:
    """Return a sentence on what a better model cost in tokens, or what was earned for a worse one.

    "" if one of the two is not known, or if both gained or both lost.
    """
    reading = ACCURACY if fit.main is None else fit.main.reading
    ours, alone = (fit.last, fit.alone_accuracy) if fit.main is None else (fit.main.last, fit.main.alone)
    if ours is None or alone is None or money is None or models.utility is not None:
        return ""  # a formula's gain is nothing that was paid
    points = 100 * (ours - alone) * (-1 if reading.less_is_better else 1)
    worth = money.net / TOKEN
    if worth * points >= 0:
        return ""
    per, step = abs(worth / points), "point" if reading.percent else "0.01"
    what = f"{per:.3g} tokens for each {step} of {reading.title}"
    return f"It paid {what}." if points > 0 else f"It earned {what} that it gave up."
