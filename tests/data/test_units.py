"""Units and times: no split divides a unit, later rows are never trained on, and intervals count units."""

import math
import time

import numpy as np
import pandas as pd
import pytest
import torch
from gaining import gained
from test_own import Items

from hanse import Experiment, run, who_gains
from hanse.base.errors import UserError
from hanse.data import DataSpec, as_dataset, build
from hanse.data.build import with_own
from hanse.data.spec import parse_spec
from hanse.data.units import split_times, split_units, times_of
from hanse.games.jackknife import split_error
from hanse.lab.joining import _mean
from hanse.learning.intervals import difference, sample_blocks, unit_error, wilson
from hanse.learning.metrics import ACCURACY, Predictions, build_metrics
from hanse.reports.answers import answers_of
from hanse.reports.facts import facts
from hanse.reports.fits import OwnTest, _of_main, surely
from hanse.reports.invoice import invoice

HOSPITALS = ("Bremen", "Kiel", "Visby")


def patients(count=90, seed=0, most=12):
    """Patients of three hospitals with 1 to ``most`` rows each, and a label and a date for each row."""
    draw = np.random.default_rng(seed)
    of = np.repeat(np.arange(count), draw.integers(1, most + 1, count))
    hospital = np.array(HOSPITALS)[draw.integers(0, 3, count)][of]
    x = (draw.normal(size=(count, 3))[of] + 0.05 * draw.normal(size=(len(of), 3))).astype(np.float32)
    days = pd.to_timedelta(draw.integers(0, 30, count)[of] * 30 + draw.integers(0, 60, len(of)), unit="D")
    ill = np.where(draw.integers(0, 2, count)[of], "ill", "well")
    return pd.DataFrame(x, columns=["a", "b", "c"]).assign(
        patient=[f"p{i}" for i in of], hospital=hospital, state=ill, admitted=pd.Timestamp("2020-01-01") + days
    )


NAMED = {"target": "state", "client": "hospital", "features": ["a", "b", "c"]}
SOURCE = {"target": "state", "client_column": "hospital", "features": ["a", "b", "c"]}


def built(frame, partition=None, **source):
    spec = {"source": {**SOURCE, **source}}
    spec |= {"client_test": 0.25, "client_validation": 0.15, "root": 0.1}
    return build(*with_own(parse_spec(spec | ({"partition": partition} if partition else {})), frame))


def units_by_part(data):
    """The units of each part that is trained, validated or tested on, over all clients."""
    parts = {}
    for share in ("train", "validation", "test"):
        pool, index = data.pool(range(data.num_clients), share)
        parts[share] = pool.units[torch.cat(list(index))]
    for name, samples in (("judge", data.server_validation), ("public", data.server_test), ("root", data.server_root)):
        parts[name] = samples.units
    return {name: set(units.tolist()) for name, units in parts.items()}


@pytest.mark.parametrize(("time", "shared"), [(None, False), ("admitted", False), (None, True)])
def test_no_unit_is_in_two_parts(time, shared):
    frame = patients()
    if shared:
        frame.loc[frame.index % 2 == 0, "hospital"] = "Kiel"  # half of everybody's rows
    parts = units_by_part(built(frame, group="patient", time=time))
    names = list(parts)
    assert all(parts.values())
    assert [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if parts[a] & parts[b]] == []


def test_shares_and_classes_are_met_as_far_as_units_allow():
    data = built(patients(600, most=4), group="patient")
    for share, wanted in (("validation", 0.15), ("test", 0.25)):
        pool, index = data.pool(range(3), share)
        _, trained = data.pool(range(3), "train")
        whole = np.array([sum(len(data.pool([c], s)[1][0]) for s in ("train", "validation", "test")) for c in range(3)])
        assert np.abs([len(own) for own in index] / whole - wanted).max() < 0.03
        ill = [float(pool.y[own].float().mean()) for own in index]
        assert np.abs(np.array(ill) - [float(pool.y[own].float().mean()) for own in trained]).max() < 0.05


