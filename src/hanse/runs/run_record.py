"""A whole run read from its directory (:func:`load_run`) as a :class:`RunRecord`, the input of all reports.

For a run's models, see :mod:`hanse.runs.played_run`.

The directory may come from a stranger. Reads are therefore bounded, nothing is imported or unpickled, no link is
followed, and any damage becomes one line that names the file (:mod:`hanse.base.files`).

Here is also what single files of it hold: a seat's line (:class:`Seat`), where anything but a finite number becomes
None; tests of clients (:class:`OwnTests`); the clients' names (:func:`client_of` takes a number or a name);
``shape.json``, which says what models were made for, and has a digest of parameters that rows do not contain
(:class:`Shape`); and which settings may change after a run has begun (:func:`differences`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from hanse.base import toml
from hanse.base.errors import MachineError, UserError, nearest
from hanse.base.factories import named_choice
from hanse.base.files import (
    CLIENTS,
    MEMBERS,
    given_path,
    going_on,
    json_lines,
    read_arrays,
    read_toml,
    run_folder,
    table,
)
from hanse.base.imports import OWN, import_paths
from hanse.base.plain_text import quantity
from hanse.base.wings import Names
from hanse.core.book import LedgerError
from hanse.core.declared import Count, Declared
from hanse.core.entry import COMMIT
from hanse.core.telling import About, read_about
from hanse.learning.metrics import MetricStyle, main_of, readings_of
from hanse.ledger.accounts import BookSums
from hanse.ledger.log import Record
from hanse.ledger.run_ledger import (
    BooksAtCheckpoint,
    beyond_the_book,
    has_books,
    latest_claim,
    open_ledger,
    unbooked,
    verify_run,
)
from hanse.ledger.store import VerifyResult
from hanse.runs.chance import STILL, Guess, doubts, in_no_sum, is_number, nothing_mixed, unsold
from hanse.runs.round_record import HASH, METRICS, SEATS, SHAPE, lost_rounds, round_file
from hanse.runs.sections import ClientsSection, RunSection, config_hash

if TYPE_CHECKING:
    from hanse.core.table import Floats, Ints
    from hanse.data import FederatedData
    from hanse.data.samples import Inputs
    from hanse.learning.job import Problem
    from hanse.runs.config import Experiment


OWN_TESTS = ("tested", "test_loss", "test_accuracy", "test_samples", "test_loss_error", "test_units")


class Seat(NamedTuple):
    """A line of ``clients.jsonl``. Anything but a finite number becomes None.

    Attributes:
        round: the round that the line belongs to.
        client: the client's number.
        staleness: how many rounds late the update came.
        value: what the update was worth.
        error: the value's standard error from the sampling of coalitions. Infinite: not known. None: not recorded.
        drawn: the value's standard error from the draw of the validation samples.
        weight: the update's weight in the model that it trained.
        refused: why there is no update. None: there is one.
        name: the client's name. Empty: it has none.
        samples: how many training samples the update was made from, as the client says.
        epsilon: how much of its privacy budget the client claims to have spent. None: it claims nothing.
        budget: the epsilon that it may spend, as the client claims.
        delta: the delta for which ``epsilon`` and the budget are meant, as the client claims.
    """

    round: int
    client: int
    staleness: int = 0
    value: float | None = None
    error: float | None = None
    drawn: float | None = None
    weight: float | None = None
    refused: str | None = None
    name: str = ""
    samples: float | None = None
    epsilon: float | None = None
    budget: float | None = None
    delta: float | None = None

    @staticmethod
    def of(line: Mapping[str, Any]) -> Seat:
        """Return the seat that a line describes. Its ``round`` and ``client`` must have been checked to be counts."""

        known: dict[str, Any] = {}
        for key, field in _NUMBERS.items():
            if (number := line.get(key)) is not None and is_number(number):
                known[field] = number
        if line.get("value_error", 0) is None:
            # a null was a NaN when it was written: the value was sampled, and fewer than two samples give no error
            known["error"] = math.inf
        refused = line.get("refused")
        return Seat(
            round=line["round"],
            client=line["client"],
            staleness=late if isinstance(late := line.get("staleness"), int) and 0 <= late <= line["round"] else 0,
            refused=None if refused is None else str(refused),
            name=str(line.get("name") or ""),
            **known,
        )


_NUMBERS = {
    "value": "value", "value_error": "error", "value_draw_error": "drawn",
    "weight": "weight", "samples": "samples", "fit/epsilon": "epsilon",
    "fit/budget": "budget", "fit/delta": "delta",
}  # fmt: skip


@dataclass(frozen=True)
class SeatColumns:
    """All seats of a run as columns ``[S]``, in the order of rounds. Numbers that are not there are NaN.

    Attributes:
        round: the round that the seat's line belongs to.
        asked: the round in which the client was asked. For late updates it is an earlier one.
        client: the client's number.
        value: what the update was worth.
        error: the value's standard error from the sampling of coalitions.
        drawn: the value's standard error from the draw of the validation samples.
    """

    round: Ints
    asked: Ints
    client: Ints
    value: Floats
    error: Floats
    drawn: Floats


@dataclass(frozen=True)
class OwnTests:
    """What clients found on their own test shares after a round, ``[n]`` each.

    Attributes:
        clients: the clients' numbers.
        loss: mean loss.
        accuracy: 0 to 1. NaN: there is none.
        samples: how many test samples each client has. None: not recorded.
        error: the standard error of the loss. NaN: not recorded.
        main: the run's main metric. NaN: the client has none.
        gaps: why a client has no main metric. Empty: it has one.
        without: ``[n, B]``, the main metric without each block of the client's samples. None: not recorded.
        interval: ``[n, 2]``, the 95 % interval of the main metric. NaN: not known.
        units: how many units, such as patients, each client's test samples are of. None: each sample is one.
    """

    clients: Ints
    loss: Floats
    accuracy: Floats
    samples: Ints | None
    error: Floats
    main: Floats
    gaps: Sequence[str]
    without: Floats | None
    interval: Floats
    units: Ints | None = None


class Registered(TypedDict):
    """A member in the register of a federation on a network.

    Attributes:
        id: the client's number.
        name: the member's name.
        tests: the number of the member's own test samples.
    """

    id: Annotated[int, Field(ge=0, lt=CLIENTS)]
    name: NotRequired[str]
    tests: NotRequired[Count]


_REGISTER = Declared[list[Registered]](list[Registered])


def registered(folder: Path | None, config: Mapping[str, Any]) -> int | None:
    """Return how many clients can have an account; None if it is not known.

    Args:
        folder: the run directory. On a network, the register of members says it. None: the run is in memory only.
        config: the run's ``config.toml``.

    Raises:
        UserError: the register of members is damaged.
    """
    if folder is not None and (folder / MEMBERS).is_file():
        return 1 + max(read_members(folder), default=-1)
    data = table(config, "data")
    count = 1 if named_choice(data.get("partition"), "dirichlet") == "pooled" else data.get("clients")
    return count if isinstance(count, int) else None


def client_names(path: Path) -> dict[int, str]:
    """Return the names of a run's clients by number; empty if they have none.

    Unprintable characters are removed, because the directory may be a stranger's.

    Raises:
        UserError: the register of members is damaged.
    """
    try:
        told = read_about(path).names
    except UserError:  # numbers do instead; what reads more of it says what is wrong
        told = ()
    named = dict(enumerate(told)) | {i: name for i, one in read_members(path).items() if (name := one.get("name"))}
    return {i: "".join(c for c in name if c.isprintable()) for i, name in named.items()}


def client_of(name: str, names: Sequence[str], where: str = "--client") -> int:
    """Return the number of the client that a user named.

    Args:
        name: a number (not checked for existence), or the name of exactly one client.
        names: the clients' names by number; empty if clients have no names.
        where: the start of an error message, such as the option.

    Raises:
        UserError: the name belongs to no client or to several, or it is the number of one client and the name of
            another.
    """
    called = [c for c, label in enumerate(names) if label == name]
    if name.isdecimal():
        number = int(name)
        if called in ([], [number]):
            return number
        if number < len(names):
            raise UserError(
                f"{where} {name}: is the name of client {called[0]} and the number of client {number} "
                f"({names[number]}): give the number or name of that one that is no other's"
            )
    if len(called) != 1:
        close = [label for label in names if not label.isdecimal()]
        what = f"no client has this name{nearest(name, close) if close else ''}"
        what = what if not called else f"{len(called)} clients have this name"
        allowed = f", 0 to {len(names) - 1}" if names else ": this run's clients have no names"
        raise UserError(f"{where} {name}: {what}; give its number{allowed}")
    return called[0]


def read_members(folder: Path) -> Mapping[int, Registered]:
    """Return the register of a federation on a network, by client number; empty for a simulation. Raises UserError if
    it is damaged.
    """
    file = folder / MEMBERS
    if not file.is_file():
        return {}
    return {member["id"]: member for member in _REGISTER.of_file(file)}


# how long a run lasts, and what else may change when it goes on: where it is played, and where its books and its data
# lie. Data have a fingerprint, and losses of privacy an account.
LENGTH = ("run.rounds", "run.target_accuracy", "run.max_seconds", "run.max_megabytes")
MAY_CHANGE = (*LENGTH, "run.checkpoint_every", "ledger.url", "engine", "data.source", "federation.deadline_s",
              "federation.private")  # fmt: skip
LEFT_OUT = "left out"


def nobody_trains_on(rounds: int) -> str:
    """Return why a run is over that a client has left after so many rounds, where all models are to be made anew."""
    return f"a client has left after {quantity(rounds, 'round')}, and nobody trains on (clients.exit)"


def edited_settings(path: Path) -> str:
    """Return a line on the first setting of ``config.toml`` that differs from the run's last checkpoint, or that they
    are not those to which the first line of its book commits.

    It is "" if all settings are those with which the checkpoint was played, apart from :func:`changeable` ones, or if
    neither says.
    """
    from hanse.runs.config import Experiment  # late: most runs are as they were played

    claim, books = latest_claim(path) or BooksAtCheckpoint(), (path / "ledger.json").exists()
    now = read_toml(path / "config.toml") if claim.settings or books else {}
    with suppress(ValueError, RecursionError):  # settings that hanse did not write
        before = toml.loads(claim.settings) if claim.settings else now
        apart = [one for one in differences(before, now) if not may_change(one[0])]
        with suppress(ValueError):  # no sound amendment lets them differ
            free = changeable(Experiment(**before), Experiment(**now), path, claim.round or 0) if apart else ()
            apart = [one for one in apart if not may_change(one[0], free)]
        for key, old, new in apart:
            return f"config.toml was edited: {key} is {new}, and the rounds were played with {old}"
    with suppress(LedgerError, UserError):  # books that cannot be read are no matter of settings
        first = next(open_ledger(path).history(), None) if books else None
        if first and first.transaction.kind == COMMIT and f" config {config_hash(now)} " not in first.transaction.memo:
            return "config.toml is not the one to which the first line of the book commits"
    return ""


AMENDS: Mapping[str, Callable[[Experiment, Experiment, Path, int], Sequence[str]]] = Names({}, "amends")
"""By a section's name, what says which settings of a run may change after so many rounds, for experiments before and
after."""


def changeable(before: Experiment, after: Experiment, path: Path, played: int) -> list[str]:
    """Return the settings that may change after so many rounds. Raises UserError if an amendment does not hold."""
    return [*MAY_CHANGE, *(key for amends in AMENDS.values() for key in amends(before, after, path, played))]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each setting that differs, in order, with both values as TOML, or :data:`LEFT_OUT`."""
    then, now = dict(toml.flat(before)), dict(toml.flat(after))
    for key in sorted(then.keys() | now.keys()):
        old, new = (LEFT_OUT if key not in one else toml.inline(one[key]) for one in (then, now))
        if old != new:
            yield key, old, new


