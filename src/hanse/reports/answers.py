"""The top of a report: does joining pay, who contributed, and what to do next; at most 60 words and a picture.

:func:`answers` derives them from the same figures as the rest of the report: verdicts on joining
(``statement_verdict.py``) and sums of values (``contributions.py``). ``hanse run`` prints them at its end, ``hanse
report`` puts them on top of its page.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from markupsafe import escape

from hanse.core.telling import Measure
from hanse.games.jackknife import SURE, t_quantile
from hanse.learning.metrics import MetricStyle
from hanse.reports.accuracy import utilities
from hanse.reports.alone import by_python
from hanse.reports.chart import Bars, Chart, Floats, Series
from hanse.reports.compare import run_row
from hanse.reports.contributions import DOUBTFUL, HELPFUL, TOO_FEW, Contribution, contribution, ends, not_ranked
from hanse.reports.digits import between, points, rounded
from hanse.reports.groups import SeedGroup, group_runs, honest_of
from hanse.reports.money import Books, books_of, granted
from hanse.reports.statement_fit import ModelQuality, fits_at_end
from hanse.reports.statement_verdict import Answer, answer_of, sign_of
from hanse.runs.chance import nothing_left
from hanse.runs.run_record import RunRecord, load_runs

APART = ("local", "centralised")  # mechanisms that nobody joins: they are there to be compared with
_MOST_NAMED = 4  # clients in a sentence
_HIGHEST, _LOWEST = 12, 8  # clients of the picture, where there are more than that
_MOST_GROUPS = 6  # that are drawn apart
_LETTERS = "ABCDEF"
_LIKE = "Clients with similar data get about 0"  # by leave-one-out
_SINGLE, _ASIDE = "one update only", 9  # its name in the picture, and the look of its bars


@dataclass(frozen=True)
class Answers:
    """The answers to a reader's first three questions, a sentence or two each.

    Attributes:
        joining: for how many clients joining paid, by how much, and with what certainty.
        contributed: a sentence on who contributed most, and who did harm.
        next: a sentence on what to do next.
        picture: the contributions as bars with intervals; None where nobody was valued.
        doubts: what a reader must know before these answers, such as that the model is no better than chance.
    """

    joining: str
    contributed: str
    next: str
    picture: Chart | None = field(repr=False)
    doubts: tuple[str, ...] = ()

    @property
    def lines(self) -> dict[str, str]:
        """The three answers, each by its question."""
        return {
            "Does joining pay?": self.joining,
            "Who contributed?": self.contributed,
            "What next?": self.next,
        }

    def _repr_html_(self) -> str:
        """Return the answers and the picture for a notebook."""
        from hanse.reports.vega import to_svg, to_vegalite  # late: the terminal draws nothing

        told = "".join(f"<p><b>Mind:</b> {escape(line)}</p>" for line in self.doubts)
        told += "".join(f"<p><b>{escape(question)}</b> {escape(told)}</p>" for question, told in self.lines.items())
        return told + ("" if self.picture is None else to_svg(to_vegalite(self.picture)))


def answers_of(*folders: str | Path) -> Answers:
    """Return the answers for some runs. A notebook shows them with the picture.

    Args:
        folders: their run directories, at least one.

    Raises:
        UserError: a path is not a run directory, or has no finished round.
    """
    groups = group_runs(load_runs(folders))
    return answers(groups, books_of(groups)[0])


def answers(groups: Sequence[SeedGroup], books: Mapping[str, Books] | None = None) -> Answers:
    """Return the answers for these experiments.

    If there are several experiments, the answers are about the best one and name it. The contributions are those of the
    best one that values updates.

    Args:
        groups: the experiments, at least one.
        books: what :func:`hanse.reports.money.books_of` returns, by the experiment's label. None: money is ignored.
    """
    ranked = _best_first(groups)
    group = ranked[0]
    beside = [run for other in groups for run in other.runs if run.mechanism == "local"]
    joined = _joining(group, beside, (books or {}).get(group.label))
    valued = [(one, found) for one in ranked if (found := contribution(one)) is not None]
    given, found = valued[0] if valued else (group, None)
    told = _contributed(found)
    if valued and any(run.doubts for run in given.runs):
        told = f"{DOUBTFUL}: {told}"
    if len(ranked) > 1 and valued:
        told = f"In {given.label}{given.seeds_text}: {told}"
    picture = None if found is None else picture_of(given, found)
    named = f"With {group.label}, {joined.told[0].lower()}{joined.told[1:]}" if len(ranked) > 1 else joined.told
    return Answers(named, told, _next(group, joined, found), picture, tuple(doubts_of(groups)))


def doubts_of(groups: Sequence[SeedGroup]) -> list[str]:
    """Return the doubts about each experiment: those of its first doubtful seed, and how many more there are."""
    told = []
    for group in groups:
        doubtful = [run for run in group.runs if run.doubts]
        for line in doubtful[0].doubts if doubtful else []:
            named = group.label if len(group.runs) > 1 or len(groups) > 1 else ""
            more = len(doubtful) - 1
            seeds = f" (seed {doubtful[0].seeds[0]}; {more} other{'s' * (more > 1)} alike)" if more else ""
            told.append(f"{named}{seeds}: {line}" if named else line)
    return told


def _best_first(groups: Sequence[SeedGroup]) -> list[SeedGroup]:
    """Return the experiments that clients join, the best by the main metric first; all of them if none is joined."""
    joined = [group for group in groups if group.runs[0].mechanism not in APART] or list(groups)
    reading = joined[0].runs[0].main
    for figure in (f"client_{reading.key}", f"test_{reading.key}", "test_loss"):
        means = [mean for group in joined if (mean := _mean(group.runs, figure)) is not None]
        if len(means) == len(joined):
            sign = 1 if reading.less_is_better or figure == "test_loss" else -1
            order = sorted(range(len(joined)), key=lambda i: sign * means[i])
            return [joined[i] for i in order]
    return joined


def _mean(runs: Sequence[RunRecord], figure: str) -> float | None:
    """Return the mean of a figure of :func:`run_row` over runs; None if none has it."""
    known = [v for run in runs if (v := run_row(run).get(figure)) is not None]
    return float(np.mean(known)) if known else None


# ---- does joining pay


@dataclass(frozen=True)
class _Joining:
    """Whether joining paid: the sentence, whether more clients lost than won, and what is missing to tell."""

    told: str
    mostly_lost: bool = False
    alone_missing: bool = False
    untested: bool = False
    money: bool = False


def _joining(group: SeedGroup, beside: Sequence[RunRecord], books: Books | None) -> _Joining:
    """Return whether joining paid in an experiment, counted over its clients (and seeds).

    Args:
        group: the experiment.
        beside: available runs of clients alone, of any experiment.
        books: the books of its first run, if somebody pays.
    """
    first = group.runs[0]
    if first.mechanism in APART:
        return _Joining("Nobody joins here: " + ("every client trains alone." if first.mechanism == "local" else
                        "all data are in one place."))  # fmt: skip
    fits = [_honest_fits(run, _alone_of(run, beside)) for run in group.runs]
    economy = _economy(first, books)
    by_seed = [[answer_of(sign_of(fit)) for fit in one.values()] for one in fits]
    counts = [answer for answers in by_seed for answer in answers]
    missing = all(count == "unknown" for count in counts)
    told = []
    if not missing:
        seeds = sum(any(answer != "unknown" for answer in answers) for answers in by_seed)
        honest = honest_of(first)
        left_out = 0 if honest is None else first.num_clients - len(honest)
        told.append(_counted(counts, seeds, len(fits), "honest " if left_out else "", left_out))
    differences = [_differences(list(one.values())) for one in fits]
    if any(len(one) for one in differences):
        told.append(_by_how_much(differences, first.main))
    elif common := _on_common_data(group, beside):
        told.append(common)
    elif not told:
        why = "there is no run of each client alone." if fits[0] else "clients kept no test data of their own."
        told.append(f"Whether joining paid is not known: {why}")
    if economy is not None:
        own = economy[list(fits[0])] if fits[0] else economy
        by = "In tokens" if utilities(first) is None else "By the market's formula (not money)"
        told.append(_beside(own, by if len(group.runs) == 1 else f"{by}, with the first seed,"))
    return _Joining(" ".join(told), counts.count("no") > counts.count("yes"), missing, not fits[0], economy is not None)


def _honest_fits(run: RunRecord, alone: RunRecord | None) -> dict[int, ModelQuality]:
    """Return the fits of the honest clients; attackers test what they send."""
    honest, fits = honest_of(run), fits_at_end(run, alone)
    return fits if honest is None else {client: fit for client, fit in fits.items() if client in set(honest.tolist())}


def _alone_of(run: RunRecord, beside: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run of single clients with the same seeds; any other one if there is none."""
    same = [one for one in beside if one.seeds == run.seeds]
    return next(iter([*same, *beside]), None)