def test_all_forms_name_units():
    frame = patients()
    x, columns = frame[["a", "b", "c"]].to_numpy(), {"target": "state", "group": "patient"}
    owned = dict(iter(frame.drop(columns=["hospital", "admitted"]).groupby(frame.hospital)))
    ill = (frame.state == "ill").astype(int)
    items = [{"x": torch.tensor(a), "state": s, "patient": p} for a, s, p in zip(x, ill, frame.patient, strict=True)]
    by_client = {h: (x[own.index], own.state.to_numpy(), None, own.patient) for h, own in owned.items()}
    forms = [
        ((x, frame.state.to_numpy(), frame.hospital, frame.patient), {}),
        (by_client, {}),
        (owned, columns),
        (Items(items.__getitem__, len(items)), columns),
    ]
    for given, options in forms:
        data = as_dataset(given, **options)
        assert not set(data.train.units.tolist()) & set(data.test.units.tolist())
        whole = np.concatenate([data.train.units.numpy(), data.test.units.numpy()])
        sizes = sorted(np.unique(whole, return_counts=True)[1].tolist())
        assert sizes == sorted(frame.groupby("patient").size().tolist())


def test_all_forms_of_one_moment_are_one_time(monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("TZ", "Europe/Berlin")  # where the machine stands is no matter
    time.tzset()
    moment = pd.Series([pd.Timestamp("2020-10-25 00:30:00.25")])
    columns = [moment, moment.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")]
    columns += [moment.to_numpy().astype(f"datetime64[{unit}]") for unit in ("ms", "us", "ns", "D")]
    columns += [moment.astype("timestamp[ms][pyarrow]"), moment.dt.date.astype("date32[pyarrow]")]
    found = [times_of(one, "data").item() for one in columns]
    assert found == [1603585800.25] * 5 + [1603584000, 1603585800.25, 1603584000]
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("cut", ["each_client", "all_clients"])
def test_later_rows_are_never_trained_on(cut):
    frame = patients()
    order = np.random.default_rng(3).permutation(len(frame))
    frame = frame.iloc[order].reset_index(drop=True).assign(a=np.arange(len(frame), dtype=float))  # a row's number
    data = built(frame, group="none", time="admitted", cut=cut)
    when = frame.admitted.to_numpy()

    def times(samples):
        return when[samples.x[:, 0].long().numpy()]

    clients = []
    for client in range(3):
        pool = {share: data.pool([client], share) for share in ("train", "validation", "test")}
        clients.append({share: times(samples.take(index[0])) for share, (samples, index) in pool.items()})
    if cut == "all_clients":
        clients = [{share: np.concatenate([own[share] for own in clients]) for share in clients[0]}]
    for own in clients:
        assert own["train"].max() < own["validation"].min() <= own["validation"].max() < own["test"].min()
    server = np.concatenate([times(s) for s in (data.server_validation, data.server_test, data.server_root)])
    if cut == "all_clients":
        assert clients[0]["test"].max() < server.min()


def test_units_of_both_sides_keep_the_rows_of_one():
    units = np.tile(np.arange(20), 4)
    time = np.repeat([1.0, 2.0, 3.0, 4.0], 20)
    earlier, later = split_times(np.zeros(80, np.int64), time, 0.5, "each_client", np.random.default_rng(0), units)
    assert len(earlier) == len(later) == 20  # of each unit two of its four rows
    assert not set(units[earlier]) & set(units[later])
    assert time[earlier].max() < time[later].min()


def test_too_few_units_are_said_and_none_is_no_test():
    rest, cut = split_units(np.zeros(40, np.int64), None, 0.2, np.random.default_rng(0), np.repeat([0, 1], 20))
    assert (len(rest), len(cut)) == (40, 0)
    assert any("units" in line for line in built(patients(24), group="patient").warnings)
    assert any("3 rows, not 13" in line for line in built(patients(24), group="patient", time="admitted").warnings)
    each_numbers_its_own = patients().assign(patient=lambda t: t.groupby("hospital").cumcount() // 3)
    for frame, told in ((each_numbers_its_own, True), (patients(), False)):
        assert any("at several clients" in line for line in as_dataset(frame, **NAMED, group="patient").notes) == told


@pytest.mark.parametrize("alone", [("Kiel",), HOSPITALS])
def test_a_client_with_one_patient_trains_and_the_others_are_tested(alone):
    frame = patients()
    frame.loc[frame.hospital.isin(alone), "patient"] = frame.hospital
    experiment = Experiment(
        data={"source": {**SOURCE, "group": "patient"}, "client_test": 0.25}, mechanism="fedavg", run={"rounds": 1}
    )
    told = run(experiment, data=frame).tests[0]
    without = np.isin(HOSPITALS, alone)
    assert np.array_equal(told["test_samples"] == 0, without)
    assert np.array_equal(np.isnan(told["test_loss"]), without)
    assert np.array_equal(np.isnan(told["test_loss_error"]), without)


ROWS = len(patients())
WRONG = [
    ({}, {"group": "patients"}, "data.source.group"),
    ({}, {"time": "b c"}, "data.source.time"),
    ({}, {"group": "state"}, "data.source.group"),
    ({"patient": [None, *["p"] * (ROWS - 1)]}, {"group": "patient"}, "'patient'"),
    ({"patient": [f"{'pP'[k % 2]}{k // 4}" for k in range(ROWS)]}, {"group": "patient"}, "'patient'"),  # p1 and P1
    ({"admitted": "2020"}, {"time": "admitted"}, "'admitted'"),
    ({}, {"cut": "all_clients"}, "data.source.cut"),
    ({"when": np.inf}, {"time": "when"}, "'when'"),
    ({"none": 1}, {"group": "none"}, "data.source.group"),
    *(({}, {"group": "patient", "partition": one}, "data.partition") for one in ("dirichlet", "skew", "mixture")),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_columns_and_partitions_that_deal_rows_are_refused_by_name(case):
    columns, source, key = WRONG[case]
    with pytest.raises(UserError) as wrong:
        built(patients().assign(**columns), **source)
    assert any(key in line for line in wrong.value.lines)


def test_without_clients_whole_units_are_dealt():
    frame = patients().drop(columns="hospital")
    spec = DataSpec(source={"target": "state", "features": ["a", "b"], "group": "patient"}, clients=5, client_test=0.2)
    data = build(*with_own(spec, frame))
    pool, index = data.pool(range(5), "train")
    owned = [set(pool.units[own].tolist()) for own in index]
    assert sum(map(len, owned)) == len(set.union(*owned))
    assert min(data.sizes) > 0.6 * max(data.sizes)


def test_blocks_are_of_whole_units():
    units = torch.from_numpy(np.repeat(np.arange(30), np.random.default_rng(0).integers(1, 9, 30)))
    blocks = sample_blocks(len(units), units)
    assert len(blocks) == 20
    assert torch.equal(torch.cat(blocks).sort().values, torch.arange(len(units)))
    assert sum(len(set(units[block].tolist())) for block in blocks) == 30
    assert [len(b) for b in sample_blocks(3, torch.tensor([7, 7, 9]))] in ([1, 2], [2, 1])


def leave_one_out(values, units, figure):
    """The jackknife's standard error of a figure by brute force: without one unit after another."""
    without = np.array([figure(values[units != unit]) for unit in np.unique(units)])
    count = len(without)
    return np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())


@pytest.mark.parametrize("count", [8, 19])
def test_intervals_of_accuracies_and_gains_are_those_of_leaving_out_one_patient_at_a_time(count):
    from scipy.stats import t

    draw, factor = np.random.default_rng(count), t.ppf(0.975, count - 1) / 1.96
    units = np.repeat(np.arange(count), draw.integers(1, 9, count))
    n, y = len(units), draw.integers(0, 2, len(units))
    (metric,) = build_metrics(["accuracy"], 2)
    skill, luck, tests = draw.normal(size=count)[units], draw.normal(size=n), []
    each = [(skill + 0.5 * luck + 0.3 * draw.normal(size=n) + ease > 0).astype(float) for ease in (0.5, 0.0)]
    for right in each:
        judged = Predictions(y, np.eye(2)[np.where(right, y, 1 - y)] * 0.8 + 0.1, np.zeros(n), units)
        error, share, without = leave_one_out(right, units, np.mean), right.mean(), metric.without_blocks(judged)
        ends = metric.interval(judged, without)
        assert ends == pytest.approx(wilson(share, min(share * (1 - share) / (error * factor) ** 2, n)), abs=1e-9)
        assert np.diff(ends) > np.diff(wilson(share, n))  # than if rows were what is drawn
        assert unit_error(right, torch.from_numpy(units)) == pytest.approx(error * factor, rel=0.15)
        tests.append(OwnTest(0, None, share, n, None, share, "", without, ends, count))
    ours, theirs, apart = (leave_one_out(one, units, np.mean) for one in (*each, each[0] - each[1]))
    both = (ours**2 + theirs**2 - apart**2) / (2 * ours * theirs)
    both -= min(max(both, 0), 0.5 / (n * (n - 1) * ours * theirs))
    gain = difference(tests[0].main, tests[0].interval, tests[1].main, tests[1].interval, both)
    assert _of_main(ACCURACY, tests[0].main, tests[0], tests[1].main, tests[1]) == pytest.approx(gain, abs=1e-9)


def test_the_error_over_splits_is_nadeau_s_and_bengio_s():
    gains = np.array([0.02, 0.05, 0.01, 0.04, 0.03, 0.02])
    from scipy.stats import t

    half = t.ppf(0.975, 5) * np.sqrt((1 / 6 + 0.3 / 0.7) * gains.var(ddof=1))
    assert 1.96 * split_error(gains, 0.3) == pytest.approx(half)
    for each, ends in ((gains, (gains.mean() - half, gains.mean() + half)), (np.zeros(6), (-0.04, 0.06))):
        # as many tests as patients may be right in every split, which makes nobody certain
        rows = [gained("Kiel", g, g - 0.04, g + 0.06, alone=0.5 - g) for g in each.tolist()]
        mean = _mean(rows, 0.3, ACCURACY)
        assert (mean.gain_low, mean.gain_high) == pytest.approx(ends)


# ---- unasked: rows that look like several of one person


def as_given(frame, form):
    """The same rows in one of the forms in which nobody names a unit."""
    if form == "named":
        return frame, NAMED
    if form == "coded":
        return frame.assign(patient=frame.patient.map(hash)).rename(columns={"patient": "k"}), NAMED
    return (frame[["a", "b", "c"]].to_numpy(), frame.state.to_numpy(), frame.hospital), {}


@pytest.mark.parametrize("form", ["named", "coded", "arrays"])
@pytest.mark.parametrize("seed", range(2))
def test_patients_that_nobody_named_are_doubted(form, seed):
    frame = patients(seed=seed, most=20).drop(columns="admitted")
    frame.loc[frame.index % 3 == 0, "hospital"] = "Kiel"
    given, options = as_given(frame, form)
    doubt = as_dataset(given, **options).doubt
    assert doubt
    assert form == "arrays" or (repr("patient" if form == "named" else "k") in doubt and "several clients" in doubt)
    if form == "arrays":
        assert not as_dataset((*given, frame.patient)).doubt
    assert not as_dataset(given, group="none", **options).doubt


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "diabetes", "digits", "linnerud"])
def test_scikit_learn_s_tables_are_not_doubted(name):
    from sklearn import datasets

    frame = getattr(datasets, f"load_{name}")(as_frame=True).frame.dropna()
    target = "target" if "target" in frame else frame.columns[-1]
    assert not as_dataset(frame, target).doubt
    assert not as_dataset((frame.drop(columns=target).to_numpy(dtype=np.float64), frame[target].to_numpy())).doubt


@pytest.mark.parametrize("copies", [0, 0.05, 0.3, 3])
def test_exact_copies_of_rows_are_doubted(copies):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(100, 3)), draw.integers(0, 2, 100)
    again = np.arange(int(copies * 100)) % 100
    doubt = as_dataset((np.concatenate([x, x[again]]), np.concatenate([y, y[again]]))).doubt
    assert bool(doubt) == (copies >= 0.3)
    few = draw.integers(0, 3, (200, 3)).astype(float)  # rows of few values are alike by chance
    assert not as_dataset((few, draw.integers(0, 2, 200))).doubt


