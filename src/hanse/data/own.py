"""The user's own data, in many forms.

:func:`as_dataset` takes a pandas DataFrame, numpy arrays or tensors, a PyTorch data set, a Hugging Face data set, or a
dictionary with one of them for each client, and returns a :class:`hanse.data.dataset.Dataset`. ``hanse.run(...,
data=...)`` uses it.

A table has a column to predict. If it holds data of several clients, it also has a column with the client of each row.
Unusable data are refused, with messages that name the column, the client and the number of rows. pandas and Hugging
Face's ``datasets`` are not imported: whoever has such an object has installed the library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, gated
from hanse.base.factories import whole_number
from hanse.base.plain_text import quantity
from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, stratified_split
from hanse.data.doubts import MOST_COLUMNS, Coded, of_clients, of_columns, of_inputs, of_names, of_near_rows, of_targets
from hanse.data.encoding import Prepare, Statistics
from hanse.data.frames import Asked, Features, Rows, is_frame, names_of, of_frame
from hanse.data.kinds import Column, Held, natural_order
from hanse.data.labels import Labels, Renamed, classes_of, is_float, target_column
from hanse.data.samples import Samples, array_of, as_tensors, unfinite
from hanse.data.units import Cut, Divisible, at_several, numbered, rows_of_each, shrunk, times_of, units_of

FORMS = (
    "a hanse.data.Dataset, a pandas DataFrame, arrays (x, y), (x, y, clients) or (x, y, clients, units), a "
    "torch.utils.data.Dataset or DataLoader, a Hugging Face data set, or a dictionary with one of these for each client"
)


@gated("data")
def as_dataset(
    given: Any,
    target: Column | None = None,
    client: Column | None = None,
    features: Features | None = None,
    *,
    test: float | Any = 0.2,
    min_samples: int = 10,
    seed: int = 0,
    name: str = "",
    prepare: Any = None,
    statistics: Statistics = "own",
    group: Column | None = None,
    time: Column | None = None,
    cut: Cut = "each_client",
    labels: Labels | None = None,
) -> Dataset:
    """Return a data set made from data in any of this module's forms.

    * A pandas DataFrame has one sample per row. A column of floats is a regression target. Anything else (integers,
      strings, booleans) holds classes, which are numbered in sorted order.
    * Arrays ``(x, y)``, ``(x, y, clients)`` or ``(x, y, clients, units)`` are inputs ``[n, ...]``, numpy or tensors (a
      dictionary of them by name for a model with several inputs), targets ``[n]`` or ``[n, d]``, the client of each
      sample, as names or numbers (None: not named), and what it is of, such as its patient. Inputs that are floats are
      features; integers are tokens (for an embedding).
    * Items of a ``torch.utils.data.Dataset`` are pairs ``(x, y)``, where x may be a dictionary of tensors by name, or
      one dictionary with ``target`` among its keys. All items are read at once.
    * A Hugging Face ``Dataset``, or a ``DatasetDict`` with "train" and "test", is read as the table that it is; columns
      of lists or images are to be given as arrays.
    * A dictionary has one of these for each client, by the clients' names.

    Args:
        given: a :class:`hanse.data.dataset.Dataset`, which is returned unchanged, or data to convert.
        target: the column or key to be predicted; needed for tables.
        client: the column with the client of each row, for tables only. Clients are numbered in sorted order. None:
            ``[data] partition`` distributes the rows.
        features: the columns of features, for tables only. None: all other columns.
        test: other data of the same form, or a number from 0 to below 1: the share of each client's samples that
            becomes the test set, with the same share of each class.
        min_samples: the fewest samples that a client may have.
        seed: the seed that determines which samples are held out for testing.
        name: the name of the data in messages and records. Empty: the name of their type.
        prepare: how the columns of a pandas table become numbers. "auto" fills gaps, scales numbers, and makes columns
            of words and dates. The alternative is a scikit-learn transformer such as a ``ColumnTransformer``, which is
            fitted without the test set. None: the columns are numbers already.
        statistics: on which rows ``prepare`` is fitted: each client's "own" rows, or the "pooled" rows of all clients.
        group: the column or key that says what each row is of, such as its patient: no split divides one, and intervals
            count them. Equal values are one unit, at all clients. "none": every row is a unit of its own. None: not
            said, and data that look otherwise are told so. Arrays have units of their own.
        time: the column or key that says when a row was observed, a date or a number: later rows are never trained on.
        cut: with ``time``, whether each client's rows are cut at a date of their own ("each_client"), or all at one
            date ("all_clients").
        labels: what labels are to be called that clients call otherwise, such as ``{"krank": "ill"}``; in a dictionary
            under a client's name for that client alone, as ``{"Kiel": {"1": "ill", "2": "well"}}``.

    Raises:
        UserError: an unknown form, column names for data that are not a table, a column that does not exist, holds no
            numbers or has gaps, lengths that differ, or a client with too few samples. There is one line for each
            mistake.

    Examples:
        >>> import numpy as np
        >>> from hanse.data import as_dataset
        >>> x = np.arange(40.0).reshape(20, 2)  # 20 samples of two features
        >>> y = ["ill", "well"] * 10
        >>> data = as_dataset((x, y, ["Bremen"] * 10 + ["Visby"] * 10))
        >>> data.client_names, data.num_classes
        (('Bremen', 'Visby'), 2)
        >>> len(data.train), len(data.test)  # a fifth of each client's samples is held out
        (16, 4)
    """
    called = name or type(given).__name__
    if isinstance(given, Dataset):
        return given
    if isinstance(given, str | Path):
        raise UserError(
            f"data: '{given}': is a name: give what a file holds, as pandas.read_csv('{given}') reads it; a source of "
            "hanse is named in the experiment, as data.source"
        )
    if _is_hugging_face(given) and isinstance(given, Mapping):
        if "train" not in given:
            raise UserError(f"data: {called}: has the splits {', '.join(given)}; 'train' is needed")
        test = given.get("test", test) if isinstance(test, int | float) else test
        given = given["train"]
    if prepare is None and statistics != "own":
        raise UserError(f"statistics: '{statistics}': has no effect without prepare; leave it out")
    renamed = None if labels is None else Renamed(labels)
    how = None if prepare is None else Prepare(prepare, statistics)
    asked = Asked(target, client, features, group, time, how, renamed)
    rows = _any(given, asked, called)
    tested = None if isinstance(test, int | float) else _any(test, asked, f"{called}, test")
    if renamed is not None:
        renamed.refuse_unused()
    return _dataset(rows, test if tested is None else tested, min_samples, seed, called, cut, group is not None)


def as_samples(given: Any, target: Column | None, name: str) -> tuple[Samples, int | None]:
    """Return all samples of data in any form, and the number of classes (None: regression).

    This is for the data of one party that are not split further, such as the server's set.

    Args:
        given: any form of :func:`as_dataset` that is not already divided into train and test sets.
        target: the column or key of the targets, for forms that have one.
        name: what the data are called in messages.

    Raises:
        UserError: an unknown form, or unusable samples.
    """
    rows = _any(given, Asked(target), name)
    y, classes, _ = classes_of(rows.y, rows.x, f"data: {name}")
    samples = _samples(replace(rows, y=y), f"data: {name}", classes)
    if len(samples) == 0:
        raise UserError(f"data: {name}: has no rows")
    return samples, classes


# ---- what was given, read


def _any(given: Any, asked: Asked, name: str, client: str | None = None) -> Rows:
    """Return the samples of any form that is one set, of one ``client`` if it is named; of a dictionary, those of all
    its clients.
    """
    if isinstance(given, Dataset) or (_is_hugging_face(given) and isinstance(given, Mapping)):
        raise UserError(f"data: {name}: is a {type(given).__name__} of several sets; give one, such as its test set")
    if _is_hugging_face(given):
        given = given.to_pandas()
    if is_frame(given):
        _needed(asked.target, name)
        return of_frame(given, asked, name)
    if isinstance(given, Mapping):
        if asked.client is not None:
            raise UserError(f"data.source.client_column: '{asked.client}': a dictionary has a key for each client")
        return _of_clients(given, asked, name)
    keyed = isinstance(given, torch.utils.data.Dataset | torch.utils.data.DataLoader)  # whose items may be dictionaries
    takes = {"target", *(("group", "time") if keyed else ("labels",) if isinstance(given, tuple | list) else ())}
    options = {*asked.named, *(key for key in ("features", "prepare", "labels") if getattr(asked, key) is not None)}
    if odd := sorted(options - takes):
        raise UserError(
            f"data.source.{odd[0]}: is for tables, or dictionaries of tables by their owners, and {name} is a "
            f"{type(given).__name__}; arrays are (x, y, clients, units)"
        )
    if isinstance(given, Samples):
        units = None if given.units is None else given.units.numpy().astype(np.str_)
        rows = Rows(given.inputs.split(given.x) if given.inputs else given.x, given.y, units=units)
    elif isinstance(given, tuple | list) and len(given) in (2, 3, 4):
        rows = _of_arrays(given, asked, name, client)
    elif keyed:
        rows = _of_torch(given, asked, name)
    else:
        raise UserError(f"data: a {type(given).__name__}: must be {FORMS}")
    inputs = rows.x if isinstance(rows.x, Mapping) else {"inputs": rows.x}
    for what, values in {**inputs, "clients": rows.owner, "units": rows.units}.items():
        if values is not None and (np.ndim(values) == 0 or len(values) != len(rows)):
            count = len(values) if np.ndim(values) else 0
            raise UserError(f"data: {name}: {count} {what} and {len(rows)} targets; one for each sample is needed")
    return rows


def _is_hugging_face(given: Any) -> bool:
    """Return whether this is a data set, or a dictionary of splits, of Hugging Face's ``datasets``."""
    return type(given).__module__.split(".")[0] == "datasets"