def may_change(key: str, names: Sequence[str] = MAY_CHANGE) -> bool:
    """Say whether a setting is one of those that may change, or in a table that is."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


Size = Annotated[int, Field(gt=0, lt=2**50)]  # bounded: a stranger's file must not ask for absurd memory


class _Input(TypedDict):
    name: str
    shape: list[Size]
    whole: bool


class Shape(TypedDict):
    """The contents of the file.

    Attributes:
        input_shape: the shape of a sample.
        num_classes: the number of classes. None: regression.
        inputs: each input's name and shape, if a sample has several inputs.
        frozen: a digest of the parameters that the model does not send, if any.
        guess: a guess's scores on the server's test set, if targets are classes.
    """

    input_shape: list[Size]
    num_classes: Size | None
    inputs: NotRequired[Annotated[list[_Input], Field(min_length=1)]]
    frozen: NotRequired[str]
    guess: NotRequired[Guess]


_SHAPE = Declared[Shape](Shape)


def model_made_for(data: FederatedData, problem: Problem) -> dict[str, Any]:
    """Return the contents of a run's ``shape.json``: a :class:`Shape` as JSON."""
    shape: dict[str, Any] = {"input_shape": data.input_shape, "num_classes": data.num_classes}
    if data.inputs:
        shape["inputs"] = [{"name": part.name, "shape": part.shape, "whole": part.whole} for part in data.inputs.parts]
    if problem.unsent:
        shape["frozen"] = problem.unsent
    if (guess := guess_of(data, problem)) is not None:
        shape["guess"] = asdict(guess)
    return shape