def _economy(run: RunRecord, books: Books | None) -> Floats | None:
    """Return each client's utility in a market, or else the tokens that it received less those paid, ``[N]``."""
    utility = utilities(run)
    if utility is not None or books is None or not len(books.held):
        return utility
    return np.asarray(books.held[-1] - granted(run))


def _beside(worth: Floats, by: str) -> str:
    """Return in a sentence how many clients gained by something that does not decide, such as tokens.

    Args:
        worth: each client's gain ``[n]``; less than half a unit (a millionth of a token) counts as 0.
        by: what they gained by, as the start of the sentence.
    """
    gained = int((np.round(worth, 6) > 0).sum())
    return f"{by} {f'all {gained}' if gained == len(worth) else f'{gained} of {len(worth)}'} clients gained."


def _counted(counts: Sequence[Answer], seeds: int, of: int, kind: str = "", left_out: int = 0) -> str:
    """Return a sentence: for how many clients joining paid, for how many it did not, and for how many that is open.

    Args:
        counts: the answer of each client (and seed).
        seeds: how many seeds the answers that are known come from.
        of: how many seeds there are.
        kind: how the clients are called, such as "honest ".
        left_out: how many others are not counted.
    """
    known = [count for count in counts if count != "unknown"]
    many = Counter[str](known)
    whole = f" of {len(known)} {kind}clients"
    whole += f" of {'' if seeds == of else f'{seeds} of '}{of} seeds" if of > 1 else ""
    whole += f" ({left_out} left out)" if left_out else ""
    if many["even"] == len(known):
        return f"Not known for any{whole}: differences may be chance."
    ways = {"yes": "paid for", "no": "did not pay for"}
    if many["no"] == len(known):
        return f"Joining paid for none{whole}."
    told = [f"{way} {many[answer]}" for answer, way in ways.items() if many[answer]]
    told[0] += whole
    if len(told) == 1 and not many["even"]:
        told[0] = f"{next(way for answer, way in ways.items() if many[answer])} all{whole.removeprefix(' of')}"
    told = [way.replace("did not pay for", "not for") if i else way for i, way in enumerate(told)]
    rest = f"; {many['even']} unclear" if many["even"] else ""
    return f"Joining {_list(told)}{rest}."