def _needed(target: Column | None, name: str) -> Column:
    """Return the target column, which a table cannot do without."""
    if target is None:
        raise UserError(f"data.source.target: is needed for a table ({name}): the column to be predicted")
    return target


def _of_arrays(given: Sequence[Any], asked: Asked, name: str, client: str | None = None) -> Rows:
    """Return ``(x, y)``, ``(x, y, clients)`` or ``(x, y, clients, units)`` as samples; lists become arrays."""
    x, y, clients, of = (*given, None, None)[:4]
    where = f"data: {name}"
    x = {part: array_of(one, f"{where}: input '{part}'") for part, one in x.items()} if isinstance(x, Mapping) else x
    x = x if isinstance(x, Mapping) else array_of(x, f"{where}: inputs")
    owner = None if clients is None else names_of(clients, f"{where}: clients", plain_numbers=True)
    y = array_of(y, f"{where}: targets")
    if np.ndim(y) == 0:
        raise UserError(f"{where}: targets: {y!r:.80}: must be an array or a list of one for each sample")
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind not in "biuf":
        y = y[:, 0]
    if asked.labels is not None and y.ndim == 1:
        y = asked.labels.of(y, np.full(len(y), client, object) if owner is None and client else owner)
    if isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype.kind not in "biuf":
        y = target_column(y, owner if owner is not None and len(owner) == len(y) else None, f"{where}: targets")
    units = None if of is None else units_of(of, f"{where}: units")
    columns = _columns_of(x, y) if units is None and asked.group is None else {}
    doubt = of_columns(columns, "", owner, f"{where}: inputs") if columns else ""
    return Rows(x, y, owner, notes=tuple(of_inputs(x, f"{where}: inputs")), units=units, doubt=doubt)