def same_frozen(folder: Path, problem: Problem) -> None:
    """Raise UserError if a model's frozen parameters are not the run's."""
    if read_said(folder / SHAPE).get("frozen", problem.unsent) != problem.unsent:
        raise UserError(
            f"{folder}: its models have other frozen parameters than this model, and with model.send = 'trainable' "
            "they are not kept: give the model with the same ones"
        )


def read_said(file: Path) -> Shape:
    """Read a ``shape.json``. Raises UserError if it is missing or malformed."""
    return _SHAPE.of_file(file)


def read_shape(file: Path) -> tuple[tuple[int, ...] | Inputs, int | None]:
    """Return the shape of a sample, or its several inputs, and the number of classes (None: regression).

    Raises:
        UserError: the file is malformed.
    """
    contents = read_said(file)
    classes = contents["num_classes"]
    if "inputs" in contents:
        from hanse.data.samples import Input, Inputs  # late: reports read this module, and read without torch

        return Inputs(
            tuple(Input(one["name"], tuple(one["shape"]), one["whole"]) for one in contents["inputs"])
        ), classes
    return tuple(contents["input_shape"]), classes


def guess_of(data: FederatedData, problem: Problem) -> Guess | None:
    """Return a guess's scores on the server's test set, or None if there is no such set, or for regression."""
    return None if problem.regression else Guess.of(data.server_test)