def test_rows_left_out_are_said_once_with_their_number():
    frame, source = patients(300), {"group": "patient", "time": "admitted", "test": 0.2}
    data = built(frame, **source)
    [line] = [line for line in (*data.warnings, *data.notes) if "left out" in line]
    kept = sum(len(index) for share in ("train", "validation", "test") for index in data.pool(range(3), share)[1])
    kept += sum(len(one) for one in (data.server_validation, data.server_test, data.server_root))
    assert f"{len(frame) - kept:,} of {len(frame):,} rows" in line
    assert not [line for line in built(frame, group="patient").warnings if "left out" in line]


NAMES = ("amount", "product_id", "Ward No", "id", "SSN", "USUBJID", "PTID", "patient id ", "Subject ID")


@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_repeats_is_doubted_by_its_name_or_by_labels_and_features(name):
    frame = patients(most=20).drop(columns=["admitted", "a", "b", "c"])
    amount = np.random.default_rng(1).permutation(500)[frame.patient.map(lambda p: int(p[1:])).to_numpy()]
    noise = np.random.default_rng(2).normal(size=(len(frame), 2)).astype(np.float32)
    frame = frame.drop(columns="patient").assign(x=noise[:, 0], z=noise[:, 1], **{name: amount})
    doubt = as_dataset(frame, "state", "hospital", ["x", "z"]).doubt
    assert bool(doubt) == (name not in NAMES[:3])  # its labels repeat, its features do not


