"""Aggregates made again in a process of its own: the app's process is not touched, and what cannot be made is said."""

from pathlib import Path

import numpy as np
import pytest
from commands import invoke
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg, FedMedian, Strategy
from recorded import RecordedGrid, first_arrays
from strategies import SECRETS, Breaking, Dying, Hanging, Secretive, Telling, Unpicklable
from test_valued import ROUNDS, gaps, watched

import hanse
from hanse.runs.run_record import load_run

pytestmark = pytest.mark.by_turns(5)  # each starts a process of its own for each aggregate that it makes again


def loss(arrays: ArrayRecord) -> dict[str, float]:
    """An evaluation that draws nothing."""
    return {"loss": float(sum(np.square(a.numpy() - 0.2).sum() for a in arrays.values()))}


# ---- what cannot be made again is a gap, and training goes on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seconds", "said"),
    [
        (Hanging, 1.0, "take more than 1 s"),
        (Dying, 60.0, "ended"),
        (Breaking, 60.0, "raised ZeroDivisionError when it was called again with 1 of 4 replies"),
    ],
)
def test_a_strategy_that_hangs_dies_or_breaks_with_fewer_replies_is_a_gap(
    kind: type[Strategy], seconds: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hanse.flower.valued.valued.LEAST_S", seconds)
    with hanse.valued(kind(), out=tmp_path / "run", validation=loss) as strategy:
        result = strategy.start(RecordedGrid(), first_arrays(), num_rounds=1)
    assert result.arrays == kind().start(RecordedGrid(), first_arrays(), num_rounds=1).arrays
    [gap] = gaps(tmp_path / "run")
    assert gap.endswith(said)


class Module(FedMedian):
    pass


@pytest.mark.usefixtures("warm")
def test_classes_of_the_program_and_of_functions_are_valued_as_those_of_modules(tmp_path: Path) -> None:
    class Local(FedMedian):
        pass

    main = type("Mine", (FedMedian,), {"__module__": "__main__"})
    for kind in (Local, main, Module):
        watched(kind(), tmp_path / kind.__name__)
        assert gaps(tmp_path / kind.__name__) == [None] * ROUNDS


@pytest.mark.usefixtures("warm")
def test_a_strategy_of_a_folder_that_the_app_has_put_on_its_path_is_valued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundled_strategy.py").write_text(
        "from flwr.serverapp.strategy import FedMedian\n\n\nclass Bundled(FedMedian):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from bundled_strategy import Bundled  # type: ignore[import-not-found]

    watched(Bundled(), tmp_path / "run")
    assert gaps(tmp_path / "run") == [None] * ROUNDS


def test_the_process_ends_with_the_run(tmp_path: Path) -> None:
    listening = hanse.valued(FedMedian(), out=tmp_path / "run", validation=loss)
    with listening as strategy:
        strategy.start(RecordedGrid(), first_arrays(), num_rounds=2)
        [started] = listening.again._process._processes.values()
        assert started.is_alive()
    assert not started.is_alive()


# ---- secrets


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["valued", "raising", "unpicklable", "commanding", "writing"])
def test_secrets_of_a_strategy_are_in_no_file_of_the_run(how: str, tmp_path: Path) -> None:
    strategy = {
        "unpicklable": Unpicklable(True), "commanding": Telling(True), "writing": Telling(False),
    }.get(how) or Secretive(how == "raising")  # fmt: skip
    out = tmp_path / "run"
    watched(strategy, out, RecordedGrid(5))
    assert [bool(gap) for gap in gaps(out)] == [how != "valued"] * ROUNDS
    assert load_run(out).config["mechanism"]["settings"] == {
        "fraction_train": 0.75, "fraction_evaluate": 1.0, "min_train_nodes": 2, "min_evaluate_nodes": 2,
        "min_available_nodes": 2, "weighted_by_key": "num-examples", "arrayrecord_key": "arrays",
        "configrecord_key": "config",
    }  # fmt: skip
    for command in (["report", str(out)], ["statement", str(out), "--client", "0"], ["crate", str(out)]):
        if command[0] == "crate":
            pytest.importorskip("rocrate", reason="needs the extra 'crate'")
        done = invoke(*command)
        assert done.exit_code == 0, done.output
    written = {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert {"config.toml", "report.html", "ro-crate-metadata.json"} < written.keys()
    for secret in SECRETS:
        assert [name for name, data in written.items() if secret.encode() in data] == []


# ---- the run, looked at


def test_a_run_is_loaded_without_trusting_it_unless_it_names_other_modules(tmp_path: Path) -> None:
    watched(FedAvg(), tmp_path / "run")
    assert len(hanse.load(tmp_path / "run").metrics) == ROUNDS
    watched(FedAvg(), tmp_path / "paid", payment={"name": "recorded:Wages", "pot": 7})
    with pytest.raises(hanse.UserError, match="'recorded:Wages'"):
        _ = hanse.load(tmp_path / "paid").experiment
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("valued.mechanism:flower", "valued.mechanism:Combined"))
    with pytest.raises(hanse.UserError, match=r"mechanism:Combined': is an import path"):
        _ = hanse.load(tmp_path / "run").experiment