def _differences(fits: Sequence[ModelQuality]) -> Floats:
    """Return each client's figure minus that alone, ``[n]``, for clients with both."""
    pairs = [(fit.main.last, fit.main.alone) if fit.main else (fit.last, fit.alone_accuracy) for fit in fits]
    return np.array([ours - alone for ours, alone in pairs if ours is not None and alone is not None], np.float64)


def _by_how_much(differences: Sequence[Floats], reading: MetricStyle) -> str:
    """Return in a sentence the mean difference over clients, with its 95 % interval by Student's t.

    Args:
        differences: ``[n]`` for each seed. With several seeds the interval is of their means, with one it is over its
            clients.
        reading: the metric.
    """
    known = [one for one in differences if len(one)]
    sample = np.array([one.mean() for one in known]) if len(known) > 1 else known[0]
    mean = float(sample.mean()) * reading.factor
    half = math.nan
    if len(sample) > 1:
        error = float(sample.std(ddof=1)) / math.sqrt(len(sample)) * reading.factor
        half = t_quantile(len(sample) - 1) * error
        half = half if half > 1e-9 * abs(mean) else math.nan  # alike for all: what is left is rounding
    told = rounded(mean, half, sign=True)
    unit = points(told) if reading.percent else " (less is better)" if reading.less_is_better else ""
    sure = f" (95 % interval {between(mean, half)})" if half > 0 else ""
    return f"Clients' mean {reading.title} (own tests): {told}{unit} against alone{sure}."


def _on_common_data(group: SeedGroup, beside: Sequence[RunRecord]) -> str:
    """Return in a sentence how good the model is on the server's test set, compared with clients alone; "" if one is
    not known.
    """
    reading = group.runs[0].main
    same = [run for run in (_alone_of(one, beside) for one in group.runs) if run is not None]
    ours, alone = (_mean(runs, f"test_{reading.key}") for runs in (group.runs, same)) if same else (None, None)
    if ours is None or alone is None:
        return ""
    unit = " %" if reading.percent else ""
    figures = [f"{rounded(reading.factor * value, most=2)}{unit}" for value in (ours, alone)]
    return f"On one test set for all, {reading.title} is {figures[0]} together and {figures[1]} alone."


