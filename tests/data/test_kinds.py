"""No input becomes something else in silence: columns of any values, types and containers, drawn at random.

The oracle is written anew here: what training gets equals the numbers that were written, or it was refused with the
column's name, or a note names the column.
"""

import datetime
import re
import unicodedata
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import strategies as st
from own_forms import draws, from_arrays, from_frame, holds

from hanse.base.errors import UserError
from hanse.data import Dataset, Samples
from hanse.data.encoding import spread
from hanse.data.kinds import alike, held
from hanse.data.own import as_dataset

ROWS = 40
WHO = ["Hope", "Visby"] * (ROWS // 2)
ILL = [0, 0, 1, 1] * (ROWS // 4)

# ---- what people have in a column

plain = st.one_of(
    st.integers(0, 9), st.integers(-1000, 1000), st.floats(-10, 10), st.floats(0, 1, width=16),
    st.sampled_from([0.0, 1.0, 1e-3, 0.1]),
)  # fmt: skip
long = st.one_of(
    st.sampled_from([2**24 + 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**20]),
    st.integers(1_700_000_000, 1_700_000_999), st.floats(1.7e9, 1.7e9 + 99), st.sampled_from([1e39, -1e300, 1e-300]),
)  # fmt: skip
odd_numbers = st.sampled_from(
    [True, Decimal("0.5"), Decimal("7"), Fraction(1, 3), np.float32(0.1), np.int8(3), np.float64(2), np.bool_(True)]
)
gaps = st.sampled_from([None, float("nan"), pd.NA, pd.NaT, np.ma.masked, Decimal("nan"), np.float32("nan")])
endless = st.sampled_from([float("inf"), -float("inf"), np.float32("inf")])
numerals = st.one_of(
    st.integers(-99, 9999).map(str), st.floats(-9, 9).map(lambda x: f"{x:.2f}"), st.sampled_from(["1e3", " 4 ", "+5"])
)
seeming = st.one_of(
    st.integers(0, 99).map(lambda x: f"{x},5"), st.integers(1, 99).map(lambda x: f"{x},000"),
    st.integers(1, 99).map(lambda x: f"{x}.000,00"), st.integers(1, 99).map(lambda x: f"{x} %"),
    st.integers(1, 99).map(lambda x: f"\u2212{x}"), st.integers(1, 99).map(lambda x: f"${x}"),
    st.integers(1, 99).map(lambda x: f"<{x}"), st.integers(1, 99).map(lambda x: f"{x}_000"),
    st.integers(1, 99).map(lambda x: f"{x}\u202f000"), st.integers(1, 99).map(lambda x: f"00{x}"),
)  # fmt: skip
words = st.sampled_from(["low", "mid", "high", "B12", "10+ years", "Köln", "a", "A", "ja"])
no_words = st.sampled_from(["n/a", "", " ", "nan", "None", "?", "-", "NA", "inf", "Infinity"])
days = st.integers(1, 28).map(lambda d: f"2024-01-{d:02}")
objects = st.sampled_from(
    [1 + 2j, b"a", [1, 2], {"a": 1}, datetime.date(2024, 1, 31), pd.Timestamp("2024-01-01"), pd.Timedelta("1D"),
     pd.Period("2024-01"), pd.Interval(0, 1), np.zeros(2), object, np.datetime64("2024-01-01"), (1,)]
)  # fmt: skip
families = {
    "plain": plain, "long": long, "odd": odd_numbers, "gap": gaps, "endless": endless, "numeral": numerals,
    "seeming": seeming, "word": words, "no word": no_words, "day": days, "object": objects,
}  # fmt: skip
dtypes = st.sampled_from(
    [None, None, None, object, "float16", "float32", "float64", "int8", "int64", "uint64", "Int64", "Float64",
     "boolean", "bool", "string", "category", "complex128", "datetime64[ns]", "str"]
)  # fmt: skip


@st.composite
def columns(draw: Any, main: tuple[str, ...] = tuple(families), rare: tuple[str, ...] = tuple(families)) -> list[Any]:
    """Values of one family, and with some luck a few of another."""
    pool = draw(st.lists(families[draw(st.sampled_from(main))], min_size=1, max_size=6))
    values = [pool[i] for i in draw(st.lists(st.integers(0, len(pool) - 1), min_size=ROWS, max_size=ROWS))]
    if draw(st.booleans()):
        other = families[draw(st.sampled_from(rare))]
        for row in draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=30)):
            values[row] = draw(other)
    return values


def series(values: list[Any], dtype: Any) -> Any:
    """The values as a pandas column of a type, or None where pandas itself refuses."""
    whole = np.empty(len(values), object)
    whole[:] = [None if v is np.ma.masked else v for v in values]
    try:
        made = pd.Series(whole.tolist() if dtype is None else whole)
        return made if dtype in (None, object) else made.astype(dtype)
    except Exception:
        return None


