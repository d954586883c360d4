"""Everything that the command line prints is cleaned (:func:`hanse.base.plain_text.shown`), since strangers' names
and paths are in it: what rich prints by :class:`Terminal`, and everything else by :func:`plainly`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hanse.base.plain_text import shown


class Terminal(Console):
    """A console of rich that cleans (:func:`shown`) every text before it is coloured."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something that rich can print, cleaned."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))


class _Plain:
    """A stream that cleans what is written into it; rich, which has cleaned its texts, writes past it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(shown(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.rich_proxied_file.writelines(map(shown, lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def plainly() -> Iterator[None]:
    """Within this context, clean what is printed to standard output and standard error."""
    # a stream that the caller closed is None, and stays so
    out, err = (stream and _Plain(stream) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield
