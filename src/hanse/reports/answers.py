"""The top of a report: does joining pay, who contributed, and what to do next; at most 60 words each and a picture.

:func:`answers` derives them from the facts of the runs (:mod:`hanse.reports.facts`). ``hanse run`` prints them at its
end, ``hanse report`` puts them on top of its page. They are about the first experiment that clients join, all of its
seeds together.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.files import MEMBERS
from hanse.games.jackknife import SURE
from hanse.reports.alone import ALONE, by_python, given_alone
from hanse.reports.chart import Chart
from hanse.reports.contributions import Contribution, contribution, picture_of
from hanse.reports.facts import Answer, RunOf, facts_of, mean_interval
from hanse.reports.fits import surely
from hanse.reports.groups import SeedGroup, group_runs
from hanse.reports.showing import shown
from hanse.reports.words import Note, doubts_said, said
from hanse.runs.chance import nothing_left
from hanse.runs.run_record import RunRecord, load_runs

APART = (ALONE, "centralised")  # mechanisms that nobody joins: they are there to be compared with
_MOST_NAMED = 4  # clients in a sentence


@dataclass(frozen=True, repr=False)
class Answers:
    """The answers to a reader's first three questions.

    Attributes:
        joining: for how many clients joining paid, by how much, and with what certainty.
        contributed: who contributed most, and who is suspect.
        next: what to do next.
        picture: the contributions as bars with intervals; None where nobody was valued.
        doubts: what a reader must know before these answers, such as that the model is no better than chance.
    """

    joining: tuple[Note, ...]
    contributed: tuple[Note, ...]
    next: Note
    picture: Chart | None = None
    doubts: tuple[str, ...] = ()

    @property
    def asked(self) -> dict[str, tuple[Note, ...]]:
        """The three answers as notes, each by its question."""
        return {"Does joining pay?": self.joining, "Who contributed?": self.contributed, "What next?": (self.next,)}

    @property
    def lines(self) -> dict[str, str]:
        """The three answers in words, each by its question."""
        return {question: " ".join(note.said for note in notes) for question, notes in self.asked.items()}

    def __repr__(self) -> str:
        return "\n".join([*self.doubts, *(f"{question} {told}" for question, told in self.lines.items())])

    def _repr_html_(self) -> str:
        """Return the answers and the picture for a notebook."""
        from hanse.reports.vega import image  # late: the terminal draws nothing

        picture = "" if self.picture is None else image(self.picture)
        return shown([*(("Mind:", line) for line in self.doubts), *self.lines.items()], picture=picture)


def answers_of(*folders: str | Path) -> Answers:
    """Return the answers for some runs. A notebook shows them with the picture.

    Args:
        folders: their run directories, at least one.

    Raises:
        UserError: a path is not a run directory, or has no finished round.
    """
    return answers(group_runs(load_runs(folders)))


def answers(groups: Sequence[SeedGroup]) -> Answers:
    """Return the answers for these experiments.

    They are about the first experiment that clients join; the contributions are those of the first that values updates.

    Args:
        groups: the experiments, at least one.
    """
    joined = [group for group in groups if group.runs[0].mechanism not in APART] or list(groups)
    beside = [run for group in groups for run in group.runs if run.mechanism == ALONE]
    group = joined[0]
    found = [facts_of(run, given_alone(run, beside)) for run in group.runs]
    valued = next(((one, worth) for one in joined if (worth := contribution(one)) is not None), None)
    several = len(joined) > 1
    pays = _joining(group, found, beside, group.label if several else "")
    given = group if valued is None else valued[0]
    judged = found[:1] if given is group else [found[0], facts_of(given.runs[0])]  # what is suspect is so in the latter
    retrained = {row.name: row for one in judged for row in one.clients if row.without is not None}
    harmful = [row for row in retrained.values() if row.harmful]
    gave, picture = [Note("nobody_valued", "note")], None
    if valued is not None:
        worth = valued[1]
        doubtful = any(run.coded_doubts for run in given.runs)
        some = len(given.same_clients) < len(given.runs)  # of other splits, a client's number is another client's
        label = f"{given.label}{given.seeds_text}" if several or some else ""
        gave = contributed(worth, label, retrained.keys(), [row.name for row in harmful], doubtful=doubtful)
        picture = picture_of(given, worth)
    if harmful:
        gave.append(Note("do_harm", "warning", _who(row.name for row in harmful) | {"starts": harmful[0].starts}))
    if spared := [row for row in retrained.values() if not row.harmful]:
        gave.append(Note("no_harm_shown", "note", _who(row.name for row in spared) | {"starts": spared[0].starts}))
    suspects = [] if valued is None else [name for name in valued[1].suspects if name not in retrained]
    next_ = _next(group, found, {note.code for note in pays}, valued, [row.name for row in harmful], suspects)
    return Answers(tuple(pays), tuple(gave), next_, picture, tuple(doubts_of(groups)))


def _who(names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a note on clients: their names, none if they are too many for a sentence, and how many."""
    every = list(names)
    return {"names": every if len(every) <= _MOST_NAMED else [], "many": len(every)}