def missing(value: Any) -> bool:
    if value is None or value is np.ma.masked or value is pd.NA or value is pd.NaT:
        return True
    return isinstance(value, float | np.floating | Decimal) and bool(value != value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal | Fraction | np.number | np.bool_) and not isinstance(value, complex)


def number_of_text(text: str) -> float | None:
    """What a person may read text as: liberal on purpose, and not hanse's own rule."""
    bare = re.sub(r"[\s'’_%$€<>≤≥]", "", text.replace("\u2212", "-")).replace(",", "")
    bare = re.sub(r"\.(?=.*\.)", "", bare)
    try:
        return float(bare) if np.isfinite(float(bare)) else None
    except ValueError:
        return None


def same_numbers(made: np.ndarray, written: list[Any]) -> None:
    """Every number is what was written, up to float32, and different ones are still different."""
    want = np.array([float(v) for v in written])
    span = want.max() - want.min()
    assert np.isfinite(made).all()
    np.testing.assert_allclose(made, want, rtol=1e-6, atol=1e-3 * span + 1e-38)
    exact = {}
    for got, value in zip(made.tolist(), written, strict=True):
        if all(isinstance(one, int | np.integer) for one in written):
            assert exact.setdefault(got, int(value)) == int(value)
            assert got == int(value) or abs(int(value)) > 2**53 or isinstance(value, bool)


# ---- features


def read(door: Callable[..., Dataset], *given: Any, **options: Any) -> tuple[Dataset | None, Sequence[str]]:
    """Return the data set, or None and the lines of its refusal."""
    try:
        return door(*given, **options), ()
    except UserError as wrong:
        return None, wrong.lines


def of_column(column: Any, **options: Any) -> tuple[Dataset | None, Sequence[str]]:
    return read(from_frame, pd.DataFrame({"age": column, "who": WHO, "ill": ILL}), "ill", "who", test=0.0, **options)


@draws
def test_a_column_of_numbers_is_what_was_written_or_refused_by_name(draws: int) -> None:
    def check(values: list[Any], dtype: Any) -> None:
        if (column := series(values, dtype)) is None:
            return
        raw, (found, lines) = column.tolist(), of_column(column)
        if found is not None:
            assert all(map(is_number, raw))
            same_numbers(found.train.x[:, 0].double().numpy(), raw)
            return
        assert all("'age'" in line for line in lines)
        small = [v for v in raw if is_number(v) and not missing(v) and (v == 0 or 1e-2 < abs(v) <= 1000)]
        kinds = {isinstance(v, bool | np.bool_) for v in raw}
        assert len(small) < ROWS or len(kinds) > 1 or dtype == "category"  # nothing is refused without need

    holds(draws, check, values=columns(), dtype=dtypes)


@draws
def test_a_prepared_column_is_its_numbers_or_its_words_or_refused_by_name(draws: int) -> None:
    def check(values: list[Any], dtype: Any) -> None:
        if (column := series(values, dtype)) is None:
            return
        raw, (found, lines) = column.tolist(), of_column(column, prepare="auto", statistics="pooled")
        assert all("'age'" in line for line in lines)
        if found is None:
            return
        x = found.train.x.double().numpy()
        there = np.array([not missing(v) for v in raw])
        known = [v for v in raw if not missing(v)]
        named = [note for note in found.notes if "'age'" in note]
        if str(column.dtype) == "category" or all(isinstance(v, str) and number_of_text(v) is None for v in known):
            kinds = sorted({str(v) for v in known})
            assert x.shape[1] == len(kinds)
            np.testing.assert_array_equal(x, [[str(v) == k and not missing(v) for k in kinds] for v in raw])
        elif all(isinstance(v, str) for v in known):
            assert named
            if x.shape[1] == 1 + (not there.all()):  # read as numbers
                numbers = np.array([float(v) for v in known])
                want = ((numbers - numbers.mean()) / (numbers.std() or 1.0)).clip(-5, 5)
                np.testing.assert_allclose(x[there, 0], want, rtol=1e-4, atol=1e-4)
            else:  # read as words: numbers are the smaller part
                assert sum(number_of_text(v) is not None for v in known) < len(known) / 2
        elif all(isinstance(v, str) or is_number(v) for v in known) and any(isinstance(v, str) for v in known):
            assert named
            assert all(is_number(v) or number_of_text(v) is not None for v in known)
        elif all(map(is_number, known)):
            assert len({isinstance(v, bool | np.bool_) for v in known}) == 1
            assert x.shape[1] == 1 + (not there.all())
            numbers = np.array([float(v) for v in known])
            numbers = numbers / (np.abs(numbers).max() or 1.0)
            want = ((numbers - numbers.mean()) / (numbers.std() or 1.0)).clip(-5, 5)
            np.testing.assert_allclose(x[there, 0], want, rtol=1e-3, atol=1e-3)
            assert (x[~there, 0] == 0).all()
        else:
            assert all(isinstance(v, pd.Timestamp) for v in known)

    holds(draws, check, values=columns(), dtype=dtypes)


