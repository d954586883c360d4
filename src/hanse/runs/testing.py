"""A round's test: how good are the models that clients hold?

Clients are asked to test on their own shares. Their replies become the figures ``client/test_...`` of the round's
metrics, and the arrays ``tested`` and ``test_...``. The server also tests on its own set (``test/...``). Only this
module knows the names of these figures.

:func:`ask_tests` does all this for one round. :func:`still_known` lets the server skip unchanged models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, torch
from hanse.core.part import Deployment, ModelScores, OwnMix
from hanse.core.port import Call, Federation, Mixture, Request, Roster, Test, Tested
from hanse.core.table import SERVER, Floats, Ints, Table, Updates, mix
from hanse.federation.answers import measured
from hanse.federation.check import heard
from hanse.federation.policy import fits
from hanse.games.jackknife import jackknife_errors
from hanse.learning.intervals import BLOCKS, UNITS, errors_without
from hanse.learning.metrics import OF_TEXTS, Metric
from hanse.learning.sequences import is_text, perplexity
from hanse.runs.checkpoint import LoopState
from hanse.runs.setup import Session

Metrics = Mapping[str, float | None]


@dataclass(frozen=True)
class Figures:
    """The results of a round's test.

    Attributes:
        metrics: figures by name. None: there is no such figure in this round.
        arrays: the reports of the testing clients, ``[n]``, by name.
        on_server: ``[2, K]``, loss and accuracy of each row of the table on the server's test set; NaN for rows that
            nobody holds. Where fewer than two rows were tested, so that keeping them saves nothing: what is still known
            of the test before, or None.
        personal: ``[N, K]``, weights of the clients' personal models. None: they are not known, or there are none.

    Examples:
        >>> from hanse.core.part import Deployment
        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("fedavg")
        >>> session, state = small.session, small.played.state
        >>> found = ask_tests(session, session.federation, state, Deployment(state.home))
        >>> sorted(found.arrays)[:2], "test/accuracy" in found.metrics
        (['test_accuracy', 'test_loss'], True)
    """

    metrics: Metrics = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    on_server: Floats | None = None
    personal: Floats | None = None  # weights [N, K] of the clients' personal models, where they are known


def ask_tests(
    session: Session,
    federation: Federation,
    state: LoopState,
    held: Deployment,
    trained: Mapping[int, Tensor] = MappingProxyType({}),
    known: Floats | None = None,
) -> Figures:
    """Test the models that clients hold after a round, on the server's test set and on the clients' own test shares.

    In a simulation, private rows are in the table and are also tested on the server's set. All clients that test answer
    there, present or not, until they have left the run, also by their own policy. On a network, only the owner of a
    private row tests it, only present clients are asked, and their answers are checked. If clients keep batch-norm
    statistics of their own, the server has none, and tests nothing.

    Args:
        session: what stays the same over the run.
        federation: the port to the clients.
        state: the state after the round.
        held: which model each client holds.
        trained: models ``[P]`` by client to test instead of those that clients hold.
        known: ``[2, K]``, known scores on the server's set. NaN: not known.
    """
    data, table, remote, here = session.data, state.table, session.remote, session.tested_clients
    public = held.rows[table.owner[held.rows] == SERVER] if remote else held.rows
    roster = federation.present(state.round) if remote and len(here) else Roster()
    here = np.setdiff1d(np.intersect1d(roster.ids, here) if remote else here, [*state.left, *state.quit])
    requests = _requests(state, held, here, remote, trained)
    replies = federation.exchange(Call(state.round, requests)) if requests else ()
    arrays: dict[str, NDArray[Any]] = {}
    if remote:  # what comes from this process is as sound as its engine, also where a model has diverged
        sound, refusals = heard(state.round, requests, replies, roster)
        replies = list(sound.values())
        if refusals:
            arrays["test_refused"] = np.array([c for c, _ in refusals], np.int64)
            arrays["test_reason"] = np.array([reason for _, reason in refusals], np.str_)
    answers = {r.client: one for r in replies for one in r.results if isinstance(one, Tested)}
    tested = {c: answers[c] for c in here.tolist() if c in answers and (answers[c].num_samples or not remote)}
    complete = state.history is None or not state.history.statistics.shape[1]
    on_server = _on_server(session, table, public, known) if complete else None
    metrics = {} if on_server is None else _server_figures(session, table, public, on_server)
    if tested:
        text = is_text(data.pool([], "test")[0])
        figures = figures_of(np.array(list(tested)), list(tested.values()), text, session.problem.metrics)
        metrics |= figures.metrics
        arrays = {**figures.arrays, **arrays}
    metrics |= by_distribution(session, table) if len(public) and complete else {}
    personal = held.weights if held.own_mix is None else _personal(table, held.own_mix, answers)
    several = on_server is not None and np.count_nonzero(~np.isnan(on_server[0])) > 1
    return Figures(metrics, arrays, on_server if several else known, personal)


def trained_models(updates: Updates, held: Deployment) -> dict[int, Tensor]:
    """Return the original update ``[P]`` of each client that trained, for ``eval.model = "trained"``.

    If a client has several seats, it is the update of the row that the client holds (Ditto's personal model), if any.

    Raises:
        UserError: the mechanism gives clients mixes of several rows, which nobody trains.
    """
    if held.own_mix is not None or held.weights is not None:
        raise UserError(
            "eval.model: 'trained': this mechanism gives clients mixes of several models, and nobody trains such a "
            "mix; allowed: 'deployed'"
        )
    seats, models = updates.seats, dict[int, Tensor]()
    for client in np.unique(seats.client).tolist():
        own = np.flatnonzero(seats.client == client)
        if len(own) > 1:
            own = own[seats.target[own] == held.rows[client]]
        if len(own) == 1:
            models[client] = updates.rows[int(own[0])]
    return models


def _requests(
    state: LoopState, held: Deployment, clients: Ints, remote: bool, trained: Mapping[int, Tensor]
) -> list[Request]:
    """Return a test for each of ``clients [n]``.

    In a simulation, clients that do not test are asked for their own mixtures as well, so whoever runs it may see
    them.
    """
    table, rows, own, share = state.table, state.table.rows, None, held.own_mix
    # making a mixture takes time, so only those whose mixtures are wanted are asked
    asked = clients if share is None or remote else np.arange(len(held.rows))  # all others cost time, if they are many
    at = dict(zip(asked.tolist(), held.rows[asked].tolist(), strict=True))
    views = {k: rows[k] for k in set(at.values())}
    models = {c: views[k] for c, k in at.items()}
    beside: Mapping[int, Tensor] = {}
    if share is not None:
        own = Mixture(rows[share.rows], share.share, share.normalised)
        beside = {c: models[c] for c in clients.tolist()}
    elif held.weights is not None:
        beside = dict(models)
        some = clients[held.weights[clients].any(axis=1)]
        models |= zip(some.tolist(), mix(held.weights[some], rows[:0], rows), strict=True)
    tests = []
    for c, model in models.items():
        row = at[c] if table.owner[at[c]] != SERVER else None
        if row is not None and remote and table.owner[row] != c:
            continue  # another's private row
        test = Test("test", model, row, own, beside.get(c), own is None or c in beside)
        test = Test("test", trained[c]) if c in trained else test
        if state.history is not None:  # with the client's own batch-norm statistics
            test = replace(test, model=state.history.model(c, test.model))
        tests.append(Request(c, (test,)))
    return tests


def still_known(scores: Floats | None, before: Table, after: Table) -> Floats | None:
    """Return the server's scores of those rows that a round left unchanged, bit for bit.

    Args:
        scores: ``[2, K]`` from before the round. None: nothing is known.
        before: the table before the round.
        after: the table after the round.

    Returns:
        ``[2, K']`` with NaN for rows that changed or are new, or None if nothing is known.
    """
    if scores is None:
        return None
    known = np.full((2, after.size), np.nan)
    # as integers, so two NaN of the same bits are equal, and 0.0 and -0.0 are not
    old, new = before.rows.view(torch.int32), after.rows.view(torch.int32)
    for row in np.flatnonzero(~np.isnan(scores[0, : after.size])).tolist():
        if torch.equal(old[row], new[row]):
            known[:, row] = scores[:, row]
    return known


def _on_server(session: Session, table: Table, rows: Ints, known: Floats | None) -> Floats | None:
    """Return loss and accuracy ``[2, K]`` of ``rows [n]`` on the server's test set; only what is not ``known`` is
    computed.
    """
    engine, samples = session.engine, session.data.server_test
    if samples is None or not len(rows):
        return None
    known_scores = np.full((2, table.size), np.nan) if known is None else known.copy()
    held = np.flatnonzero(np.bincount(rows))
    new = np.flatnonzero(np.isnan(known_scores[0, held]))
    if len(new):
        models = table.rows[held]
        scores = engine.score_some(models, samples, new) if len(new) < len(held) else engine.score(models, samples)
        known_scores[:, held[new]] = scores.loss[new], scores.accuracy[new]
    return known_scores


def _server_figures(session: Session, table: Table, rows: Ints, scores: Floats) -> dict[str, float | None]:
    """Return the figures on the server's test set, as means over the clients that hold ``rows [n]``: None for a metric
    that a row does not have. The main metric comes with its standard error from the draw of the test samples.

    Args:
        session: has the set and the model.
        table: the models.
        rows: the row that each client holds, so a row that several hold counts several times.
        scores: ``[2, K]``, loss and accuracy of every row.
    """
    samples, problem, count = session.data.server_test, session.problem, np.bincount(rows)
    assert samples is not None
    held = np.flatnonzero(count)
    count = count[held]
    losses, accuracies = scores[:, held]
    loss = float(np.average(losses, weights=count))
    figures: dict[str, float | None] = {"test/loss": loss}
    if is_text(samples):
        figures["test/perplexity"] = perplexity(loss)
    if not np.isnan(accuracies).any():
        figures["test/accuracy"] = float(np.average(accuracies, weights=count))
    if problem.metrics and len(samples):
        found = measured(problem, session.engine, table.rows[held], samples)
        for metric in problem.metrics:
            values = [one.values.get(metric.key, math.nan) for one in found]
            figures.setdefault(f"test/{metric.key}", float(np.average(values, weights=count)))
        without = np.average([one.without_block for one in found], axis=0, weights=count)
        figures[f"test/{problem.metrics[0].key}_error"] = float(jackknife_errors(without))
    return figures


def figures_of(clients: Ints, results: Sequence[Tested], text: bool, measures: Sequence[Metric]) -> Figures:
    """Return the figures of clients' tests: plain means, means weighted by samples, and the worst client.

    Args:
        clients: the clients' ids ``[n]``. Clients without test samples are listed in the arrays but excluded from all
            figures.
        results: the clients' reports, in the same order.
        text: whether the samples are texts, which have a perplexity.
        measures: the metrics in addition to loss and accuracy, the main one first.

    Examples:
        The client with an accuracy of 0.4 has three times as many test samples:

        >>> results = [Tested("test", loss=0.5, accuracy=0.8, num_samples=10), Tested("test", 0.7, 0.4, 30)]
        >>> found = figures_of(np.array([0, 1]), results, text=False, measures=[]).metrics
        >>> mean, weighted = found["client/test_accuracy"], found["client/test_accuracy_weighted"]
        >>> round(mean, 3), round(weighted, 3), found["client/test_accuracy_min"]
        (0.6, 0.5, 0.4)
    """
    loss, accuracy, error, of_row = (
        np.array([math.nan if x is None else x for x in column])
        for column in zip(*((r.loss, r.accuracy, r.loss_error, r.accuracy_beside) for r in results), strict=True)
    )
    count = np.array([r.num_samples for r in results], np.int64)
    arrays = {"tested": clients, "test_loss": loss, "test_accuracy": accuracy, "test_samples": count}
    arrays["test_loss_error"] = error
    units = count
    if any(UNITS in r.metrics for r in results):
        units = np.array([int(r.metrics.get(UNITS, r.num_samples)) for r in results], np.int64)
        arrays["test_units"] = units
    some = count > 0
    figures: dict[str, float | None] = {"client/test_loss": float(loss[some].mean()) if some.any() else None}
    if text and some.any():
        arrays["test_perplexity"] = np.array([perplexity(one) for one in loss.tolist()])
        figures["client/test_perplexity"] = perplexity(np.average(loss[some], weights=count[some]))
    if not np.isnan(accuracy[some]).any() and some.any():
        figures["client/test_accuracy"] = float(accuracy[some].mean())
        figures["client/test_accuracy_weighted"] = float(np.average(accuracy[some], weights=count[some]))
        figures["client/test_accuracy_min"] = float(accuracy[some].min())
    fit = np.array(fits(ModelScores(loss, accuracy, count)))[some]
    if len(fit):
        figures["client/test_fit"] = float(fit.mean())
        figures |= {f"client/test_fit_q{q}": float(np.quantile(fit, q / 100)) for q in QUANTILES}
    if not np.isnan(of_row[some]).any() and some.any():  # of the row that they hold besides a personal model
        figures["client/test_accuracy_of_row"] = float(of_row[some].mean())
    for metric in measures:
        if metric.key not in OF_TEXTS:
            own = np.array([r.metrics.get(metric.key, math.nan) for r in results], np.float64)
            arrays[f"test_{metric.key}"] = own
            figures |= _over_clients(metric, own, count)
        if any(metric.key in r.gaps for r in results):
            arrays[f"test_{metric.key}_gap"] = np.array([r.gaps.get(metric.key, "") for r in results], np.str_)
    if measures:
        arrays["test_without_block"] = without = _without_blocks(results)
        none = np.full(2, np.nan)
        arrays["test_interval"] = np.array([none if r.interval is None else r.interval.numpy() for r in results])
        known = errors_without(without, units)[some]
        if len(known) and np.isfinite(known).all():
            key = f"client/test_{measures[0].key}_error"
            figures[key] = float(np.sqrt((known**2).sum()) / len(known))
    return Figures(figures, arrays)


def _over_clients(metric: Metric, own: Floats, count: Ints) -> dict[str, float | None]:
    """Return a metric's mean over the clients that have it, weighted by samples too, the worst, and how many have
    none.
    """
    known, name = np.isfinite(own), f"client/test_{metric.key}"
    if not known.any():
        return {name: None}
    lacking = int((~known & (count > 0)).sum())
    worst = own[known].max() if metric.reading.less_is_better else own[known].min()
    found: dict[str, float | None] = {
        name: float(own[known].mean()),
        f"{name}_weighted": float(np.average(own[known], weights=count[known])),
        f"{name}_worst": float(worst),
    }
    return found | ({f"{name}_missing": float(lacking)} if lacking else {})


def _without_blocks(results: Sequence[Tested]) -> Floats:
    """Return the clients' main metric without each block of their samples ``[n, B]``; NaN beyond the blocks that they
    have.
    """
    table = np.full((len(results), BLOCKS), np.nan)
    for own, result in zip(table, results, strict=True):
        if result.without_block is not None:
            own[: len(result.without_block)] = result.without_block.numpy()[:BLOCKS]
    return table


def _personal(table: Table, own: OwnMix, found: Mapping[int, Tested]) -> Floats | None:
    """Return the weights ``[N, K]`` of the clients' own mixtures; None where they stay with the clients."""
    known = {c: result.weights for c, result in found.items() if result.weights is not None}
    if not known:
        return None
    weights = np.zeros((max(known) + 1, table.size))
    weights[np.ix_(np.array(list(known)), own.rows)] = torch.stack(list(known.values())).numpy()
    return weights


QUANTILES = (10, 25, 50, 75, 90)
_MOST_ROWS = 16  # server rows that are tested on each distribution


def by_distribution(session: Session, table: Table) -> Mapping[str, float]:
    """Return how well each server row does on the held-out data of each distribution: accuracy, or ``1 / (1 + loss)``.

    If there are as many rows as distributions, each row is matched to one distribution, because it is arbitrary which
    row serves which. The match maximises the sum of the matched figures. "tier d" is then the row of distribution d.
    "test/separated" is 1 if every tier is best on its own distribution, and every distribution is served best by its
    own tier.

    Args:
        session: has the engine, and the held-out samples of each distribution.
        table: the models.
    """
    rows, tests = table.on_show[:_MOST_ROWS], [t for t in session.data.server_tests if len(t)]
    if not len(rows) or not tests:
        return {}
    figures = np.array([fits(session.engine.score(table.rows[rows], samples)) for samples in tests]).T
    metrics = {
        f"test/row {k}/distribution {d}": x
        for k, own in zip(rows, figures, strict=True)
        for d, x in enumerate(own.tolist())
    }
    if len(rows) == len(tests):
        from scipy.optimize import linear_sum_assignment  # late: few runs need it, and it is long to import

        _, tier = linear_sum_assignment(figures.T, maximize=True)
        for d, own in enumerate(figures[tier]):
            metrics |= {f"test/tier {d}/distribution {e}": x for e, x in enumerate(own.tolist())}
            metrics[f"test/tier {d}/best"] = float(own.max())
        # whether each tier's own figure is alone the largest of its row and of its column
        own, rest = np.diag(figures[tier]), figures[tier].copy()
        np.fill_diagonal(rest, -np.inf)
        metrics["test/separated"] = float((own > rest.max(axis=1)).all() and (own > rest.max(axis=0)).all())
    return metrics