def _columns_of(x: Any, y: Any) -> dict[Any, Coded]:
    """Return the columns of arrays ``x [n, d]`` and ``y [n]`` by number, the targets under ""; empty for others."""
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or not x.shape[1] <= MOST_COLUMNS or x.dtype.kind not in "biuf":
        return {}
    return {"": Coded.of(y if y.dtype.kind in "biuf" else y.astype(np.str_)), **dict(enumerate(map(Coded.of, x.T)))}


def _of_torch(dataset: Any, asked: Asked, name: str) -> Rows:
    """Return all items of a PyTorch data set, or of the batches of a ``DataLoader``."""
    xs, ys, beside, batches = list[Any](), list[Tensor](), dict[str, list[Any]](), dataset
    if not isinstance(dataset, torch.utils.data.DataLoader):
        own = torch.Generator()  # PyTorch's would be moved on
        batches = torch.utils.data.DataLoader(dataset, batch_size=1024, generator=own, collate_fn=_together)
    with gated(f"data: {name}: its items cannot be put together"):
        for batch in batches:
            if isinstance(batch, Mapping):
                _needed(asked.target, name)
                if lacks := next((key for key, column in asked.named.items() if column not in batch), None):
                    raise UserError(f"data.source.{lacks}: {asked.named[lacks]!r}: no key of the items of {name}")
                named = asked.named.values()
                x = {key: one for key, one in batch.items() if key not in named}
                for key, column in asked.named.items():
                    beside.setdefault(key, []).extend(batch[column] if key != "target" else ())
                batch = (x if len(x) > 1 else next(iter(x.values()), None), batch[asked.target])
            if not isinstance(batch, list | tuple) or len(batch) != 2 or not isinstance(batch[1], Tensor):
                raise UserError(
                    f"data: {name}: its items must be (x, y), x a tensor or a dictionary of tensors, or dictionaries "
                    "with data.source.target among their keys"
                )
            xs.append(batch[0])
            ys.append(batch[1])
        if not ys:
            raise UserError(f"data: {name}: has no items")
        y = torch.cat(ys)
        # an item raised StopIteration, which ends a loop
        if batches is not dataset and hasattr(dataset, "__len__") and len(y) != len(dataset):
            raise UserError(f"data: {name}: only {len(y)} of {len(dataset)} items could be read")
        several = isinstance(xs[0], Mapping)
        whole = {part: torch.cat([one[part] for one in xs]) for part in xs[0]} if several else torch.cat(xs)
    units = units_of(beside["group"], f"data: {name}: units") if beside.get("group") else None
    time = times_of(np.asarray(beside["time"]), f"data: {name}: times") if beside.get("time") else None
    return Rows(whole, y, units=units, time=time)