# ---- who contributed


def _contributed(found: Contribution | None) -> str:
    """Return who contributed most, as far as the errors allow, and who did harm."""
    if found is None:
        return "What each contributed is not known: nobody's updates were valued."
    if len(found.ranked.clients) < 2:
        return TOO_FEW
    like = f" {_LIKE}: each value is what is lost if that client alone leaves." if found.measure.marginal else ""
    return f"{_most(found)}.{_harmed(found)}{not_ranked(found.seats)}{like}"


def _most(found: Contribution) -> str:
    """Return who contributed most, as far as the errors allow, without a full stop."""
    ranked = found.ranked
    labels = dict(zip(found.clients.tolist(), found.labels, strict=True))
    order = [c for c in found.clients.tolist() if c in set(ranked.clients.tolist())]
    if not ranked.known:
        return f"{_called(labels[order[0]])} has the highest value; certainty not recorded"
    tied = ranked.tied(order[0]).tolist()
    if len(tied) == len(order) - 1:
        return "No client clearly contributed most"
    top = [order[0], *tied]
    share = _share(found, top)
    if not tied:
        return f"{_called(labels[order[0]])} contributed most{share}"
    if len(top) > _MOST_NAMED:
        return f"{len(top)} of {len(order)} clients share the lead{share}"
    names = [labels[c] for c in top]
    if order[: len(top)] != top:  # a lower sum that is less certain than those above it
        low = [labels[c] for c in tied]
        told = f"{_called(names[0])} contributed most{_share(found, top[:1])}, or perhaps {' or '.join(low)}"
        return f"{told} (lower, but less certain)"
    return f"{_called(', '.join(names[:-1]))} or {names[-1]} contributed most{share}"


def _share(found: Contribution, top: Sequence[int]) -> str:
    """Return these clients' share of all contributions above zero, as a part of a sentence.

    A sum below zero has no share, though it may be among the highest for all that its error tells.
    """
    if not found.measure.share_out:
        return ""
    parts, _ = found.sums.parts()
    part = float(np.maximum(parts[np.isin(found.sums.clients, top)], 0.0).sum())
    return f" ({'together ' * (len(top) > 1)}{100 * part:.0f} % of {HELPFUL})" if np.isfinite(part) else ""


def _harmed(found: Contribution) -> str:
    names = found.harmful
    if not names:
        return ""
    who = _called(_list(names), many=len(names) > 1)
    if len(names) > _MOST_NAMED:
        who = f"{len(names)} of {len(found.clients)} clients"
    return f" {who} clearly did harm."


# ---- the picture


def picture_of(group: SeedGroup, found: Contribution) -> Chart:
    """Return the contributions as bars with 95 % intervals, in groups.

    Any two clients of different groups can be told apart.

    Args:
        group: the experiment.
        found: its contributions.
    """
    count = len(found.clients)
    kept = ends(count, _HIGHEST, _LOWEST)
    parts = _parts(found)
    names = list(dict.fromkeys(parts[i] for i in kept))
    known = bool(np.isfinite(found.errors).any()) and not found.last.exact
    series = []
    for look, name in enumerate(sorted(names, key=lambda name: name == _SINGLE)):
        mine = np.array([parts[i] == name for i in kept])
        values = np.where(mine, found.totals[kept], np.nan)
        errors = np.where(mine, SURE * found.errors[kept], np.nan) if known else None
        series.append(Series(name, values, errors, look=_ASIDE if name == _SINGLE else look))
    labels = tuple(label if _named(label) else f"client {label}" for label in (found.labels[i] for i in kept))
    groups = any(name.startswith("group ") for name in names)
    caption = _how_to_read(found.measure, known, groups, count - len(kept))
    title = f"What each client contributed: {group.label}{group.seeds_text}"
    marks = Bars(labels, tuple(series), stacked=True)
    return Chart("answer", "", title, caption, marks, x=f"sum of its {found.measure.plural}")


