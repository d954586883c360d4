"""The pages as HTML, made from ``templates/``.

The templates escape all text from outside, and a missing value is an error.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

_environment = Environment(
    loader=PackageLoader(__package__, "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip


def _age(seconds: float | None) -> str:
    """Return in words how long ago something was; None: never."""
    if seconds is None:
        return "never"
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "just now" if seconds < 10 else f"{int(seconds)} seconds ago"


_environment.filters["age"] = _age


def page(name: str, status: int = 200, headers: dict[str, str] | None = None, **words: Any) -> HTMLResponse:
    """Return the page of a template.

    Args:
        name: the template's name, such as "login".
        status: the HTTP status code.
        headers: further headers of the answer.
        words: the template's values. ``who`` is the holder of a key, or None, and ``keys`` says whether there are keys.
            The head of the page depends on both.

    Examples:
        >>> page("login", wrong="").status_code
        200
        >>> b"unknown key" in page("login", status=403, wrong="unknown key").body
        True
    """
    words = {"who": None, "keys": False, **words}
    return HTMLResponse(_environment.get_template(f"{name}.html.j2").render(words), status, headers)
