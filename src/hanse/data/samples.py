"""Samples: inputs and targets as two tensors, the only form of data inside a client.

A model with several inputs (given as a dictionary of tensors) still has one tensor here: all inputs of a sample form
one row, laid out by :class:`Inputs`. Engines, scoring, fingerprints and the network therefore need not know about
several inputs. The model splits the row and passes the inputs to the user's module by name
(:class:`hanse.learning.modules.ByName`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, torch
from hanse.data.kinds import lost, objects, rows_of

# whole numbers up to this one are exact in float32
EXACT = 2**24
# values of a sparse matrix up to which it is made dense: a gigabyte as float32
DENSE = 2**28


@dataclass(frozen=True)
class Input:
    """One of several inputs of a sample.

    Attributes:
        name: the parameter of the model's ``forward`` that receives the input.
        shape: the shape of one sample's input, without the sample axis.
        whole: whether the input holds integers (int64, such as tokens) instead of float32.
    """

    name: str
    shape: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True)
class Inputs:
    """The layout of several inputs in a sample's row.

    Attributes:
        parts: the inputs in order. If it is empty, a sample is a single input, stored unchanged. The object is then
            false.

    Examples:
        >>> both = Samples({"age": torch.zeros(2, 1), "image": torch.ones(2, 4)}, torch.tensor([0, 1]))
        >>> both.x.shape, sorted(both.inputs.split(both.x))
        (torch.Size([2, 5]), ['age', 'image'])
    """

    parts: tuple[Input, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input, by name."""
        return {part.name: part.shape for part in self.parts}

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """Return rows ``[n, width]`` as the inputs that they hold, ``[n, *shape]`` each, by name."""
        cut = zip(self.parts, torch.split(x, [prod(part.shape) for part in self.parts], dim=1), strict=True)
        shaped = {part: own.reshape(len(x), *part.shape) for part, own in cut}
        return {part.name: own.long() if part.whole else own for part, own in shaped.items()}

    def place(self, column: int) -> str:
        """Return, for messages, which input a column of a row belongs to."""
        for part in self.parts:
            if column < prod(part.shape):
                return f"input '{part.name}', column {column}"
            column -= prod(part.shape)
        return f"column {column}"


def join(given: Mapping[str, Any], where: str = "samples") -> tuple[Tensor, Inputs]:
    """Join several inputs into rows of one tensor, and return their layout.

    Args:
        given: tensors or numpy arrays ``[n, ...]`` by name. The name must be one that a function's parameter can have.
        where: the text with which messages begin.

    Returns:
        The rows, float32 ``[n, width]``, and their layout.

    Raises:
        UserError: inputs have different lengths or are not numbers, or a whole number is beyond 16,777,216, which
            float32 cannot hold exactly.
    """
    if not given or not all(isinstance(name, str) and name.isidentifier() for name in given):
        raise UserError(f"{where}: inputs named {list(given)}: must be one or more, named as parameters can be")
    tensors = {name: _as_input(x, f"{where} input '{name}'") for name, x in given.items()}
    lengths = {name: len(x) if x.ndim else 0 for name, x in tensors.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{n} of '{name}'" for name, n in lengths.items())
        raise UserError(f"{where}: inputs of different lengths: {counts}; each sample needs one of each")
    parts = []
    for name, x in tensors.items():
        parts.append(Input(name, tuple(x.shape[1:]), not x.is_floating_point()))
        most = max(-int(x.min()), int(x.max())) if parts[-1].whole and x.numel() else 0
        if most > EXACT:
            raise UserError(f"{where} input '{name}' has whole numbers up to {most}; allowed: {EXACT}")
    rows = torch.cat([x.reshape(len(x), prod(x.shape[1:])).to(torch.float32) for x in tensors.values()], dim=1)
    return rows, Inputs(tuple(parts))


@dataclass(frozen=True)
class Samples:
    """Inputs and targets, one of each for every sample.

    Attributes:
        x: ``[n, ...]``, float32 features or int64 tokens. It may be given as a dictionary of several inputs ``[n,
            ...]`` by name, which the model's ``forward`` gets by these names. It is then stored as rows ``[n, width]``.
        y: classes int64 ``[n]``, classes at each position of a text int64 ``[n, positions]``, or regression targets
            float32 ``[n]`` or ``[n, d]``.
        inputs: where each of several inputs lies in the rows of ``x``. Empty: there is a single input.
        units: int64 ``[n]``, what each sample is of, such as a patient with several rows. No split divides a unit, and
            intervals count units. None: every sample is a unit of its own.

    Examples:
        Two samples of three numbers each, of the classes 0 and 1:

        >>> samples = Samples(torch.zeros(2, 3), torch.tensor([0, 1]))
        >>> len(samples), samples.take(torch.tensor([1])).y
        (2, tensor([1]))

        The samples of a small federation, and the positions of client 2's training share in them:

        >>> from hanse.runs.rehearsal import rehearse
        >>> pool, (mine,) = rehearse().session.data.pool([2], "train")
        >>> pool.x.shape[1:], len(mine) > 0
        (torch.Size([1, 8, 8]), True)
    """

    x: Tensor
    y: Tensor
    inputs: Inputs = field(default=Inputs())
    units: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.x, Mapping):
            rows, inputs = join(self.x)
            object.__setattr__(self, "x", rows)
            object.__setattr__(self, "inputs", inputs)

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> Samples:
        """Return the samples at ``index [m]`` as new tensors."""
        index = index.to(self.x.device)
        units = None if self.units is None else self.units[index.cpu()]
        return Samples(self.x.index_select(0, index), self.y.index_select(0, index), self.inputs, units)

    def to(self, device: torch.device) -> Samples:
        """Return the samples on a device (a ``torch.device``, not its name): this object if they are already there."""
        if self.x.device.type == device.type == self.y.device.type:
            return self
        return Samples(self.x.to(device), self.y.to(device), self.inputs, self.units)

    @staticmethod
    def joined(parts: Sequence[Samples]) -> Samples:
        """Return the samples of one or more parts, one after another. All parts must have the same inputs."""
        x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
        units = [part.units for part in parts if part.units is not None]
        return Samples(x, y, parts[0].inputs, torch.cat(units) if len(units) == len(parts) else None)


