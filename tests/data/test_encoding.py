"""Tables as people have them: gaps, words, dates, and by whose statistics they become numbers."""

import sys
import types
from typing import Any

import numpy as np
import pandas as pd
import pytest
from own_forms import from_frame
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import hanse
from hanse.base.errors import UserError
from hanse.data import DataSpec, build
from hanse.data.build import with_own
from hanse.data.encoding import drafted, encoded
from hanse.data.kinds import held


def table(rows: int = 120) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    age = draw.normal(50, 10, rows)
    age[::10] = np.nan
    return pd.DataFrame({
        "hospital": np.array(["Hope", "Visby", "Kiel"])[np.arange(rows) % 3],
        "age": age,
        "ward": np.array(["a", "b", None, "c"], dtype=object)[np.arange(rows) % 4],
        "since": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(rows), "D"),
        "income": [str(x) for x in draw.integers(100, 200, rows)],
        "smoker": draw.integers(0, 2, rows).astype(bool),
        "ill": np.where(draw.normal(size=rows) > 0, "yes", "no"),
    })  # fmt: skip


def both(given: Any, **options: Any) -> np.ndarray:
    found = from_frame(given, "ill", "hospital", **options)
    return np.concatenate([found.train.x.numpy(), found.test.x.numpy()])


def test_each_type_of_column_in_closed_form() -> None:
    frame = table()
    features = {name: held(frame[name], name) for name in frame.columns if name not in ("hospital", "ill")}
    values = {name: one.values for name, one in features.items()}
    made = encoded(drafted(features, "data"), values, np.arange(len(frame)))
    # age, its gaps, three wards, days, season and weekday on circles, income, smoker
    assert made.shape == (120, 2 + 3 + 1 + 1 + 4 + 1 + 1 - 1)
    age, gaps = made[:, 0], made[:, 1]
    np.testing.assert_array_equal(gaps, frame.age.isna())
    assert (age[frame.age.isna()] == 0).all()
    known = frame.age.dropna()
    np.testing.assert_allclose(age[frame.age.notna()], (known - known.mean()) / known.std(ddof=0), rtol=1e-5)
    np.testing.assert_array_equal(made[:, 2:5].sum(axis=1), frame.ward.notna())
    np.testing.assert_array_equal(made[:, 3], frame.ward == "b")
    days = np.arange(120.0)
    np.testing.assert_allclose(made[:, 5], (days - days.mean()) / days.std(), rtol=1e-4)
    np.testing.assert_allclose(made[7, 8:10], made[0, 8:10], atol=1e-5)  # a week later
    income = frame.income.astype(float)
    np.testing.assert_allclose(made[:, 10], (income - income.mean()) / income.std(ddof=0), rtol=1e-4)


def test_own_statistics_are_of_each_clients_own_train_rows_and_pooled_ones_of_all() -> None:
    frame = table()[["hospital", "age", "ill"]].dropna()
    frame.loc[frame.hospital == "Kiel", "age"] *= 100  # in other units
    for statistics in ("own", "pooled"):
        found = from_frame(frame, "ill", "hospital", prepare="auto", statistics=statistics)  # type: ignore[arg-type]
        raw = from_frame(frame, "ill", "hospital")
        np.testing.assert_array_equal(raw.train.y, found.train.y)  # the same rows
        owner = raw.client_of
        for client in range(3):
            mine = owner == client
            own = raw.train.x.numpy()[mine if statistics == "own" else slice(None), 0].astype(np.float64)
            want = (raw.train.x.numpy()[mine, 0] - own.mean()) / own.std()
            np.testing.assert_allclose(found.train.x.numpy()[mine, 0], want.clip(-5, 5), rtol=1e-3, atol=1e-4)


def test_test_rows_and_labels_decide_nothing() -> None:
    frame = table()
    found = from_frame(frame, "ill", "hospital", prepare="auto", statistics="pooled")
    test = from_frame(frame, "ill", "hospital", prepare="auto", statistics="pooled", test=frame.assign(age=1e6))
    assert not np.array_equal(found.train.x, test.train.x)  # all rows are trained on
    again = from_frame(frame, "ill", "hospital", prepare="auto", statistics="pooled", test=frame)
    np.testing.assert_array_equal(again.train.x, test.train.x)
    other = frame.assign(ill=frame.ill.to_numpy()[::-1])
    np.testing.assert_array_equal(both(other, prepare="auto", test=0.0), both(frame, prepare="auto", test=0.0))