_UNLIKE = "The books of this run do not hold, so nothing that its records say can be relied on"
_LONGEST_GAP = 500  # characters of a reason: a directory may be a stranger's
_LARGEST = 1e100  # no value is larger, and the square of one is still a number
_ACCURACY = re.compile(r"(test|client)/(test_)?accuracy(_weighted|_min|_q\d+)?")
SEEDS = (("run", "seed"), ("data", "seed"))  # of the run, and of the split


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run directory in memory, as reports read it.

    Attributes:
        path: the directory. None: the run is in memory only.
        name: the name of the run.
        config: the content of the directory's ``config.toml``.
        metrics: one line per round. ``round`` is a number. Everything else is unchecked.
        clients: one seat per line.

    Arrays of rounds are read from their files on demand.

    Examples:
        A small run, played and read again:

        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("greedyfed").experiment, out="small", overwrite=True)
        >>> record = load_run("small")
        >>> record.num_clients, len(record.metrics), record.mechanism
        (4, 3, 'greedyfed')
    """

    path: Path | None
    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    clients: Sequence[Seat]

    @property
    def folder(self) -> Path:
        """The directory, for what needs one. Raises UserError if there is none."""
        if self.path is None:
            raise UserError("this run has no directory: give it one, hanse.run(..., out='runs/first')")
        return self.path

    def has(self, name: str) -> bool:
        """Return whether the run has a directory, with a file or folder of this name in it."""
        return self.path is not None and (self.path / name).exists()

    @property
    def mechanism(self) -> str:
        """The mechanism's name, or the last word of its import path."""
        return str(table(self.config, "mechanism").get("name", "?")).rpartition(":")[2]

    @property
    def label(self) -> str:
        """The mechanism and the seed in words, such as "greedyfed, seed 0"."""
        return f"{self.mechanism}, seed {self.seeds[0]}"

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seed of the run and the seed of the split."""
        return tuple(table(self.config, section).get(key, 0) for section, key in SEEDS)

    @property
    def readings(self) -> tuple[MetricStyle, ...]:
        """How to show the metrics of ``[eval] metrics``, the main one first; empty if there is no such list."""
        return readings_of(table(self.config, "eval").get("metrics"))

    @property
    def main(self) -> MetricStyle:
        """How to show the main metric: the first of the list, else the accuracy."""
        return main_of(table(self.config, "eval").get("metrics"))

    @property
    def rounds_planned(self) -> int:
        """The number of rounds that the experiment asked for."""
        rounds = table(self.config, "run").get("rounds")
        return rounds if isinstance(rounds, int) else len(self.metrics)

    @cached_property
    def ended_early(self) -> str | None:
        """Why the run ended before its last round (a target was reached, a budget used up, or nobody trains on after a
        client has left), or None if it did not.
        """
        if len(self.metrics) >= self.rounds_planned:
            return None
        limits, agreed = table(self.config, "run"), table(table(self.config, "clients"), "exit")
        try:
            over = RunSection(**{k: limits[k] for k in RunSection.model_fields if k in limits}).over(self.metrics)
        except (ValueError, KeyError, TypeError):  # an experiment or figures that hanse did not write
            over = None
        if (
            over is None
            and self.path is not None
            and agreed.get("models") == "anew"
            and (latest_claim(self.path) or BooksAtCheckpoint()).finished
        ):
            return nobody_trains_on(len(self.metrics))
        return over

    @property
    def unfinished(self) -> bool:
        """Whether rounds are still to come."""
        return len(self.metrics) < self.rounds_planned and self.ended_early is None

    @property
    def in_app(self) -> bool:
        """Whether a Flower app with a strategy of its own played the run, and hanse recorded it (``hanse.valued``)."""
        return "flower" in table(self.config, "mechanism")

    @property
    def grant(self) -> float:
        """What a new client got, in tokens."""
        given = table(self.config, "clients").get("grant")
        return float(given) if is_number(given) else ClientsSection().grant

    @property
    def trust(self) -> str:
        """The option that a command needs which plays the run's experiment: " --trust" where it names modules."""
        return " --trust" if set(import_paths(self.config)) - OWN else ""

    @cached_property
    def num_clients(self) -> int:
        """The number of registered clients, at least the number that ever had a seat."""
        return max(registered(self.path, self.config) or 0, int(self.seats.client.max(initial=-1)) + 1)

    @cached_property
    def members(self) -> Mapping[int, Registered]:
        """The register of a federation on a network, by client; empty for a simulation. Raises UserError for a damaged
        one.
        """
        return read_members(self.folder)

    @cached_property
    def about(self) -> About:
        """The descriptions of the run's parts and behaviours. Raises UserError for a damaged or missing file."""
        return read_about(self.folder)

    @property
    def guess(self) -> Guess | None:
        """What a guess scores on the server's test set, or None if there is none.

        Raises:
            UserError: ``shape.json`` is missing or damaged.
        """
        return read_said(self.folder / SHAPE).get("guess")

    @property
    def models(self) -> int:
        """How many rows the run's table had in the last round; 1 if that was not recorded."""
        shape = self.arrays(self.metrics[-1]["round"], only=("W_shape",)).get("W_shape") if self.metrics else None
        return 1 if shape is None or shape.shape != (2,) or shape.dtype.kind not in "iu" else int(shape[0])

    @cached_property
    def coded_doubts(self) -> list[tuple[str, dict[str, Any]]]:
        """What makes the results doubtful, by the codes of notes, with their fields: that rows may be several of one
        person, that there is no result, edited settings, books that do not hold, a model no better than chance,
        meaningless values, warnings of parts.

        Raises UserError if ``shape.json`` is missing or damaged.
        """
        trained = table(self.config, "train").get("loss")
        found = list[tuple[str, dict[str, Any]]]()
        if self.about.doubt:
            found.append(("data", {"said": f"{self.about.doubt}."}))
        if self.nothing:
            found.append(("no_update_mixed", {"said": self.nothing}))
        else:
            if markets := unsold(self.metrics):
                found.append(("market_dead", {"markets": markets}))
            summed = table(self.config, "federation").get("secure") is not None
            if summed and (lost := in_no_sum((seat.client, seat.refused) for seat in self.clients)):
                found.append(("in_no_sum", lost))
        if self.path is not None and (edited := edited_settings(self.path)):
            found.append(("edited", {"said": f"{edited}."}))
        if wrong := self.wrong_in_books:
            found.append(("books_broken", {"said": f"{_UNLIKE}: {wrong} ('hanse ledger verify' checks them)."}))
        found += doubts(self.metrics, self.guess, main=self.main.key, trained=trained, several=self.models > 1)
        return [*found, *(("part_warning", {"said": line}) for line in self.about.warnings)]

    @cached_property
    def nothing(self) -> str | None:
        """Why the run has no result, since no update was mixed in any round. None: it has one, or no round yet."""
        return nothing_mixed(self.metrics, ((seat.refused, seat.weight) for seat in self.clients))

    @property
    def wrong_in_books(self) -> str | None:
        """Why the run's books, or the records that they close, do not hold. None: they hold, or the run has none."""
        return self.verified.wrong if isinstance(self.verified, VerifyResult) else self.verified

    @property
    def minted(self) -> dict[str, int]:
        """The units that the payment rule took from the mint, by kind of transaction, besides grants and, where hanse's
        own rule fills it, the pot.
        """
        taken = self.verified.minted if isinstance(self.verified, VerifyResult) else {}
        own_pot = table(table(self.config, "mechanism"), "settle").get("name") == "pot"
        return {kind: units for kind, units in taken.items() if kind != "grant" and not (own_pot and kind == "pot")}

    @cached_property
    def verified(self) -> VerifyResult | str | None:
        """What verifying the run's books found. A text: why they cannot be read; None: there are none."""
        found, _ = walked(self)
        _ = self.sums  # of the same walk: of many runs, not all walks are kept
        return found

    @cached_property
    def sums(self) -> BookSums:
        """What the transactions add up to that were found right."""
        return BookSums.of(walked(self)[1])

    def series(self, key: str) -> tuple[Ints, Floats]:
        """Return one metric over the rounds that have it.

        Args:
            key: the metric's name, such as "test/accuracy".

        Returns:
            The rounds ``[n]``, counted from 0, and the numbers ``[n]``. Rounds without a finite number are left out.
        """
        points = [(line["round"], line[key]) for line in self.metrics if is_number(line.get(key))]
        rounds = np.array([r for r, _ in points], np.int64)
        return rounds, np.array([v for _, v in points], np.float64)

    @property
    def gaps(self) -> Mapping[str, Sequence[int]]:
        """The recorded reasons why rounds have no values, with the rounds (0-based)."""
        reasons: dict[str, list[int]] = {}
        for line in self.metrics:
            why = line.get("gap")
            if isinstance(why, str) and why:
                reasons.setdefault(why[:_LONGEST_GAP], []).append(int(line["round"]))
        return reasons

    @cached_property
    def seats(self) -> SeatColumns:
        """The seats as columns."""

        def column(name: str) -> Floats:
            values = (getattr(seat, name) for seat in self.clients)
            return np.array([np.nan if value is None else value for value in values], np.float64)

        return SeatColumns(
            round=np.array([seat.round for seat in self.clients], np.int64),
            asked=np.array([seat.round - seat.staleness for seat in self.clients], np.int64),
            client=np.array([seat.client for seat in self.clients], np.int64),
            **{name: column(name) for name in ("value", "error", "drawn")},
        )

    def client_label(self, client: int) -> str:
        """Return a client's name, or its number if it has none."""
        return self._names.get(client, str(client))

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names by number; empty if they have none."""
        return tuple(map(self.client_label, range(self.num_clients))) if self._names else ()

    @cached_property
    def _names(self) -> dict[int, str]:
        """The clients' names by number: from the directory, or else from their lines."""
        return client_names(self.folder) | {seat.client: seat.name for seat in self.clients if seat.name}

    def client_of(self, name: str, where: str = "--client") -> int:
        """Return the number of the client with this number or name; ``where`` begins an error's line.

        Raises:
            UserError: no client or several clients have this name (see :func:`hanse.runs.run_record.client_of`).
        """
        return client_of(name, [self.client_label(c) for c in range(self.num_clients)], where)

    @cached_property
    def lost(self) -> Mapping[int, str]:
        """The rounds whose arrays are missing or were changed, each with the reason. See :func:`lost_rounds`."""
        return lost_rounds(self.folder)

    @cached_property
    def beyond(self) -> str:
        """A sentence on rounds that the run's book does not have; "" if there are none, or no intact book."""
        found = self.verified
        if not isinstance(found, VerifyResult) or not found.ok:
            return ""
        return beyond_the_book(unbooked(self.folder, found.closed))

    def arrays(self, round: int, only: Collection[str] = ()) -> dict[str, NDArray[Any]]:
        """Read the arrays of one round.

        Args:
            round: the round, counted from 0.
            only: the names of the arrays to read. Empty: all are read.

        Returns:
            Arrays by name. There are none if the round's file is missing or was changed (:attr:`lost`). Their axes are
            ``[S]`` by seat, ``[n]`` by the clients that were tested or refused, or ``[N]`` by client.

        Raises:
            UserError: the file is broken.
        """
        file = round_file(self.folder, round)
        return {} if round in self.lost or not file.exists() else read_arrays(file, only)

    def own_tests(self, round: int) -> OwnTests | None:
        """Return the clients' results on their own test shares after a round, or None if nobody tested.

        Raises:
            UserError: the arrays do not fit each other.
        """
        key = f"test_{self.main.key}"
        record = self.arrays(round, only=(*OWN_TESTS, key, f"{key}_gap", "test_without_block", "test_interval"))
        if "test_accuracy" not in record:
            return None
        count = len(record["test_accuracy"])
        unknown = np.full(count, np.nan)
        without, interval = record.get("test_without_block"), record.get("test_interval", np.full((count, 2), np.nan))
        columns: dict[str, Any] = {
            "clients": record.get("tested", np.arange(count)).astype(np.int64),
            "loss": record.get("test_loss", unknown),
            "accuracy": record["test_accuracy"],
            "samples": record.get("test_samples"),
            "error": record.get("test_loss_error", unknown),
            "main": record.get(key, unknown),
            "gaps": record.get(f"{key}_gap", np.full(count, "")),
            "units": record.get("test_units"),
        }
        each = (*columns.values(), None if without is None else without[:, 0])
        if any(array is not None and array.shape != (count,) for array in each) or interval.shape != (count, 2):
            raise UserError(f"{round_file(self.folder, round)}: its tests of clients do not fit each other")
        return OwnTests(**columns, without=without, interval=interval)

    @cached_property
    def without_block(self) -> Mapping[int, tuple[Ints, Floats]]:
        """Values without each block of the validation samples, by round, of the rounds that recorded them.

        Each entry has the clients ``[S]`` whose updates were valued, and their values ``[S, B]`` with each of B blocks
        left out.
        """
        found = {}
        for line in self.metrics:
            stored = self.arrays(line["round"], only=("answered", "value_without_block"))
            clients, without = stored.get("answered"), stored.get("value_without_block")
            if clients is not None and without is not None and without.ndim == 2 and len(clients) == len(without):
                found[int(line["round"])] = (clients, without)
        return found

    @cached_property
    def under_way(self) -> frozenset[tuple[int, int]]:
        """The (round, client) of updates for which the round did not wait, and which may still join later rounds.

        They count as late, not as refused. Empty where late updates are dropped.
        """
        late = table(self.config, "federation").get("late") == "next"
        return frozenset((seat.round, seat.client) for seat in self.clients if late and seat.refused == STILL)

    @property
    def num_refused(self) -> int | None:
        """How many updates were refused, not counting those that are only late, or None if that is not recorded."""
        counts = self.series("refused")[1]
        return max(0, int(counts.sum()) - len(self.under_way)) if len(counts) else None

    def refusals(self) -> Iterator[tuple[int, int, str]]:
        """Yield (round, client, reason) of every refusal, except for updates that are only late.

        Only rounds that had some are opened. Of a round whose file is lost, refused seats are all that is known.
        """
        seats: dict[int, list[tuple[int, str]]] = {}
        for seat in self.clients:
            if seat.refused is not None:
                seats.setdefault(seat.round, []).append((seat.client, seat.refused))
        for line in self.metrics:
            number = line["round"]
            stored = self.arrays(number, only=("refused", "reason")) if line.get("refused") else {}
            pairs = list(zip(stored.get("refused", ()), stored.get("reason", ()), strict=False))
            if not stored and line.get("refused"):
                pairs = seats.get(number, [])
            for client, reason in ((int(c), str(why)) for c, why in pairs):
                if reason != STILL or (number, client) not in self.under_way:
                    yield number, client, reason


