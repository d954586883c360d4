"""The examples in docstrings run, and the functions that users call most have one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import hanse

# modules that can only be imported by the program that they are made for
LEFT_OUT = ("hanse.flower.template",)

CALLED_MOST = (
    "hanse.runs.config.Experiment",
    "hanse.runs.experiment.run",
    "hanse.runs.experiment.resume",
    "hanse.runs.reading.load",
    "hanse.reports.valuing.value",
    "hanse.reports.valuing.shapley",
    "hanse.reports.joining.who_gains",
    "hanse.flower.valued.valued.valued",
    "hanse.games.semivalues.exact",
    "hanse.games.semivalues.banzhaf",
    "hanse.games.semivalues.leave_one_out",
    "hanse.games.sampling.monte_carlo",
    "hanse.games.gtg.gtg",
    "hanse.games.mixture.mixture",
    "hanse.games.evolution.equilibrium",
    "hanse.games.market.learn_graph",
    "hanse.games.tokens.settle_round",
    "hanse.data.build.build",
    "hanse.data.sources.load",
    "hanse.data.own.from_arrays",
    "hanse.data.partitions.dirichlet",
    "hanse.ledger.store.Ledger",
    "hanse.ledger.split.split",
    "hanse.reports.statement.statement",
    "hanse.lab.sweep.run_sweep",
)

# what other functions are given, and nobody can guess how to make
GIVEN = (
    "hanse.core.part.View",
    "hanse.core.part.Group",
    "hanse.core.part.Context",
    "hanse.core.part.Part",
    "hanse.core.part.Mechanism",
    "hanse.core.port.Federation",
    "hanse.core.port.Request",
    "hanse.core.port.Reply",
    "hanse.core.table.Updates",
    "hanse.runs.round.Setup",
    "hanse.runs.round.LoopState",
    "hanse.runs.round.Played",
    "hanse.runs.judge.Judge",
    "hanse.reports.run.Run",
    "hanse.runs.run.Run",
    "hanse.runs.run.Observer",
    "hanse.runs.run_record.RunRecord",
    "hanse.runs.rehearsal.rehearse",
    "hanse.reports.groups.SeedGroup",
    "hanse.learning.job.Engine",
    "hanse.learning.job.SeatJob",
    "hanse.learning.job.Problem",
    "hanse.learning.sequential.SequentialEngine",
    "hanse.federation.policy.BestTier",
    "hanse.federation.answers.score_shares",
    "hanse.runs.testing.figures_of",
)
GIVEN_BY_FLOWER = (
    "hanse.flower.rehearsal.InProcessGrid",
    "hanse.flower.rehearsal.rehearse_network",
    "hanse.flower.link.FlowerFederation",
    "hanse.flower.newcomers.Newcomers",
    "hanse.flower.valued.mechanism.Watched",
    "hanse.flower.valued.record.Watch",
)


def with_examples() -> list[str]:
    """Return the names of the modules whose text has an example."""
    found = []
    for module in pkgutil.walk_packages(hanse.__path__, "hanse.", onerror=lambda name: None):
        spec = None if module.name.startswith(LEFT_OUT) else module.module_finder.find_spec(module.name, None)
        if spec is not None and (spec.origin or "").endswith(".py") and ">>>" in Path(str(spec.origin)).read_text():
            found.append(module.name)
    return found


@pytest.mark.parametrize("name", with_examples())
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", [*CALLED_MOST, *GIVEN, *GIVEN_BY_FLOWER])
def test_what_users_call_or_must_make_shows_a_call(name: str) -> None:
    module, _, what = name.rpartition(".")
    said = getattr(importlib.import_module(module), what).__doc__
    assert said is not None
    assert ">>>" in said
