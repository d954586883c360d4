"""Errors that end a command with a few plain lines instead of a traceback.

Three errors say who must act. :class:`UserError` is a mistake in what the user gave (exit code 2).
:class:`MachineError` is a failure of the machine or of a file that no other input would have avoided (exit code 1).
:class:`PartError` is a bug in a part of a mechanism. Every package raises them, and the command line prints their lines
as they are.

:func:`gated` is the gate for everything that a user gives and that can raise: a module, a data set, a function, a path.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hanse.base.wings import absent


def _printable(line: str) -> str:
    """Return a line as one line of at most 2,000 characters: what a user gave, such as a path or a number, may have any
    length, ends of lines, or orders to a terminal.
    """
    line = re.sub(r"\S{300,}", lambda word: f"{word[0][:100]}...{word[0][-50:]}", line)
    line = line if len(line) <= 2000 else f"{line[:1500]}...{line[-490:]}"
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in " ".join(line.split()))


class _InLines(Exception):  # noqa: N818 (no error of its own)
    """An error of plain lines."""

    def __init__(self, *lines: str) -> None:
        self.lines: Sequence[str] = tuple(_printable(line) for line in lines)
        super().__init__("\n".join(self.lines))


class UserError(_InLines, ValueError):
    """A mistake in what the user gave. The command line prints its lines and exits with 2, without a traceback.

    Attributes:
        lines: the message, one entry per line. Several mistakes that are found together have a line each. ``str()``
            joins them with newlines.
    """


class MachineError(_InLines, RuntimeError):
    """A failure that is not due to wrong input: a full disk, a damaged file, a database that is gone.

    Attributes:
        lines: what failed, where, and the command to run next. The command line prints them and exits with 1.
    """


class RunFailedError(MachineError):
    """A run ended unexpectedly before its last round. The lines say why."""


RAISED = (Exception, SystemExit)
"""What a user's code may raise, to be caught. KeyboardInterrupt is the user's own."""


class PartError(RuntimeError):
    """A part of a mechanism broke the rules for parts. The message names the part, the round and what is allowed."""


class InPlaceError(PartError):
    """A part wrote into what it was shown. Such a round cannot be undone: what it was played from is no more."""


class PartWarning(UserWarning):
    """What a part does is allowed, but hardly meant."""


@contextmanager
def blamed(who: str) -> Iterator[None]:
    """Add a note to what this block raises: "raised by" and whose code it was, so that users find their own."""
    try:
        yield
    except Exception as wrong:
        wrong.add_note(f"raised by {who}")
        raise


@contextmanager
def in_python(says: Callable[[str], str] = str) -> Iterator[None]:
    """Within this context, or in a function decorated with it, UserErrors name arguments and calls of Python instead of
    the command line's options, and a path that the system refuses is one.

    Args:
        says: a function that changes each line further, for callers whose arguments stand for settings of an
            experiment.

    Examples:
        >>> with in_python():
        ...     raise UserError("--out a: exists already; give another folder, --overwrite, or 'hanse resume a'")
        Traceback (most recent call last):
        hanse.base.errors.UserError: out: a: exists already; give another folder, overwrite=True, or hanse.resume('a')
    """
    try:
        yield
    except UserError as wrong:
        lines = [re.sub(r"^--(out|rounds) ", r"\1: ", line) for line in wrong.lines]
        lines = [line.replace("--overwrite", "overwrite=True").replace("--client ", "client ") for line in lines]
        lines = [says(re.sub(r"'hanse resume (\S+)'", r"hanse.resume('\1')", line)) for line in lines]
        if lines == list(wrong.lines):
            raise
        raise UserError(*lines).with_traceback(wrong.__traceback__) from wrong.__cause__
    except OSError as wrong:
        if wrong.filename is None:  # of no file
            raise
        raise of_file(wrong) from wrong


@contextmanager
def collected(lines: list[str]) -> Iterator[None]:
    """Add the lines of a UserError in this block to ``lines``, and go on: a user hears of all mistakes at once."""
    try:
        yield
    except UserError as wrong:
        lines.extend(wrong.lines)


def first_line(error: BaseException) -> str:
    """Return an error's class and the first line of its message, such as ``"ValueError: no such column"``.

    The result is meant for use in a longer sentence, so the message is cut off after 160 characters.
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # an error of the user's own whose __str__ fails
        lines = []
    return f"{type(error).__name__}: {_printable(lines[0][:160])}" if lines else type(error).__name__


def out_of_memory(wrong: BaseException) -> bool:
    """Return whether memory was short: torch says so of a card by a class of its own, and of the processor by a plain
    RuntimeError.
    """
    said = type(wrong).__name__ == "OutOfMemoryError" or "allocate memory" in first_line(wrong)
    return isinstance(wrong, MemoryError) or (isinstance(wrong, RuntimeError) and said)


@contextmanager
def gated(what: str, helps: str = "") -> Iterator[None]:
    """Within this context, whatever code or data of the user raise becomes a UserError of one line.

    Errors of hanse and a lack of memory go on as they are. The first error is the cause of the new one, so Python shows
    both, and the command line does with ``HANSE_TRACEBACK=1``.

    Args:
        what: what was given and whose it is, such as ``"data: scans: client 'Bremen': item 7"``.
        helps: what to do about it, to put after the reason.

    Examples:
        >>> with gated("data: scans: item 7"):
        ...     raise OSError("image file is truncated")
        Traceback (most recent call last):
        hanse.base.errors.UserError: data: scans: item 7: OSError: image file is truncated
    """
    try:
        yield
    except (UserError, MachineError, PartError):
        raise
    except RAISED as wrong:
        if out_of_memory(wrong):
            raise
        raise UserError(f"{what}: {first_line(wrong)}{f'; {helps}' if helps else ''}") from wrong


# what another path, or another right to it, would have avoided
_PATHS = (errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EINVAL,
          errno.EACCES, errno.EPERM, errno.EROFS)  # fmt: skip


def of_file(wrong: OSError) -> UserError | MachineError:
    """Return the one-line error for a file or stream that the system refuses.

    It is a UserError if another path would do, and a MachineError otherwise, as for a full disk.
    """
    kind = UserError if wrong.filename is not None and wrong.errno in _PATHS else MachineError
    why = (wrong.strerror or str(wrong) or type(wrong).__name__).lower()
    return kind(f"{wrong.filename or 'the output'}: {why}{'; give another path' if kind is UserError else ''}")


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the allowed word most like ``word``, or the whole list if none is similar.

    The text begins with a semicolon, so it can be appended to an error message. It ends with the wings that are absent,
    since the word may be one of theirs (:func:`hanse.base.wings.absent`).

    Examples:
        >>> nearest("gtflatt", ["gtflat", "samples"])
        "; did you mean 'gtflat'?"
        >>> nearest("x", ["gtflat", "samples"])
        '; allowed: gtflat, samples'
    """
    names = sorted(allowed)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)  # a word may be a number
    return (f"; did you mean '{close[0]}'?" if close else f"; allowed: {', '.join(names) or 'none'}") + absent()


def library(module: str, said: str) -> Any:
    """Import and return an optional library, one that hanse can do without.

    Args:
        module: the module to import.
        said: the message if the library is not installed. It should say what needs the library and how to install it.

    Raises:
        UserError: with ``said``, if the library is not installed. If instead one of *its* dependencies is missing, the
            original ModuleNotFoundError is raised, since ``said`` would mislead the user.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.split(".")[0] != module.split(".")[0]:
            raise  # it is there, and something else is missing
        raise UserError(said) from None