def _parts(found: Contribution) -> list[str]:
    """Return which part of the picture each client belongs to, ``[n]``.

    The parts are the groups whose members can be told apart from those of other groups, if there are any; else those
    that may be the highest, and those that surely are not.
    """
    ranked = found.ranked
    if not ranked.known:
        return ["contribution" if seats > 1 else _SINGLE for seats in found.seats.tolist()]
    groups = ranked.groups()
    if 1 < len(groups) <= _MOST_GROUPS and any(len(one) > 1 for one in groups):
        told = {int(client): f"group {_LETTERS[g]}" for g, one in enumerate(groups) for client in one.tolist()}
    elif len(groups) == 1 and len(groups[0]) > 1:
        top = int(groups[0][0])
        highest = {top, *ranked.tied(top).tolist()}
        told = {int(c): "may be the highest" if c in highest else "surely not the highest" for c in groups[0].tolist()}
    else:
        told = {int(client): "contribution" for one in groups for client in one.tolist()}
    return [told.get(client, _SINGLE) for client in found.clients.tolist()]


def _how_to_read(measure: Measure, known: bool, drawn: bool, left_out: int) -> str:
    """Return the picture's caption."""
    told = "Right of zero, a client's updates made the model better on the server's validation samples; left, worse."
    if measure.scatters:
        told = "Right of zero, groups with this client made better models on the mean; left of it, worse ones, which "
        told += "data unlike the others' can do as well as harm."
    if measure.marginal:
        told = f"What would be lost if this client alone left. {_LIKE}, and a little left of it is chance."
    if measure.ranks:
        told = "Right of zero, a client mostly stood above the middle of those who trained with it; left of it, below."
        told += " Below does not mean harm."
    if known:
        told += " Whiskers: 95 % intervals; where one crosses zero, better and worse are both possible."
        told += " All share one draw of samples, so two whose whiskers overlap may still differ surely."
    if drawn:
        told += " Clients of different groups can be told apart; inside a group, some cannot."
    if left_out:
        told += f" The {_HIGHEST} highest and {_LOWEST} lowest; {left_out} between them are left out."
    return told


# ---- what to do next


def _next(group: SeedGroup, joined: _Joining, found: Contribution | None) -> str:
    """Return the most useful next step, with its command if there is one."""
    run = group.runs[0]
    folder = shlex.quote(str(run.path))
    elsewhere = (run.path / "members.json").exists()  # a network or an app of its own played it
    if run.unfinished and run.ended_early is None:
        if run.in_app:
            return "Let it finish. If the app has stopped, start it again with a new out: it cannot be resumed."
        return f"Let it finish (hanse resume {folder})."
    if run.doubts:
        return "Mind the warning before using any number here."
    if found is None and run.gaps:
        return "See in the report why no round has values."
    if run.mechanism in APART:
        return "Run a mechanism that clients join, and report both."
    if joined.untested and not elsewhere:
        return "Keep test data at the clients ([data] client_test = 0.2), and run again."
    if joined.alone_missing and not elsewhere:
        return f"Compare with training alone ({by_python(run) or f'hanse statement {folder} --all --train-alone'})."
    if joined.mostly_lost and not joined.money and run.mechanism != "ditto":
        return "Try a personal mechanism (--set mechanism=ditto)."
    if found is not None and nothing_left(run.metrics):
        return "Take harder data or a finer metric: the first test was almost all right, so values are mostly noise."
    if found is not None and (names := found.harmful):
        who = _called(_list(names), many=len(names) > 1) if len(names) <= _MOST_NAMED else "those that did harm"
        whose = "its" if len(names) == 1 else "their"
        return (
            f"Operator: check what {who[0].lower() + who[1:] if not _named(names[0]) else who} sent, then {whose} data."
        )
    if len(group.runs) == 1 and not elsewhere:
        how = "data.seed and run.seed = 1, 2, ..." if by_python(run) else f"hanse sweep {folder}/config.toml --seeds 5"
        return f"Try other seeds ({how}), then give clients their statements."
    return f"Give each client its statement (hanse statement {folder} --all)."


# ---- numbers, names and lists in words


def _named(label: str) -> bool:
    """Return whether a client has a name, not just a number."""
    return not label[:1].isdecimal()


def _called(labels: str, *, many: bool = False) -> str:
    """Return clients as the start of a sentence: numbers need the word before them, names do not."""
    return labels if _named(labels) else f"{'Clients' if many else 'Client'} {labels}"


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