def transformer(**encoder: Any) -> ColumnTransformer:
    return ColumnTransformer(
        [("numbers", StandardScaler(), ["age"]), ("words", OneHotEncoder(handle_unknown="ignore", **encoder), ["ward"])]
    )


def test_a_column_transformer_is_fitted_by_client_or_on_all() -> None:
    frame = table().assign(ward=lambda t: t.ward.fillna("none"), age=lambda t: t.age.fillna(50.0))
    features = frame[["age", "ward"]]
    pooled = both(frame, prepare=transformer(), statistics="pooled", test=0.0)
    np.testing.assert_allclose(pooled, transformer().fit_transform(features), rtol=1e-5)
    own = both(frame, prepare=transformer(categories=[["a", "b", "c", "none"]]), test=0.0)
    hope = (frame.hospital == "Hope").to_numpy()
    want = transformer(categories=[["a", "b", "c", "none"]]).fit_transform(features[hope])
    np.testing.assert_allclose(own[hope], want, rtol=1e-5)
    gone = frame[(frame.hospital != "Kiel") | (frame.ward != "a")]
    with pytest.raises(UserError, match=r"'Kiel'.*4 columns"):
        both(gone, prepare=transformer())
    for wrong, line in (
        (3, "data.source.prepare: 3"),
        (StandardScaler(), "client 'Hope': data.source.prepare: cannot be fitted on 32 rows"),
        (ColumnTransformer([("n", "passthrough", ["age"])]), "finite"),
        (FunctionTransformer(lambda own: own[["since"]].to_numpy()), "datetime64"),
        (FunctionTransformer(lambda own: np.ma.masked_invalid(own[["age"]].to_numpy())), "finite"),
    ):
        with pytest.raises(UserError, match=line.replace("(", r"\(")):
            both(table(), prepare=wrong)


def test_a_run_prepares_by_name_and_by_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_imputing")
    module.plain = SimpleImputer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_imputing", module)
    for how, columns in (("auto", None), ("own_imputing:plain", ["age"])):
        source = {"target": "ill", "client_column": "hospital", "prepare": how, "features": columns}
        experiment = hanse.Experiment(
            data={"source": {key: one for key, one in source.items() if one}},
            model="logistic",
            mechanism="fedavg",
            run={"rounds": 1},
        )
        run = hanse.run(experiment, data=table())
        assert run.model("Hope")[1].weight.shape[1] == (1 if columns else 12)
        assert np.isfinite(run.metrics[-1]["test/loss"])


def test_without_clients_there_are_no_own_statistics() -> None:
    frame, everybody = table().drop(columns="hospital"), table()
    assert len(from_frame(frame, "ill", prepare="auto", statistics="pooled").train) == 96
    for given, client, options, said in (
        (frame, None, {"prepare": "auto"}, "statistics: 'own'"),
        (frame, None, {"statistics": "pooled"}, "statistics"),  # without prepare
        (frame, None, {"prepare": "auto", "statistics": "all"}, "'all'"),
        (everybody[everybody.hospital != "Kiel"], "hospital", {"prepare": "auto", "test": everybody}, "'Kiel'"),
        ((np.zeros((40, 2)), np.arange(40) % 2), None, {"prepare": "auto"}, r"data\.source\.prepare"),
    ):
        with pytest.raises(UserError, match=said):
            from_frame(given, "ill", client, **options)


def test_clients_are_never_invented_unsaid() -> None:
    frame = table().assign(key=np.arange(120), ward=np.arange(120) % 4, since=0.0)
    with pytest.raises(UserError, match=r"^client: .* 'hospital', 'ward'$"):
        hanse.who_gains(frame, target="ill", prepare="auto", statistics="pooled")
    with pytest.raises(UserError, match="row belongs"):
        hanse.who_gains((np.ones((200, 2)), np.arange(200) % 2))
    for data, source, told in (
        ({"clients": 4}, {}, "4 clients are invented"),
        ({"clients": 4, "partition": "iid"}, {}, ""),
        ({}, {"client_column": "hospital"}, ""),
        ({"clients": 1}, {"client_column": "hospital"}, "leaves out 2 of the data's clients"),
    ):
        whole = {"target": "ill", "prepare": "auto", "statistics": "pooled", **source}
        warned = build(*with_own(DataSpec(source=whole, **data), frame)).warnings
        assert [told in line for line in warned if "clients" in line] == [True] * bool(told)
