"""Data of the user's own become a data set: what comes out, and what is refused in which words."""

import sys
import time
import types
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_forms import from_arrays, from_frame, from_torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from hanse.base.errors import UserError
from hanse.data import Dataset, DataSpec, Samples, build
from hanse.data.own import as_dataset
from hanse.data.samples import join

HOSPITALS = ["St Mary"] * 50 + ["Hope"] * 30 + ["General"] * 20


def frame() -> pd.DataFrame:
    """A hundred patients; ``age`` is the row's number, so that a sample tells which row it was."""
    return pd.DataFrame({
        "hospital": HOSPITALS,
        "age": np.arange(100.0),
        "smoker": [True, False] * 50,
        "ill": ["no", "yes", "no", "no"] * 25,
    })  # fmt: skip


def lines_of(call: Any, *given: Any, **options: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        call(*given, **options)
    return list(caught.value.lines)


def test_a_frame_becomes_samples_of_its_clients() -> None:
    found = from_frame(frame(), "ill", "hospital", name="patients")
    assert found.client_names == ("General", "Hope", "St Mary")
    assert (found.name, found.num_classes, found.input_shape) == ("patients", 2, (2,))
    assert np.bincount(found.client_of).tolist() == [16, 24, 40]  # a fifth of each is held out
    assert np.bincount(found.test_client_of).tolist() == [4, 6, 10]
    rows = torch.cat([found.train.x, found.test.x])[:, 0].long()
    assert sorted(rows.tolist()) == list(range(100))
    assert torch.equal(torch.cat([found.train.y, found.test.y]), (rows % 4 == 1).long())
    owner = np.concatenate([found.client_of, found.test_client_of])
    assert [found.client_names[c] for c in owner] == [HOSPITALS[r] for r in rows.tolist()]
    assert int((found.test.y == 1).sum()) == 5  # a quarter, as of all rows


def test_what_one_client_has_does_not_change_what_others_hold_out() -> None:
    changed = frame()
    changed.loc[50:79, "ill"] = "yes"
    one, other = (from_frame(f, "ill", "hospital") for f in (frame(), changed))
    for client in (0, 2):
        kept = [f.train.x[torch.from_numpy(f.client_of == client)] for f in (one, other)]
        assert torch.equal(*kept)


def test_a_frame_with_floats_to_be_predicted_and_a_test_frame() -> None:
    given = frame().drop(columns="ill").assign(cost=np.arange(100.0) / 7)
    found = from_frame(given[:80], "cost", "hospital", ["age"], test=given[80:])
    classes = from_frame(frame()[frame().ill == "no"], "ill", "hospital", test=frame())
    assert (classes.train.y.tolist(), classes.test.y.tolist()) == ([0] * 75, [0, 1, 0, 0] * 25)
    x, y = np.zeros((40, 1)), [0, 1] * 20
    assert as_dataset((x, y, [*"ab"] * 20), test=(x, y)).test_client_of is None
    with pytest.raises(UserError, match=": 1 unit is in the train"):
        as_dataset((np.zeros((40, 1)), [0, 1] * 20, None, [*range(40)]), test=(np.zeros((2, 1)), [0, 1], None, [3, 77]))
    assert found.num_classes is None
    assert (len(found.train), len(found.test), found.input_shape) == (80, 20, (1,))
    assert found.train.y.dtype == torch.float32
    assert found.client_names == ("Hope", "St Mary")
    assert found.test_client_of.tolist() == [-1] * 20  # General has no rows to train on


@pytest.mark.parametrize("form", ["frame", "arrays", "arrays of each"])
def test_labels_that_clients_call_otherwise_are_renamed(form: str) -> None:
    called = frame()
    called["ill"] = called.ill.astype(object)
    called.loc[called.hospital == "Hope", "ill"] = called.ill.map({"no": 1, "yes": 0})  # and elsewhere nobody has these
    called.loc[called.hospital == "General", "ill"] = called.ill.map({"no": "nein", "yes": "ja"})
    labels: dict[str, Any] = {"ja": "yes", "nein": "no", "Hope": {"0": "yes", "1": "no"}}
    due, x = as_dataset(frame(), "ill", "hospital"), called[["age", "smoker"]].to_numpy(dtype=np.float64)
    given: Any = (x, called.ill.to_numpy(), called.hospital.to_numpy())
    if form == "arrays of each":
        given = {c: (x[called.hospital == c], called.ill[called.hospital == c].to_list()) for c in set(HOSPITALS)}
    found = as_dataset(*((called, "ill", "hospital") if form == "frame" else (given,)), labels=labels)
    assert found.client_names == due.client_names
    assert found.train.y.tolist() == due.train.y.tolist() or form == "arrays of each"
    assert np.bincount(found.train.y).tolist() == np.bincount(due.train.y).tolist()


@pytest.mark.parametrize("labels", [{"krank": "yes"}, {"Hope": {"krank": "yes"}}, {"Kiel": {"no": "yes"}}])
def test_a_label_that_no_row_has_is_not_renamed_in_silence(labels: dict[str, Any]) -> None:
    items = TensorDataset(torch.zeros(20, 2), torch.zeros(20, dtype=torch.int64))
    for given in ((frame(), "ill", "hospital"), (items,)):
        (line,) = lines_of(as_dataset, *given, labels=labels)
        assert line.startswith("data.source.labels: ")


def test_sparse_inputs_are_made_dense_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy import sparse

    x = sparse.random_array((60, 5), density=0.2, format="csr", rng=np.random.default_rng(0))
    y, who = np.arange(60) % 2, np.array(["Hope", "Visby"])[np.arange(60) // 30]
    dense = as_dataset((x.toarray(), y, who))
    assert torch.equal(as_dataset((x, y, who)).train.x, dense.train.x)
    each = {name: (x[who == name], y[who == name]) for name in ("Hope", "Visby")}
    assert torch.equal(as_dataset(each).train.x, dense.train.x)
    monkeypatch.setattr("hanse.data.samples.DENSE", 299)
    (line,) = lines_of(as_dataset, (x, y, who))
    assert "(60, 5)" in line


def test_numbers_are_called_by_their_column_and_in_order() -> None:
    given = frame().assign(hospital=[2, 10] * 50)
    assert from_frame(given, "ill", "hospital").client_names == ("hospital 2", "hospital 10")
    x, y = np.zeros((60, 2)), np.arange(60) % 2
    assert from_arrays(x, y, [7, 8, 9] * 20).client_names == ("client 7", "client 8", "client 9")
    plain = from_arrays(x, y, np.arange(60) % 3)  # 0, 1, 2 are numbers, not names
    assert plain.client_names == ()
    assert np.bincount(plain.client_of).tolist() == [16, 16, 16]


def test_several_inputs_of_arrays() -> None:
    codes = np.arange(300).reshape(50, 3, 2)
    found = from_arrays({"codes": codes, "size": np.ones((50, 1))}, np.arange(50) % 2, test=0.0)
    parts = found.inputs.split(found.train.x)
    assert parts["codes"].dtype == torch.int64
    assert torch.equal(parts["codes"], torch.from_numpy(codes))
    assert len(found.test) == 0


def test_samples_of_several_inputs_that_cannot_be_are_refused() -> None:
    x = torch.zeros(3, 2)
    wrong: list[dict[str, Any]] = [
        {"a": x, "b": torch.zeros(4, 2)}, {"a": torch.tensor([[2**24 + 1]])}, {"a": np.array(["x"])}, {"a b": x}, {},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(UserError):
            join(given)
    both, other = (Samples({name: x}, torch.zeros(3)) for name in "ab")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the train samples'"):
        Dataset("odd", both, other, None, (2,))


class Items(TorchDataset[Any]):
    def __init__(self, item: Any, length: int = 30) -> None:
        self.item, self.length = item, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


def test_data_sets_of_pytorch() -> None:
    half = TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20) % 3)
    found = from_torch({"north": half, "south": half}, test=0.0)
    assert (found.client_names, found.num_classes) == (("north", "south"), 3)
    assert torch.equal(found.train.x, torch.cat([half.tensors[0]] * 2))
    named = from_torch(Items(lambda i: {"image": torch.full((1, 2), float(i)), "label": i % 2}), "label", test=0.0)
    assert torch.equal(named.train.x[:, 0, 0], torch.arange(30.0))
    several = from_torch(Items(lambda i: ({"a": torch.ones(2), "b": torch.tensor([i])}, float(i))), test=0.0)
    assert (several.inputs.shapes, several.num_classes) == ({"a": (2,), "b": (1,)}, None)
    for item, target, words in (
        (lambda i: torch.ones(2), None, "its items must be"),
        (lambda i: {"a": torch.ones(2)}, None, "data.source.target: is needed"),
        (lambda i: {"a": torch.ones(2)}, "y", "data.source.target: 'y'"),
        (lambda i: (torch.ones(1 + i // 1024), i), None, "cannot be put together"),  # from one batch to the next
    ):
        with pytest.raises(UserError, match=words):
            from_torch(Items(item, 1030), target)


def test_data_sets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra 'llm'")
    given = datasets.Dataset.from_pandas(frame())
    found = as_dataset(datasets.DatasetDict({"train": given, "test": given}), "ill", "hospital")
    assert torch.equal(found.test.x, torch.tensor(frame()[["age", "smoker"]].to_numpy(dtype=np.float32)))
    assert found.client_names == ("General", "Hope", "St Mary")


def test_a_frame_for_each_client() -> None:
    apart = {name: own.drop(columns="hospital") for name, own in frame().groupby("hospital", sort=False)}
    ours, theirs = as_dataset(apart, target="ill"), from_frame(frame(), "ill", "hospital")
    assert ours.client_names == theirs.client_names
    assert torch.equal(ours.train.x, theirs.train.x)
    apart["Hope"] = apart["Hope"].rename(columns={"age": "years"})
    for given, options in ((apart, {}), (apart["Hope"], {"test": apart["St Mary"], "features": ["years"]})):
        [line] = lines_of(as_dataset, given, target="ill", **options)
        assert "years" in line


def spoilt(rows: Any, column: str, value: Any) -> pd.DataFrame:
    given = frame().astype({column: object}) if not isinstance(value, float) else frame()
    given.loc[rows, column] = value
    return given


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        (spoilt([3, 4, 60], "age", float("nan")), {}, "'age'"),
        (frame().assign(age=None), {}, "'age': has no value in any row"),
        (spoilt([7], "age", "unknown"), {}, "'age': holds float, str values, such as 'unknown' in 1 row"),
        (pd.concat([frame(), frame()[["age"]]], axis=1), {}, "'age'"),
        (spoilt([7], "hospital", None), {}, "'hospital'"),
        (spoilt([7], "hospital", "  "), {}, "'hospital'"),
        (spoilt([7], "ill", None), {}, "'ill'"),
        (spoilt([7], "ill", "Yes "), {}, "'Yes ' (1 row) and 'yes' (25 rows)"),
        (frame(), {"target": "sick"}, "data.source.target: 'sick'"),
        (frame(), {"target": ["age", "ill"]}, "data.source.target: ['age', 'ill']: must be one column; several"),
        (frame(), {"client": "hospitl"}, "data.source.client_column: 'hospitl': frame has no such column; did you"),
        (frame(), {"client": "ill"}, "data.source.client_column: 'ill'"),
        (frame(), {"features": ["age", "ill"]}, "data.source.features: 'ill'"),
        (spoilt([1, 2], "hospital", "Tiny"), {}, "client 'Tiny' has 2 rows, fewer than data.source.min_samples"),
        (frame().assign(ill=[0.0, 1.0] * 50), {}, "astype(int)"),
        (frame().assign(ill=[f"case {i}" for i in range(100)]), {}, "100 different labels"),
        (spoilt([7], "age", float("inf")), {}, "'age': no finite number in 1 row (the first is row 7): 1 of client"),
        (spoilt([7], "age", float("inf")), {}, "make them gaps"),  # which "auto" does not
        (spoilt([7], "ill", Decimal("sNaN")), {}, "'ill': no target in 1 row"),
        (pd.concat({"all": frame()}, axis=1), {}, "the column ('all', 'hospital') has several names"),
    ],
)
def test_wrong_frames_are_refused_in_one_line(given: pd.DataFrame, options: dict[str, Any], told: str) -> None:
    [line] = lines_of(from_frame, given, **{"target": "ill", "client": "hospital", **options})
    assert told in line
    assert told[0] != "'" or "row" in line or "column" in line


def test_wrong_arrays_are_refused_in_one_line() -> None:
    x, y, who = np.zeros((40, 3)), np.arange(40) % 2, ["a", "b"] * 20
    gap, two = x.copy(), x[:, :2]
    gap[[3, 5], 1] = np.nan
    for call, given, start in (
        (from_arrays, (x, y[:30]), "data: arrays: 40 inputs and 30 targets"),
        (from_arrays, (x, y, who[:30]), "data: arrays: 30 clients and 40 targets"),
        (as_dataset, ((x, y, who, who[:30]),), "data: tuple: 30 units and 40 targets"),
        (from_torch, (TensorDataset(torch.zeros(0, 2), torch.zeros(0)),), "data: torch: has no items"),
        (as_dataset, ({"a": from_arrays(x, y)},), "data: client 'a': is a Dataset of several sets"),
        (as_dataset, ({"a": (x, y), "b": (x[:0], y[:0])},), "data: dict: client 'b' has no rows"),
        (from_arrays, (gap, y, who), "data: arrays: features (column 1): no finite number in 2 rows"),
        (as_dataset, ({"a": (x, y), "b": (two, y)},), "data: dict: client 'b': its inputs are floats of shape [2]"),
        (as_dataset, ({"a": (x, y), "b": (x.astype(int), y)},), "data: dict: client 'b': its inputs are whole numbers"),
        (from_arrays, (x.astype(object), y), "data: arrays inputs are an array of object, such as 0.0"),
        (from_arrays, (torch.tensor(x) + 0j, y), "data: arrays: inputs: are complex128"),
        (from_arrays, (x, torch.tensor(y) + 0j), "data: arrays: targets: are complex64"),
        (as_dataset, (frame(),), "data.source.target: is needed for a table (DataFrame)"),
    ):
        [line] = lines_of(call, *given)
        assert line.startswith(start)
    assert lines_of(as_dataset, (x, y), client="who")[0].startswith("data.source.client_column: is for tables")
    assert "hanse.data.Dataset" in lines_of(as_dataset, 3)[0]


def test_a_function_by_its_import_path_may_return_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("hanse_test_own")
    module.patients = frame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hanse_test_own", module)
    source = {"name": "hanse_test_own:patients", "target": "ill", "client_column": "hospital"}
    data = build(DataSpec(source=source))
    assert (data.names, data.sizes.tolist()) == (("General", "Hope", "St Mary"), [16, 24, 40])
    assert build(DataSpec(source=source, clients=2)).num_clients == 2
    dealt = build(DataSpec(source={**source, "client_column": None, "features": ["age"]}, clients=4, partition="iid"))
    assert (dealt.sizes.tolist(), dealt.names) == ([20] * 4, ())


def test_data_of_many_clients_take_as_long_as_their_rows() -> None:
    def seconds(clients: int) -> float:
        draw, who = np.random.default_rng(0), np.repeat(np.arange(clients), 6)
        table = {"age": draw.normal(size=len(who)), "kind": draw.choice(["a", "b"], len(who)), "hospital": who}
        given = pd.DataFrame({**table, "ill": draw.choice(["yes", "no"], len(who))})
        began = time.process_time()
        from_frame(given, "ill", "hospital", prepare="auto", min_samples=1)
        return time.process_time() - began

    seconds(100)
    assert seconds(4000) < 16 * seconds(500)


def test_short_floats_of_torch_are_what_they_were() -> None:
    x = torch.tensor([[1.0], [0.1], [3e38]] * 20, dtype=torch.bfloat16)
    assert torch.equal(from_arrays(x, [0, 1, 1] * 20, test=0.0).train.x, x.float())


@pytest.mark.filterwarnings("error")
def test_arrays_that_may_not_be_written_are_copied_without_a_warning() -> None:
    x, y = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32), np.arange(40) % 2
    x.flags.writeable = y.flags.writeable = False  # as columns of a frame are
    found = from_arrays(x, y)
    assert found.train.y.tolist() != []
    found.train.x.zero_()
    assert x.any()