def doubts_of(groups: Sequence[SeedGroup]) -> list[str]:
    """Return the doubts about each experiment: those of its first doubtful seed, and how many more there are."""
    told = []
    for group in groups:
        doubtful = [run for run in group.runs if run.coded_doubts]
        label = group.label if len(group.runs) > 1 or len(groups) > 1 else ""
        for line in doubts_said(doubtful[0]) if doubtful else []:
            told.append(said("doubt_of", line, label, doubtful[0].seeds[0], len(doubtful) - 1))
    return told


# ---- does joining pay


def _joining(group: SeedGroup, found: Sequence[RunOf], beside: Sequence[RunRecord], label: str) -> list[Note]:
    """Return whether joining paid in an experiment, counted over its clients (and seeds), in up to three notes.

    Args:
        group: the experiment.
        found: the facts of its runs.
        beside: available runs of clients alone, of any experiment.
        label: the experiment's name, if there are others.
    """
    first, reading = group.runs[0], next(iter(found[0].fits.values())).reading if found[0].fits else group.runs[0].main
    if first.mechanism in APART:
        return [Note("nobody_joins", "note", {"alone": first.mechanism == ALONE})]
    if first.about.doubt:  # which stands above all answers
        return [Note("joining_withheld", "warning")]
    tested = [[row for row in one.clients if row.honest and row.joined is not None] for one in found]
    counts = [Counter[Answer](yes=one.whole.yes, no=one.whole.no, even=one.whole.even) for one in found]
    whole, left_out = sum(counts, Counter[Answer]()), found[0].whole.clients - found[0].whole.honest
    notes = []
    if whole:
        fields = {**{answer: whole[answer] for answer in ("yes", "no", "even")}, "of": whole.total(),
                  "clients": max(map(len, tested)), "seeds": sum(one.total() > 0 for one in counts),
                  "of_seeds": len(found), "left_out": left_out}  # fmt: skip
        notes.append(Note("joining_paid", "note", {"label": label, **fields}))
    means = [(of.gain, of.gain_low, of.gain_high) for one in found if (of := one.whole).gain is not None]
    mean, low, high = means[0] if len(means) == 1 else mean_interval([gain for gain, _, _ in means])
    if mean is not None:
        scale = reading.factor * (-1 if reading.less_is_better else 1)
        ends = [None, None] if low is None or high is None else sorted((scale * low, scale * high))
        notes.append(Note("mean_gain", "note", {"metric": reading.title, "mean": scale * mean, "low": ends[0],
                                                "high": ends[1], "percent": reading.percent,
                                                "less": reading.less_is_better}))  # fmt: skip
    elif not notes:
        apart = first.has(MEMBERS) and not first.in_app
        notes.append(Note("joining_unknown", "warning", {"tested": any(tested), "apart": apart}))
    gained = [row.beyond for row in found[0].clients if row.honest and row.beyond is not None]
    if gained:
        fields = {"gained": sum(one > 0 for one in gained), "of": len(gained), "left_out": left_out,
                  "market": found[0].clients[0].utility is not None, "many": len(group.runs) > 1}  # fmt: skip
        notes.append(Note("gained_besides", "note", fields))
    return notes


def contributed(
    found: Contribution, label: str, cleared: Collection[str] = (), harmful: Collection[str] = (), *, doubtful: bool
) -> list[Note]:
    """Return who contributed most, as far as the errors allow, and who is suspect: nobody is both.

    Args:
        found: what each was worth.
        label: the experiment's name, if there are others.
        cleared: the names of clients without which the others were trained anew, so that no suspicion is needed.
        harmful: the names of those without which the others do better.
        doubtful: whether its values mean little.
    """
    start = {"label": label, "doubtful": doubtful}
    if len(found.ranked.clients) < 2:
        return [Note("too_few_rounds", "note", start)]
    names = [name for name in found.suspects if name not in cleared]
    notes = [_most(found, start, {*names, *harmful})]
    if names:
        below = found.totals + SURE * found.errors < 0
        by = {not low for name, low in zip(found.labels, below.tolist(), strict=True) if name in names}
        fields = {"of": len(found.clients), "averages": None if len(by) > 1 else by.pop()}  # why: by averages, or sums
        notes.append(Note("suspects", "warning", _who(names) | fields))
    if few := int((found.seats == 1).sum()):
        notes.append(Note("not_ranked", "note", {"few": few}))
    if found.measure.marginal:
        notes.append(Note("similar_clients", "note"))
    return notes


def _most(found: Contribution, start: Mapping[str, Any], but: Collection[str]) -> Note:
    """Return who contributed most, as far as the errors allow, ``but`` for some."""
    ranked, labels = found.ranked, dict(zip(found.clients.tolist(), found.labels, strict=True))
    order = [client for client in found.clients[found.order].tolist() if client in ranked.clients]
    if not ranked.known:
        return Note("highest_value", "note", {**start, "name": labels[order[0]]})
    tied = [order[0], *ranked.tied(order[0]).tolist()]
    top = [client for client in tied if labels[client] not in but]
    if len(tied) == len(order) or not top or ranked.totals.max() <= 0:
        return Note("nobody_leads", "note", {**start, **_helped(found, but), "of": len(order)})
    one, together = _share(found, top[:1]), _share(found, top)
    who = _who(labels[c] for c in top)
    # a lower sum may be less certain than those above it, and so tied where these are not
    in_order = order[: len(top)] == top
    share = together if in_order or not who["names"] else one
    return Note("leads", "note", {**start, **who, "of": len(order), "in_order": in_order, "share": share})


def _helped(found: Contribution, but: Collection[str]) -> dict[str, Any]:
    """Return whose sums are above zero, so that with 95 % none of these is wrong, and of whom that is open: the highest
    sum first, ``but`` for some. Nobody, if values only rank, or where an error is not known.
    """
    known = np.isfinite(found.errors) & np.isfinite(found.drawn) & (found.errors > 0) & (found.seats > 1)
    at = [i for i in found.order.tolist() if found.labels[i] not in but and known[i] and not found.measure.ranks]
    half, sums = SURE * found.errors, found.totals
    signs = surely([(sums[i], sums[i] - half[i], sums[i] + half[i]) for i in at])
    names = {sign: [found.labels[i] for i, one in zip(at, signs, strict=True) if one == sign] for sign in (1, 0)}
    return {"helped": _who(names[1]), "open": _who(names[0])}


def _share(found: Contribution, top: Sequence[int]) -> float | None:
    """Return these clients' share of all contributions above zero; None if values do not divide up anything.

    A sum below zero has no share, though it may be among the highest for all that its error tells.
    """
    if not found.measure.share_out:
        return None
    part = float(np.maximum(found.parts()[np.isin(found.clients, top)], 0.0).sum())
    return part if np.isfinite(part) else None


# ---- what to do next


def _next(
    group: SeedGroup, found: Sequence[RunOf], codes: set[str], valued: tuple[SeedGroup, Contribution] | None,
    harmful: Sequence[str], suspects: Sequence[str],
) -> Note:  # fmt: skip
    """Return the most useful next step, with its command if there is one.

    Args:
        group: the experiment.
        found: the facts of its runs.
        codes: of what is known of joining.
        valued: the experiment whose updates were valued, if any, and the contributions.
        harmful: the names of those without which the others do better.
        suspects: the names of those of whom this is open.
    """
    run, judged = group.runs[0], (group if valued is None else valued[0]).runs[0]
    # whether no network, or an app of its own, played them
    here, there = (not one.has(MEMBERS) for one in (run, judged))
    lost = sum(one.whole.no - one.whole.yes for one in found)
    untested = not any(row.joined is not None for one in found for row in one.clients)
    going_on = run.unfinished and run.ended_early is None
    choices = {
        "start_again_if_stopped": going_on and run.in_app,
        "let_it_finish": going_on,
        "mind_the_warning": bool(run.coded_doubts),
        "see_why_no_values": valued is None and bool(run.gaps),
        "run_what_is_joined": run.mechanism in APART,
        "keep_own_tests": untested and here,
        "compare_alone": "joining_paid" not in codes and here,
        "take_harder_data": valued is not None and bool(nothing_left(judged.metrics)),
        "expel_or_mend": bool(harmful),
        "check_suspects": bool(suspects) and there,
        "rehearse_without": bool(suspects),
        "check_data": lost > 0 and any(note.code == "data" for note in found[0].notes),
        "try_personal": lost > 0 and "gained_besides" not in codes and run.mechanism != "ditto",
        "try_seeds": len(group.runs) == 1 and here,
    }
    code = next((code for code, holds in choices.items() if holds), "give_statements")
    run = judged if code == "check_suspects" else run
    fields = {"folder": shlex.quote(str(run.path)), "python": by_python(run)}
    if code in ("compare_alone", "check_suspects"):  # whose commands play the experiment
        fields["trust"] = run.trust
    return Note(code, "note", fields | _who(harmful or suspects))