def test_a_doubt_is_the_first_line_and_withholds_answers(tmp_path):
    frame = patients(most=20).drop(columns="admitted")
    runs = []
    for group in ({}, {"group": "none"}):
        data, out = {"source": {**SOURCE, **group}, "client_test": 0.3}, tmp_path / f"run{len(runs)}"
        experiment = Experiment(data=data, model="logistic", mechanism="fedavg", run={"rounds": 2})
        runs.append(run(experiment, data=frame, value=True, out=out))
    about = runs[0].record.about
    assert "'patient'" in about.doubt
    assert runs[0].record.coded_doubts[0] == ("data", {"said": f"{about.doubt}."})
    assert invoice(tmp_path / "run1", "100", "EUR").total == 10_000
    with pytest.raises(UserError):
        invoice(tmp_path / "run0", "100", "EUR")
    runs[0].alone()
    assert [(row.paid_to_join, row.gain) for row in facts(tmp_path / "run0").clients] == [("unknown", None)] * 3
    assert [note.code for note in answers_of(tmp_path / "run0").joining] == ["joining_withheld"]
    options = {**NAMED, "model": "logistic", "rounds": 2, "mechanisms": ["fedavg"], "progress": False}
    with pytest.raises(UserError) as wrong:
        who_gains(frame, **options)
    assert wrong.value.lines[0].startswith("data: ")
    found = who_gains(frame, group="patient", **options)
    assert found.unit == "patient"
    assert all(row.units < row.test_rows for rows in found.gains.values() for row in rows)


# ---- how many are surely better off


def test_counts_of_clients_are_wrong_in_one_of_twenty_sets():
    from scipy.stats import t

    draw, half = np.random.default_rng(0), t.ppf(0.975, 19)
    gains = draw.standard_t(19, size=(4000, 8))
    together = np.mean([any(surely([(g, g - half, g + half) for g in own], 19)) for own in gains.tolist()])
    assert together == pytest.approx(0.05, abs=0.01)
    clear = [(0.5, 0.4, 0.6)] * 5 + [(-0.5, -0.6, -0.4)] * 3 + [(0.1, 0.001, 0.199), (math.nan,) * 3]
    assert surely(clear) == [1] * 5 + [-1] * 3 + [1, 0]  # of the last one alone is left: 5 % are all its own