def _together(items: list[Any]) -> Any:
    """Return items as one batch, as PyTorch does, which drops the mask of a masked array in silence."""
    for item in items:
        parts = item.values() if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else ()
        if any(np.ma.is_masked(part) for part in parts):
            raise ValueError("an item has masked entries; fill them")
    return torch.utils.data.default_collate(items)


def _of_clients(given: Mapping[Any, Any], asked: Asked, name: str) -> Rows:
    """Return the samples of all clients, one after another, in the dictionary's order. Frames are read as one table:
    all clients' classes have the same numbers, and messages name the client of a row.
    """
    if not given:
        raise UserError(f"data: {name}: has no clients")
    names, parts = names_of(list(given), f"data: {name}").tolist(), list(given.values())
    called, frames = [f"client '{client}'" for client in names], all(map(is_frame, parts))
    for k, who in enumerate(called):
        if not frames:
            with gated(f"data: {name}: {who}"):
                parts[k] = _any(parts[k], asked, who, names[k])
        if len(parts[k]) == 0:
            raise UserError(f"data: {name}: {who} has no rows: leave it out")
    owner = np.repeat(np.array(names, dtype=object), [len(one) for one in parts])
    if not frames:
        return replace(_joined(parts, called, name), owner=owner)
    target, first = _needed(asked.target, name), parts[0]
    for who, frame in zip(called, parts, strict=True):
        if target in frame and target in first and (kind := _kind(frame[target])) != _kind(first[target]):
            raise UserError(f"data: {name}: column '{target}': {who}: holds {kind}, unlike '{names[0]}'")
    return of_frame(_concatenated(parts, called, name), asked, name, owner)