def contained(values: list[Any], how: str) -> Any:
    """The values as a container ``[n, 1]``, or None where its library refuses."""
    try:
        if how == "list":
            return [[v] for v in values]
        if how == "list of masked":
            return [np.ma.masked_array([0.0 if missing(v) else v], mask=[missing(v)]) for v in values]
        if how == "masked":
            bare = [0 if missing(v) else v for v in values]
            return np.ma.masked_array(np.array(bare), mask=[missing(v) for v in values])[:, None]
        if how == "tensor":
            return torch.tensor(values)[:, None]
        if how == "tensor with gradient":
            return torch.tensor(values, dtype=torch.float64, requires_grad=True)[:, None]
        if how == "sparse":
            return torch.tensor(values)[:, None].to_sparse()
        if how == "half":
            return torch.tensor(values, dtype=torch.bfloat16)[:, None]
        array = np.array(values) if how == "array" else np.array(values, dtype=how)
        return array[:, None]
    except Exception:
        return None


containers = st.sampled_from(
    ["list", "masked", "list of masked", "array", "tensor", "tensor with gradient", "sparse", "half", "float16",
     "int16", "uint64", "uint8", "longdouble", ">f8", "object", "complex128", "U8", "bool", "datetime64[s]"]
)  # fmt: skip


@draws
def test_an_array_is_what_was_written_or_refused(draws: int) -> None:
    def check(values: list[Any], how: str, door: str) -> None:
        x: Any = contained(values, how)
        if x is None or (how == "sparse" and door == "clients"):  # PyTorch slices no such tensors
            return
        if isinstance(x, np.ndarray) and how not in ("masked", "array", "object"):  # what numpy has made of them
            values = x[:, 0].tolist() if how != "longdouble" else [float(v) for v in x[:, 0]]
        if door == "dataset":
            samples = Samples(x, torch.tensor(ILL))
            found, _ = read(Dataset, "mine", samples, samples, 2, (1,))
        elif door == "clients":
            found, _ = read(as_dataset, {"a": (x[::2], ILL[::2]), "b": (x[1::2], ILL[1::2])}, test=0.0)
        else:
            found, _ = read(from_arrays, {"age": x} if door == "inputs" else x, ILL, WHO, test=0.0)
        if found is None:
            return
        flat = [float("nan") if missing(v) else v for v in values]
        flat = [*flat[::2], *flat[1::2]] if door == "clients" else flat
        if door == "dataset" and not np.isfinite(found.train.x).all():
            return  # hanse.data.build names the row
        assert not any(map(missing, flat))
        assert all(map(is_number, flat))
        got = found.train.x[:, 0].double().numpy()
        if how == "tensor with gradient":
            same_numbers(got, [float(v) for v in flat])
        elif how == "half":
            np.testing.assert_allclose(got, [float(v) for v in flat], rtol=1e-2)
        else:
            same_numbers(got, flat)

    doors = st.sampled_from(["arrays", "clients", "inputs", "dataset"])
    values = columns(("plain", "long", "odd", "gap", "numeral"), ("gap", "odd", "long", "endless", "word"))
    holds(draws, check, values=values, how=containers, door=doors)


# ---- targets and clients


def test_ids_of_many_digits_are_read_to_the_last_one() -> None:
    long = "1" * 40
    assert alike([(long + "2", 0), (long + "3", 0)]) == ""
    assert alike([(long, 0), (f"0{long}.0", 0)]) == f"'{long}' and '0{long}.0'"


def same(value: Any) -> tuple[str, str]:
    """Two values are the same class or client if both parts are equal."""
    value = value.item() if isinstance(value, np.generic) else value
    return type(value).__name__, str(value)


