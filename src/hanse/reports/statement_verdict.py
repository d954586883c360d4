"""Whether joining paid, said no more surely than the numbers allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hanse.core.entry import TOKEN
from hanse.ledger.export import tokens
from hanse.reports.statement_accuracy import Fit
from hanse.reports.statement_models import Models
from hanse.reports.statement_money import Money

__all__ = ["Answer", "Verdict", "verdict_of"]

Answer = Literal["yes", "no", "mixed", "even", "unknown"]
SURE = 2.0  # standard errors from which a difference of accuracies counts


@dataclass(frozen=True)
class Verdict:
    """The ``answer``, its ``headline`` and the reasons, a sentence each.

    Judged are the model against the one alone, and the tokens (a market's utility). "yes": at least one gained and
    none lost; "no": the other way round; "mixed": one gained and one lost; "even": nothing that the numbers can tell;
    "unknown": there is nothing to compare. Where the tokens alone decide, the
    headline says so.
    """

    answer: Answer
    headline: str
    reasons: tuple[str, ...]


_TOKENS_ONLY: dict[Answer, str] = {
    "yes": "In tokens joining paid; whether its model is better is not known",
    "no": "In tokens joining did not pay; whether its model is better is not known",
    "even": "In tokens joining made no difference; whether its model is better is not known",
}
_MODEL_EVEN: dict[Answer, str] = {
    "yes": "In tokens joining paid; its model is not clearly better or worse",
    "no": "In tokens joining did not pay; its model is not clearly better or worse",
}
_HEADLINES: dict[Answer, str] = {
    "yes": "Yes, joining paid",
    "no": "No, joining did not pay",
    "mixed": "It depends on what a token is worth to you",
    "even": "Joining made no difference that can be told",
    "unknown": "Whether joining paid is not known",
}


def verdict_of(fit: Fit, money: Money | None, models: Models) -> Verdict:
    """Return the answer from the model's accuracy against the one alone, and from what was traded or paid."""
    signs: list[int] = []
    reasons: list[str] = []
    judged = (_model(fit), _economy(money, models))
    for sign, reason in judged:
        if sign is not None:
            signs.append(sign)
        if reason:
            reasons.append(reason)
    if 1 in signs and -1 in signs:
        answer: Answer = "mixed"
        reasons += [line for line in (_rate(fit, money, models),) if line]
    elif 1 in signs:
        answer = "yes"
    elif -1 in signs:
        answer = "no"
    else:
        answer = "even" if signs else "unknown"
    model = judged[0][0]
    headlines = _HEADLINES | (_TOKENS_ONLY if model is None else _MODEL_EVEN if model == 0 else {})
    return Verdict(answer, headlines[answer], tuple(reasons))


def _model(fit: Fit) -> tuple[int | None, str]:
    """Return 1, 0 or -1 for a better, equal or worse model than alone (None: not known), and the sentence."""
    if fit.last is None and fit.last_loss is None:
        return None, f"How good its model is, is not known: {fit.how}."
    ours, alone = fit.last, fit.alone_accuracy
    if ours is None or alone is None:
        return _loss(fit)
    points = 100 * (ours - alone)
    told = f"Its model gets {100 * ours:.1f} % of its own test data right; alone it would reach {100 * alone:.1f} %"
    error = fit.error
    if error is None:
        return (points > 0) - (points < 0), f"{told}. On how many samples is not recorded: it may be chance."
    if abs(points) <= SURE * 100 * error or points == 0:
        return 0, f"{told}. On {fit.samples} samples a difference of {points:+.1f} points may be chance."
    return (1 if points > 0 else -1), f"{told}: {points:+.1f} points, standard error at most {100 * error:.1f}."


def _loss(fit: Fit) -> tuple[int | None, str]:
    if fit.last is not None and fit.alone is None:
        return None, f"Its model gets {100 * fit.last:.1f} % of its own test data right; what alone is not known."
    ours, alone = fit.last_loss, fit.alone_loss
    if ours is None or alone is None:
        return None, f"Its model's loss on its own test data is {ours:.4g}; what alone is not known." if ours else ""
    told = f"Its model's loss on its own test data is {ours:.4g}; alone it would be {alone:.4g} (less is better)."
    if fit.loss_error is None:
        return 0, f"{told} How much of that is chance is not known, so that it decides nothing."
    if abs(ours - alone) <= SURE * fit.loss_error:
        return 0, f"{told} A difference of {ours - alone:+.2g} may be chance (standard error {fit.loss_error:.2g})."
    return (1 if ours < alone else -1), f"{told} The difference has a standard error of at most {fit.loss_error:.2g}."


def _economy(money: Money | None, models: Models) -> tuple[int | None, str]:
    """Return the same for the market or the tokens; a market's utility has its payments in it already."""
    if models.utility is not None:
        u = models.utility
        told = f"By its own measure the market was worth {u:+.2f} tokens to it: gain, less the cost of sharing"
        told += " and the net payments." if money is not None else "."
        return (u > 0) - (u < 0), told
    if money is None:
        return None, "Nobody pays in this run."
    told = f"It received {tokens(money.received)} tokens and paid {tokens(money.paid)}, the grant aside"
    if money.escrow:
        told += f"; {tokens(money.escrow)} are held in escrow"
    net = money.net
    return (net > 0) - (net < 0), f"{told}: {'+' if net >= 0 else ''}{tokens(net)}."


def _rate(fit: Fit, money: Money | None, models: Models) -> str:
    """Return what one side cost in terms of the other, where both are numbers of the same kind for everybody."""
    if fit.last is None or fit.alone_accuracy is None or (money is None and models.utility is None):
        return ""
    points = 100 * (fit.last - fit.alone_accuracy)
    worth = models.utility if models.utility is not None else money.net / TOKEN if money is not None else 0.0
    if worth * points >= 0:
        return ""
    per = abs(worth / points)
    return (
        f"It paid {per:.3g} tokens for each point of accuracy."
        if points > 0
        else f"It earned {per:.3g} tokens for each point of accuracy that it gave up."
    )