def as_tensors(samples: Samples, where: str, *, classes: bool) -> Samples:
    """Convert a user's samples to the form that :class:`Samples` describes.

    Inputs of any floating type become float32, labels of any whole type int64, and regression targets float32. Samples
    that already have this form are returned unchanged.

    Args:
        samples: tensors or numpy arrays.
        where: the text with which messages begin.
        classes: whether the targets are classes.

    Raises:
        UserError: the samples are strings or objects, or integer inputs other than int64, which could be features or
            tokens.
    """
    x = _as_input(samples.x, f"{where} inputs")
    y = _tensor(samples.y, f"{where} {'labels' if classes else 'targets'}")
    if y.is_floating_point():
        y = y.to(torch.float32)
    elif classes:
        y = y.to(torch.int64)
    return samples if x is samples.x and y is samples.y else Samples(x, y, samples.inputs, samples.units)


def _as_input(given: Any, what: str) -> Tensor:
    """Return inputs as float32 features or int64 tokens; refuse types that could mean either."""
    x = _tensor(given, what)
    if x.is_floating_point():
        return x.to(torch.float32)
    if x.dtype != torch.int64:
        kind = str(x.dtype).removeprefix("torch.")
        raise UserError(f"{what} are {kind}; float32 for features, or int64 for tokens, is needed")
    return x


def _tensor(given: Any, what: str) -> Tensor:
    """Return an array or tensor of numbers as a tensor without gradients; refuse strings, objects and anything else."""
    given = _plain(given, what) if isinstance(given, Tensor) else array_of(given, what)
    if isinstance(given, Tensor):
        if given.dtype == torch.float64:
            _refuse_loss(given.cpu().numpy(), what)
        return given
    if isinstance(given, np.ndarray) and given.dtype.kind in "biuf":
        if given.dtype.kind == "f" and given.dtype.itemsize > 4:
            _refuse_loss(given, what)
        # torch knows neither longer floats than float64 nor foreign byte order: numpy converts these first
        kind = "float32" if given.dtype.kind == "f" else given.dtype.newbyteorder("=")
        return torch.from_numpy(np.ascontiguousarray(given.astype(kind, copy=False)))
    held = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else f"a {type(given).__name__}"
    example = f", such as {given.flat[0]!r:.80}" if isinstance(given, np.ndarray) and given.size else ""
    raise UserError(f"{what} are {held}{example}; one tensor or array of numbers is needed")


def _refuse_loss(values: np.ndarray[Any, Any], what: str) -> None:
    """Raise UserError if float32 would lose something of longer floats: of a column ``[n, k]``, or of all together."""
    columns = values.reshape(len(values), -1).T if values.ndim == 2 else values.reshape(1, -1)
    for k, column in enumerate(columns):
        if line := lost(column.astype(np.float64)):
            raise UserError(f"{what}{f' (column {k})' * (values.ndim == 2)}: {line}")