def _joined(parts: Sequence[Rows], called: Sequence[str], name: str) -> Rows:
    """Return several sets of samples as one, without owners, with the first one's notes.

    Raises:
        UserError: what they hold differs; put together, unlike values would become others.
    """

    def joined(arrays: Sequence[Any], what: str) -> Any:
        """Return the arrays of all sets as one, None if none has any."""
        if all(map(is_frame, arrays)):
            return _concatenated(arrays, called, name)
        if isinstance(arrays[0], Held):
            likes = [one.like for one in arrays if one.like != "nothing"]
            if len({*likes}) > 1:
                raise UserError(f"data: {name}: {called[1]}: its {what} are {likes[1]}, in {called[0]} {likes[0]}")
            return Held.joined(*arrays)
        kinds = ["none" if one is None else f"{_kind(one)} of shape {list(one.shape[1:])}" for one in arrays]
        if odd := next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None):
            raise UserError(
                f"data: {name}: {called[odd]}: its {what} are {kinds[odd]}, those of {called[0]} are {kinds[0]}: "
                "make them all alike"
            )
        if all(isinstance(one, Tensor) for one in arrays):
            return torch.cat(list(arrays))
        return None if arrays[0] is None else np.concatenate([np.asarray(one) for one in arrays])

    inputs = [p.x if isinstance(p.x, Mapping) else {"": p.x} for p in parts]
    if len(kinds := {tuple(own) for own in inputs}) > 1:
        told = ", ".join(sorted(map(str, kinds)))
        raise UserError(f"data: {name}: the samples have different inputs: {told}")
    x = {k: joined([own[k] for own in inputs], f"values of '{k}'" if k else "inputs") for k in inputs[0]}
    y, units, time = (joined([getattr(p, key) for p in parts], what) for key, what in (
        ("y", "targets"), ("units", "units"), ("time", "times")))  # fmt: skip
    return replace(parts[0], x=x.get("", x), y=y, units=units, time=time)


def _concatenated(frames: Sequence[Any], called: Sequence[str], name: str) -> Any:
    """Return frames of several owners as one. Raises UserError for other columns than the first one has."""
    import pandas  # somebody has made frames with it

    first = frames[0]
    for who, frame in zip(called, frames, strict=True):
        if list(frame.columns) != list(first.columns):
            what = ", ".join(sorted(set(map(str, frame.columns)) ^ set(map(str, first.columns)))) or "another order"
            raise UserError(f"data: {name}: {who}: other columns than {called[0]} has: {what}")
    return pandas.concat(frames, ignore_index=True)


def _kind(values: Any) -> str:
    """Return what an array, a tensor or a column holds, in words."""
    kind = "f" if is_float(values) else (values.numpy() if isinstance(values, Tensor) else values).dtype.kind
    return {"f": "floats", "i": "whole numbers", "u": "whole numbers", "b": "truth values"}.get(kind, "words")


# ---- a data set of it

_TEST = "the test set"
"""What test samples are called in messages, and the owner of those that name none."""


