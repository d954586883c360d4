"""Notes on what may be meant otherwise: drawn federations in which it is so, and others in which it is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st
from own_forms import draws, from_arrays, from_frame, holds
from test_own import Items

import hanse
from hanse.base.errors import UserError
from hanse.data import DataSpec, build
from hanse.data.own import as_dataset
from hanse.reports.report import write_report
from hanse.runs.run_record import load_run

SEEDS, EITHER = st.integers(0, 10**6), st.booleans()


def federation(seed: int, clients: int, classes: int, *large: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clients whose labels follow from features in the same way, and whose features have their own means; some are
    large.
    """
    draw = np.random.default_rng(seed)
    who = np.repeat(np.arange(clients), [900 if k in large else 90 for k in range(clients)])
    x = draw.normal(size=(len(who), 6)) + draw.normal(size=(clients, 6))[who] * np.r_[0.0, np.ones(5)]
    edges = np.quantile(x[:, 0], np.arange(1, classes) / classes)
    return x, np.searchsorted(edges, x[:, 0] + 0.3 * draw.normal(size=len(who))), who


@draws
def test_swapped_labels_are_noted_with_the_client_and_others_are_not(draws: int) -> None:
    def check(seed: int, clients: int, classes: int, swapped: bool, large: bool) -> None:
        odd = seed % clients
        x, y, who = federation(seed, clients, classes, *[odd] * large)
        if swapped:
            y = np.where(who == odd, classes - 1 - y, y)
        names = np.array([f"site {k}" for k in range(clients)])
        notes = [note for note in from_arrays(x, y, names[who]).notes if "swapped" in note]
        assert bool(notes) == swapped
        assert all(f"'site {odd}'" in note for note in notes)

    holds(draws, check, seed=SEEDS, clients=st.integers(3, 6), classes=st.integers(2, 4), swapped=EITHER, large=EITHER)


@draws
def test_classes_of_one_client_and_clients_that_share_none_are_noted(draws: int) -> None:
    def check(seed: int, clients: int, what: str) -> None:
        _, y, who = federation(seed, clients, 2)
        labels, odd = np.where(y == 1, "sick", "well").astype(object), seed % clients
        if what == "alone":
            labels[np.flatnonzero(who == odd)[:9]] = "unknown"
        if what == "apart":
            labels[who == odd] = np.where(y[who == odd] == 1, "krank", "gesund")
        what = "none" if (what, clients) == ("single", 2) else what  # of two, the other is noted
        if what == "single":
            labels[who == odd] = "well"
        x = np.random.default_rng(seed).normal(size=(len(y), 2))
        notes = list(from_arrays(x, labels, np.array([f"site {k}" for k in range(clients)])[who]).notes)
        assert len(notes) == (what != "none")
        assert all(f"'site {odd}'" in note for note in notes)
        assert what != "alone" or "'unknown'" in notes[0]

    what = st.sampled_from(["none", "alone", "apart", "single"])
    holds(draws, check, seed=SEEDS, clients=st.integers(2, 5), what=what)


@draws
def test_ids_among_the_features_are_noted_by_name(draws: int) -> None:
    def check(seed: int, visits: int, what: str, prepared: bool) -> None:
        draw = np.random.default_rng(seed)
        patients = 240 // visits
        rows = np.repeat(np.arange(patients), visits)
        who = np.array(["Hope", "Visby"])[rows % 2]
        column = {
            "id": 100 + draw.permutation(patients)[rows],
            "measured": draw.integers(90, 180, len(rows)),
            "code": rows % 7,
        }[what]
        frame = pd.DataFrame({"odd": column, "x": draw.normal(size=len(rows)), "who": who})
        frame["ill"] = (frame.x > 0).astype(int)
        options: dict[str, Any] = {"prepare": "auto"} if prepared else {}
        notes = [note for note in from_frame(frame, "ill", "who", **options).notes if "ids" in note]
        assert len(notes) == (what == "id")
        assert all("'odd'" in note and (visits > 1) == ("too good" in note) for note in notes)

    what = st.sampled_from(["id", "measured", "code"])
    holds(draws, check, seed=SEEDS, visits=st.integers(1, 9), what=what, prepared=EITHER)


ROW = np.arange(90)
COUNTS: list[tuple[Any, int | None, str]] = [
    (ROW % 3, 3, ""), (ROW % 3 * 2, 5, "2 of which no row has"), (ROW % 30, 30, "30 classes"),
    (ROW % 3 * 1.0, None, "only 3 whole"), (ROW * 1.0, None, ""), (ROW / 7, None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("y", "classes", "said"), COUNTS)
def test_counts_and_classes_that_may_be_taken_for_one_another(y: Any, classes: int | None, said: str) -> None:
    found = from_arrays(np.random.default_rng(0).normal(size=(90, 2)), y)
    assert (found.num_classes, len(found.notes)) == (classes, bool(said))
    assert all(said in note for note in found.notes)


@pytest.mark.parametrize("gap", ["nan", "None", "<NA>", " n/a "])
def test_clients_and_classes_that_may_be_gaps_made_text_are_noted(gap: str) -> None:
    x, y, who = federation(0, 3, 2)
    names, labels = np.array(["a", "b", "c"], object)[who], np.where(y == 1, "sick", "well").astype(object)
    assert not from_arrays(x, labels, names).notes
    for called, data in (("client", (x, labels, np.where(who == 1, gap, names))),
                          ("class", (x, np.where(np.arange(len(y)) % 5 == 0, gap, labels), names))):  # fmt: skip
        assert any(f"a {called} is called" in note and gap.strip() in note for note in from_arrays(*data).notes)


BANDS: list[tuple[Any, str]] = [
    (["<20", "20-40", ">40"] * 30, "as a word"),
    (pd.cut(np.arange(90), 3), ""),
    (pd.Categorical(pd.date_range("2024-01-01", periods=3).repeat(30)), ""),
    (["36.5 mm Hg", "37 mm Hg", "38,2 mm Hg"] * 30, "unit"),
    (["3 mg", "4 ml", "5 mg"] * 30, ""),
    (["A1", "B2", "C3"] * 30, ""),
]


@pytest.mark.parametrize(("column", "said"), BANDS)
def test_bands_and_intervals_are_words_and_units_are_noted(column: Any, said: str) -> None:
    frame = pd.DataFrame({"z": column, "who": ["a", "b"] * 45, "ill": np.arange(90) % 7 < 3})
    found = from_frame(frame, "ill", "who", prepare="auto")
    assert (found.input_shape, len(found.notes)) == ((3,), bool(said))
    assert all(said in note and "'z'" in note for note in found.notes)


def test_masked_items_of_a_data_set_are_refused() -> None:
    items = [(np.ma.masked_array(np.ones(3, np.float32), mask=[i == 20] * 3), i % 2) for i in range(60)]
    with pytest.raises(UserError, match=r"client 'a'.*masked"):
        as_dataset(dict.fromkeys("ab", Items(items.__getitem__, 60)))


def test_columns_may_be_called_by_numbers() -> None:
    frame = pd.DataFrame({0: np.arange(60.0), 1: np.arange(60) % 2, 2: ["a", "b"] * 30})
    assert build(DataSpec(partition="natural", clients=2), from_frame(frame, 1, 2)).names == ("a", "b")
    again = hanse.Experiment(**{"mechanism": "fedavg", "data": {"source": {"target": 1, "client_column": 2}}})
    assert again.data.source.target == 1  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"'1': frame has no such column, but 1"):
        from_frame(frame, "1", 2)


@draws
def test_words_that_clients_do_not_share_are_noted(draws: int) -> None:
    def check(seed: int, clients: int, what: str) -> None:
        x, y, who = federation(seed, clients, 2)
        words = np.array(["ward", "surgery", "emergency"], object)[np.random.default_rng(seed).integers(0, 3, len(y))]
        odd = seed % clients
        if what == "translated":
            words[who == odd] = "klinik-" + words[who == odd]
        if what == "one word each":
            words = np.array([f"region {k}" for k in who], object)
        frame = pd.DataFrame({"age": x[:, 0], "place": words, "site": [f"site {k}" for k in who], "ill": y})
        frame.loc[seed % len(frame), "place"] = None
        notes = [n for n in from_frame(frame, "ill", "site", prepare="auto").notes if "column 'place'" in n]
        assert len(notes) == (what == "translated")
        assert all(f"'site {odd}'" in note and "klinik" in note for note in notes)

    what = st.sampled_from(["shared", "translated", "one word each"])
    holds(draws, check, seed=SEEDS, clients=st.integers(2, 5), what=what)


@draws
def test_numbers_that_stand_for_gaps_are_noted_wherever_they_are_and_no_others(draws: int) -> None:
    def check(seed: int, code: float | None, how: str, place: str) -> None:
        draw = np.random.default_rng(seed)
        made = {"normal": draw.normal(size=60), "ages": draw.integers(18, 70, 60), "counts": draw.poisson(2, 60)}
        column, who, ill = made[how].astype(float), np.array(["a", "b"] * 30), np.arange(60) // 2 % 2
        if code is not None:
            column[draw.choice(60, draw.integers(4, 9), replace=False)] = code
        frame, x = pd.DataFrame({"lab": column, "ill": ill, "who": who}), draw.normal(size=(60, 2))
        # classes -1, 0, 1, or 0, 1, 9999; a target needs fractions to be no count
        classes = np.where(column == code, -1 if seed % 2 else int(code or 0), ill)
        found = {
            "frame": lambda: from_frame(frame, "ill", "who"),
            "auto": lambda: from_frame(frame, "ill", "who", prepare="auto"),
            "array": lambda: from_arrays(np.stack([column, x[:, 0]], axis=1), ill, who),
            "target": lambda: from_arrays(x, np.where(column == code, column, column + 0.25), who),
            "class": lambda: from_arrays(x, classes, who),
        }[place]()
        told = [one for one in found.notes if "if this says that there is no value" in one or "is called" in one]
        assert len(told) == (code is not None), (found.notes, code)
        wanted = str(classes[column == code][:1]).strip("[]") if place == "class" else f"{code or 0:g}"
        assert all(wanted in note for note in told)

    codes = st.sampled_from([None, -999.0, -9999.0, 999.0, 9999.0, -99.99, 8888.0, -777.0])
    how, place = map(st.sampled_from, (["normal", "ages", "counts"], ["frame", "auto", "array", "target", "class"]))
    holds(draws, check, seed=SEEDS, code=codes, how=how, place=place)


@pytest.mark.parametrize("change", [
    {"min_samples": 0.5}, {"min_samples": True}, {"seed": -1}, {"seed": "3"}, {"test": True}, {"test": float("nan")},
    {"test": "3"}, {"test": -0.1}, {"test": 3},
])  # fmt: skip
def test_numbers_of_rows_and_shares_are_refused_if_they_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        from_arrays(*federation(0, 3, 2), **change)


def test_notes_are_kept_in_the_run_and_shown_by_its_report(tmp_path: Path) -> None:
    x, y, who = federation(0, 3, 2)
    y, x[4, 2] = np.where(who == 1, 1 - y, y), -999.0
    experiment = hanse.Experiment(mechanism="fedavg", model="logistic", run={"rounds": 1})
    run = hanse.run(experiment, data=(x, y, who), out=tmp_path / "run")
    assert sum("swapped" in line for line in run.said) == str(run).count("swapped") == 1
    kept = load_run(tmp_path / "run").about.notes
    assert any("-999" in note for note in kept)
    assert set(kept) <= {line.partition(": ")[2] for line in run.said}
    assert write_report([tmp_path / "run"], tmp_path / "out").read_text().count("-999 in 1 of ") == 1


@pytest.mark.parametrize(("female", "told"), [("w", "'Kiel' alone has 'w' and lacks 'f'"), ("f", "")])
def test_a_word_that_one_client_alone_writes_otherwise_is_told(female: str, told: str) -> None:
    draw = np.random.default_rng(0)
    x, y, who = federation(0, 3, 2)
    sex = np.where((who == 1) & (draw.random(len(who)) < 0.5), female, np.where(draw.random(len(who)) < 0.5, "f", "m"))
    sex[(who == 1) & (sex != female)] = "m"
    frame = pd.DataFrame({"x": x[:, 0], "sex": sex, "ill": y, "site": np.array(["Bern", "Kiel", "Oslo"])[who]})
    notes = [n for n in as_dataset(frame, target="ill", client="site", prepare="auto").notes if "otherwise" in n]
    assert (len(notes) == 1 and told in notes[0]) if told else not notes