@draws
def test_targets_are_classes_or_numbers_as_written_or_refused(draws: int) -> None:
    def check(values: list[Any], dtype: Any, how: str) -> None:
        column: Any = series(values, dtype)
        if column is None:
            return
        raw = column.tolist()
        if how != "frame":
            column = column.to_numpy() if how == "array" else column if how == "series" else raw
        x = np.arange(float(ROWS))
        if how == "frame":
            found, _ = read(from_frame, pd.DataFrame({"x": x, "age": column, "who": WHO}), "age", "who", test=0.0)
        else:
            found, _ = read(from_arrays, x[:, None], column, WHO, test=0.0)
        if found is None:
            return
        assert not any(map(missing, raw))
        y = found.train.y.numpy()
        if found.num_classes is None:
            assert all(map(is_number, raw))
            assert not any(isinstance(v, bool | np.bool_) for v in raw)
            same_numbers(y.astype(np.float64), raw)
            return
        asked = dtype == "category" and how == "frame"
        assert asked or all(isinstance(v, str | int | np.integer | np.bool_) for v in raw)
        assert (
            len({(same(v), int(c)) for v, c in zip(raw, y, strict=True)}) == len({same(v) for v in raw}) == len(set(y))
        )
        if not asked and any(isinstance(v, str) for v in raw):
            numeral = [v for v in raw if number_of_text(v) is not None]
            assert (
                not numeral
                or all(re.fullmatch(r"\s*[+-]?\d+(\.0*)?(e\d+)?\s*", v) for v in raw)
                or found.notes
                or (len(numeral) < len(raw) / 2)
            )

    doors = st.sampled_from(["frame", "array", "list", "series"])
    check([np.float32(0.1)] * (ROWS - 1) + [np.bool_(True)], None, "list")  # few draws have it
    holds(draws, check, values=columns(), dtype=dtypes, how=doors)


def variants(name: str) -> list[Any]:
    """Other writings of a name that people, programs or encodings make of it."""
    made: list[Any] = [
        f"{name} ", f" {name}", f"\ufeff{name}", f"{name}\u200b", f"{name}\u00a0", unicodedata.normalize("NFD", name),
        name.encode().decode("latin-1"), name.replace(" ", "  "), name.upper(), name.lower(),
    ]  # fmt: skip
    if name.isdecimal():
        made += [int(name), float(name), f"0{name}", f"{name}.0", np.int32(int(name)), Decimal(name)]
    return [one for one in made if one != name or type(one) is not str]


@draws
def test_two_writings_of_one_name_are_refused(draws: int) -> None:
    def check(data: Any, name: str, role: str) -> None:
        other = data.draw(st.sampled_from(variants(name)))
        values = [name if i % 4 < 2 else other for i in range(ROWS)]
        if role == "target" and isinstance(other, Decimal):
            return
        frame = pd.DataFrame({"x": np.arange(float(ROWS)), "who": WHO, "ill": ILL})
        half = np.zeros((20, 1)), ILL[:20]
        door = {
            "clients": lambda: from_frame(frame.assign(who=pd.Series(values, dtype=object)), "ill", "who"),
            "target": lambda: from_frame(frame.assign(ill=pd.Series(values, dtype=object)), "ill", "who"),
            "array": lambda: from_arrays(np.zeros((ROWS, 1)), ILL, values),
            "keys": lambda: as_dataset({name: half, other: half}),
        }[role]
        with pytest.raises(UserError):
            door()

    names = st.sampled_from(["Köln", "St Mary", "Visby", "7", "12", "Åbo"])
    holds(draws, check, data=st.data(), name=names, role=st.sampled_from(["clients", "target", "array", "keys"]))


def test_auto_names_all_columns_that_it_cannot_prepare_at_once() -> None:
    frame = pd.DataFrame({"site": WHO, "day": ["3.4.2024"] * ROWS, "pid": [f"P{i}" for i in range(ROWS)], "ill": ILL})
    frame["empty"], frame["far"] = None, np.inf
    with pytest.raises(UserError) as wrong:
        from_frame(frame, "ill", "site", prepare="auto")
    assert all(any(f"'{c}'" in line for line in wrong.value.lines) for c in ("day", "empty", "far"))
    zones = [pd.Timestamp("2024-03-01", tz=zone) for zone in ("Europe/Berlin", "Europe/London")] * (ROWS // 2)
    with pytest.raises(UserError, match="'seen'"):
        from_frame(frame[["site", "ill"]].assign(seen=pd.Series(zones, dtype=object)), "ill", "site", prepare="auto")


def test_days_of_arrow_are_dates() -> None:
    day = pd.ArrowDtype(pytest.importorskip("pyarrow").date32())
    found = held(pd.Series(pd.to_datetime(["1970-01-02", None])).astype(day), "")
    assert (found.kind, found.values[0], found.gaps.tolist()) == ("dates", 86400, [False, True])


@pytest.mark.parametrize("number", [0.1, 0.4465, 1e-300, -7.0])
def test_a_column_of_one_number_is_that_number_and_no_noise(number: float) -> None:
    assert spread(np.full(39, number)) == (number, 1.0)  # the mean of 39 times .1 lies beside .1