@lru_cache(maxsize=4)  # of many runs that are looked at together, not all books are kept
def walked(run: RunRecord) -> tuple[VerifyResult | str | None, Sequence[Record]]:
    """Return what one walk along a run's books found, as :attr:`RunRecord.verified` has it, and the transactions that
    were found right, in their order.
    """
    met: list[Record] = []
    if run.path is None or not has_books(run.path, run.metrics):
        return None, met
    try:
        return verify_run(run.path, open_ledger(run.path), met=met.append), met
    except UserError as unread:
        return str(unread), met


def load_run(path: str | Path) -> RunRecord:
    """Read a run directory, which may come from a stranger: nothing is imported, and no link is followed.

    Args:
        path: the directory.

    Raises:
        UserError: ``path`` is not a run directory, contains links, has no finished round yet, or is damaged. The
            message has one line.
    """
    path = run_folder(given_path("path", path))
    config = read_toml(path / "config.toml")
    most = table(config, "data").get("clients")
    if (path / MEMBERS).exists():  # a network or an app: the data that the experiment names were not used
        config = {**config, "data": {"clients": most}}
    # reports make arrays by client, so a number from a stranger's file must not decide how much memory they take
    if isinstance(most, int) and most > CLIENTS:
        raise UserError(f"{path / 'config.toml'}: data.clients: {str(most)[:40]}: must be at most {CLIENTS}")
    metrics = [_without_hash(line) for line in json_lines(path / METRICS, ("round",))]
    if not metrics:
        raise UserError(f"{path}: has no finished rounds yet; let it run, or go on with '{going_on(path)}'")
    rounds = [line["round"] for line in metrics]
    if any(after <= before for before, after in pairwise(rounds)):
        raise UserError(f"{path / METRICS}: is damaged: its rounds must ascend, a line each")
    # a round's seats are written before its metrics: those of a round that is not finished yet are left out
    lines = [line for line in json_lines(path / SEATS, ("round", "client")) if line["round"] <= rounds[-1]]
    keys = dict.fromkeys(key for line in metrics for key in line)
    _check_numbers(path / METRICS, metrics, [key for key in keys if _ACCURACY.fullmatch(key)], 0.0, 1.0)
    _check_numbers(path / METRICS, metrics, [key for key in keys if key.startswith("bytes/")], 0.0, _LARGEST)
    _check_numbers(path / SEATS, lines, ("value", "weight"), -_LARGEST, _LARGEST)
    _check_numbers(path / SEATS, lines, ("samples", "steps", "value_error", "value_draw_error"), 0.0, _LARGEST)
    _check_seats(path, metrics, lines)
    clients = [Seat.of(line) for line in lines]
    name = path.name or path.resolve().name
    return RunRecord(path, name, config, metrics, clients)