def _dataset(rows: Rows, test: float | Rows, min_samples: int, seed: int, name: str, cut: Cut, said: bool) -> Dataset:
    """Return the checked data set: clients are numbered in the order of their names, and the test set is cut off.

    Args:
        test: the share of each client's samples that is held out, or the test samples.
        min_samples: the fewest samples that a client may have.
        seed: the seed that decides which samples are held out.
        name: what the data are called.
        cut: how times divide the rows, if they have some.
        said: whether it is said of what the rows are, so that nobody need doubt it.
    """
    where, n, owned = f"data: {name}", len(rows), rows.owner is not None
    whole_number("data.source.min_samples", min_samples, 0)
    whole_number("seed", seed, 0)
    if n == 0:
        raise UserError(f"{where}: has no rows")
    if isinstance(test, Rows):
        owner, owned = rows.owner, owned and test.owner is not None
        if owner is not None:
            owner = np.concatenate([owner, np.full(len(test), _TEST, object) if test.owner is None else test.owner])
        rows = replace(_joined([rows, test], ("the train set", _TEST), name), owner=owner)
    numbers, classes, called_labels = classes_of(rows.y, rows.x, where)
    rows = replace(rows, y=numbers)
    names = () if rows.owner is None else tuple(sorted(set(rows.owner[:n].tolist()), key=natural_order))
    place = {client: i for i, client in enumerate(names)}
    ids = None if rows.owner is None else np.array([place.get(client, -1) for client in rows.owner], np.int64)
    units = None if rows.units is None else numbered(rows.units)
    if isinstance(test, Rows):
        kept, later = np.arange(n), np.arange(n, len(rows))
        if units is not None and (shared := np.intersect1d(units[:n], units[n:])).size:
            one = rows.units[int(np.flatnonzero(units == shared[0])[0])] if rows.units is not None else ""
            both = quantity(shared.size, "unit is", "units are")
            raise UserError(f"{where}: {both} in the train and the test set, such as {one!r:.80}")
    else:
        labels = np.asarray(rows.y) if classes is not None and np.ndim(rows.y) == 1 else None
        owner = np.zeros(n, np.int64) if ids is None else ids
        kept, later = _held_out(Divisible(owner, labels, units, rows.time, cut), test, seed)
        if not len(kept):
            raise UserError(f"{where}: no row is left to train on: too few units or dates; lower data.source.test")
    note, at = "", where
    if rows.prepare is not None:
        note, at = rows.prepare.note, f"{where}: data.source.prepare"
        trained = np.isin(np.arange(len(rows)), kept)
        rows = replace(rows, x=rows.prepare.features(rows.x, rows.owner, trained, where))
    samples = replace(_samples(rows, at, classes), units=None if units is None else torch.from_numpy(units))
    if ids is not None and len(few := np.flatnonzero(np.bincount(ids[:n], minlength=len(names)) < min_samples)):
        least, more = f"data.source.min_samples = {min_samples}", quantity(len(few) - 1, "more client")
        raise UserError(
            f"{where}: client '{names[few[0]]}' has {quantity(int((ids == few[0]).sum()), 'row')}, fewer than {least}"
            f"{f', as {more} more' * (len(few) > 1)}; leave it out, or lower data.source.min_samples"
        )
    called = () if names == tuple(map(str, range(len(names)))) else names  # numbers are no names
    y = samples.y[:n].numpy()
    there = [called_labels[k] for k in np.unique(y[y >= 0]).tolist()] if classes is not None else ()
    notes = [*rows.notes, *of_targets(y, classes, where), *of_names(names, there, where)]
    if not isinstance(test, Rows) and (units is not None or rows.time is not None):
        notes += shrunk({"the server": (len(later), int(n * test))})
    floats = samples.x[:n].numpy() if samples.x.is_floating_point() and not samples.inputs else None
    if classes is not None and ids is not None and y.ndim == 1:
        notes += of_clients(floats, y, ids[:n], names, called_labels, where)
    if units is not None and ids is not None and 2 * (several := at_several(units, ids)) > units.max() + 1:
        notes.append(
            f"{where}: {several} of {units.max() + 1} units are at several clients, and each is taken as one: if each "
            "client numbers its own, put its name before the number"
        )
    doubt = rows.doubt
    if not (doubt or said) and units is None and y.ndim == 1 and floats is not None and floats.ndim == 2:
        doubt = of_near_rows(floats, Coded.of(y), where)
    own, tested = (samples.take(torch.from_numpy(index)) for index in (kept, later))
    return Dataset(
        name, own, tested, classes, tuple(samples.x.shape[1:]), note=note, client_names=called, notes=tuple(notes),
        client_of=None if ids is None else ids[kept], test_client_of=ids[later] if ids is not None and owned else None,
        time=None if rows.time is None else rows.time[kept], cut=cut, doubt=doubt,
        left_out=len(samples) - len(kept) - len(later),
    )  # fmt: skip


def _samples(rows: Rows, where: str, classes: int | None) -> Samples:
    """Return the samples as tensors. Raises UserError for numbers that are not finite."""
    samples = as_tensors(Samples(rows.x, rows.y), where, classes=classes is not None)
    if line := unfinite(samples, rows.owner):
        raise UserError(f"{where}: {line}")
    return samples


def _held_out(of: Divisible, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that are trained on and those of the test set: the same share of each client's and of each class.

    Each client's are drawn from its own stream, so they do not depend on the other clients' rows, unless units or times
    decide (:mod:`hanse.data.units`).

    Raises:
        UserError: ``share`` is not a number from 0 to below 1.
    """
    if not 0 <= share < 1:
        raise UserError(f"data.source.test: {share!r}: must be a share of the rows, 0 or more and below 1")
    if of.units is not None or of.time is not None:
        return of.split(share, stream(seed, "held-out units"))
    kept, cut = [], []
    for client, span in enumerate(rows_of_each(of.owner)):
        own = None if of.labels is None else of.labels[span]
        rest, taken = stratified_split(own, len(span), int(len(span) * share), stream(seed, "held-out", client=client))
        kept.append(span[rest])
        cut.append(span[taken])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(cut))