def array_of(given: Any, what: str) -> Any:
    """Return inputs or targets as a plain array or tensor: lists become arrays, and whole numbers of any length int64,
    like tokens.

    Bytes (uint8) stay unchanged: they may be pixels.

    Args:
        given: an array, a masked one, a tensor, a pandas column or a list; or a sparse matrix, which is made dense.
        what: what messages begin with.

    Raises:
        UserError: a sparse matrix is too large, entries are masked, a whole number does not fit into int64, or a list
            is uneven or of several kinds.
    """
    if isinstance(given, Tensor):
        return _plain(given, what).cpu()
    if hasattr(given, "nnz") and hasattr(given, "toarray"):  # of scipy
        if prod(given.shape) > DENSE:
            raise UserError(
                f"{what}: are a sparse matrix of shape {given.shape}: samples are dense, of at most {DENSE:,} values: "
                "take fewer columns, or reduce them, as sklearn's TruncatedSVD does"
            )
        given = given.toarray()
    if hasattr(given, "isna") and given.ndim == 1:  # a pandas column
        return given.to_numpy() if given.dtype.kind in "biuf" and not given.isna().any() else objects(given)
    if isinstance(given, list | tuple):
        if any(len({isinstance(one, kind) for one in given}) > 1 for kind in (str, bool | np.bool_)):
            return objects(given)  # as an array, numbers would become text and truth values numbers
        try:
            masked = any(isinstance(one, np.ma.MaskedArray) for one in given)
            made = np.ma.array(given) if masked else np.asarray(given)
            if made.dtype.kind == "f" and made.size and not np.abs(made).max() < 2**63:
                # numpy makes floats of whole numbers that do not fit into int64
                long = [v for v in np.asarray(given, dtype=object).flat if isinstance(v, int) and abs(v) >= 2**63]
                if long:
                    raise UserError(f"{what}: the whole number {long[0]} does not fit into int64: make ids text")
            given = made
        except ValueError:  # lists of several lengths
            raise UserError(f"{what} are of several lengths: pad or cut them to one length") from None
    if isinstance(given, np.ma.MaskedArray):
        rows = np.flatnonzero(np.ma.getmaskarray(given).reshape(len(given), -1).any(axis=1))
        if len(rows):
            raise UserError(f"{what}: are masked in {rows_of(rows, None)}; fill them, or drop these rows")
        given = given.data
    if not isinstance(given, np.ndarray):
        return given
    if given.dtype == np.uint64 and given.size and given.max() > np.iinfo(np.int64).max:
        raise UserError(f"{what}: whole numbers up to {given.max()} do not fit into int64: make ids text")
    # a tensor would share memory that may not be written to
    given = given if given.flags.writeable else given.copy()
    return given.astype(np.int64) if given.dtype.kind in "iu" and given.dtype != np.uint8 else given


def _plain(given: Tensor, what: str) -> Tensor:
    """Return a tensor without gradients, of a type that numpy has. Raises UserError for one that is not dense, or
    complex.
    """
    if type(given).__name__ == "MaskedTensor":
        raise UserError(f"{what}: are a masked tensor: give its values where nothing is masked, with gaps filled")
    if given.layout != torch.strided or given.is_quantized or given.is_nested or given.is_meta:
        raise UserError(f"{what}: are a sparse, quantized, nested or meta tensor: give a dense one, as by .to_dense()")
    if given.is_complex():
        raise UserError(f"{what}: are {str(given.dtype).removeprefix('torch.')}: give real numbers, such as .real")
    given = given.detach() if given.requires_grad else given
    short = given.is_floating_point() and given.itemsize <= 2 and given.dtype != torch.float16
    return given.float() if short else given  # such as bfloat16, all of whose numbers float32 has


def unfinite(samples: Samples, owner: NDArray[Any] | None = None) -> str | None:
    """Return in which rows a feature or a target is no finite number, as part of a message; None if there is none.

    Args:
        samples: the samples.
        owner: ``[n]``, the name of each row's client. Rows whose client is None do not count.
    """
    for values, what in ((samples.x, "features"), (samples.y, "targets")):
        # a sum keeps NaN and infinity, and taking it is ten times cheaper than looking at every number
        if not values.is_floating_point() or bool(torch.isfinite(values.sum())):
            continue
        wrong = ~torch.isfinite(values).reshape(len(values), -1)
        rows = torch.nonzero(wrong.any(1))[:, 0].numpy()
        rows = rows if owner is None else rows[[owner[row] is not None for row in rows]]
        if not len(rows):
            continue
        column = int(torch.nonzero(wrong[rows[0]])[0, 0])
        place = f" (column {column})" if what == "features" and values.ndim == 2 else ""
        place = f" ({samples.inputs.place(column)})" if what == "features" and samples.inputs else place
        remedy = "drop these rows" if what == "targets" else "fill them, or drop these rows"
        return f"{what}{place}: no finite number in {rows_of(rows, owner)}; {remedy}"
    return None