def _check_numbers(
    file: Path, lines: Sequence[Mapping[str, Any]], keys: Sequence[str], low: float, high: float
) -> None:
    """Raise UserError if a line has something else than a number from ``low`` to ``high``, null or NaN under a key."""
    for number, line in enumerate(lines, 1):
        for key in keys:
            value = line.get(key)
            if value is None or (type(value) is float and low <= value <= high):  # nearly all
                continue
            if value != value or (is_number(value) and low <= value <= high):
                continue
            raise UserError(f"{file}:{number}: {key}: {str(value)[:40]!r}: allowed: numbers from {low:g} to {high:g}")


def _check_seats(path: Path, metrics: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError if a round has more or fewer lines than used updates: a repeated line would count a value twice,
    and a missing one would go unnoticed.
    """
    answered = Counter(line["round"] for line in lines if line.get("refused") is None)
    for line in metrics:
        expected = line.get("answered")
        if is_number(expected) and expected != answered[line["round"]]:
            raise UserError(
                f"{path / SEATS}: is damaged: round {line['round']} has {quantity(answered[line['round']], 'update')}, "
                f"and {METRICS} says {expected:g}"
            )


def load_runs(paths: Sequence[str | Path]) -> list[RunRecord]:
    """Read several run directories; one that is given twice is read once. Raises UserError as :func:`load_run`."""
    if not paths:
        raise UserError("no run directory was given")
    once = {Path(path).resolve(): Path(path) for path in reversed(paths)}
    return [load_run(path) for path in reversed(once.values())]


def played_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a line file of a run to be resumed.

    Raises:
        MachineError: a line is damaged.
    """
    try:
        counts = ("round",) if name == METRICS else ("round", "client")
        return [_without_hash(line) for line in json_lines(folder / name, counts)]
    except UserError as wrong:
        raise MachineError(*wrong.lines) from None


def _without_hash(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's line without the hash of its file, as it was before it was written."""
    return {key: value for key, value in line.items() if key != HASH}
