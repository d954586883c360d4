"""Clocks and certificates, whose faults Flower tells nobody: both ends name them at the first request.

Flower's SuperLink refuses a node whose signature is dated in the future, and TLS a certificate that has run out. In
the SuperLink's process, :class:`ClockGate` looks at nodes' times, and :func:`watch_certificates` at its own
certificates. In a SuperNode's, :func:`name_refusals` looks at both. :func:`check_certificates` is called when the
operator starts servers or a run.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hanse.base.errors import UserError
from hanse.base.plain_text import quantity

if TYPE_CHECKING:
    import httpx

APART_S = 5  # a difference of clocks that is named: Flower refuses a node that is so far ahead, or 305 s behind
SOON_D = 30  # days before its end from which a certificate is warned of
AGAIN_S, MOST = 60.0, 20  # in so many seconds a line is said once, and so many lines: anybody can claim another time
STAMP, PUBLIC_KEY = "flwr-timestamp", b"flwr-public-key"  # headers: a node's time, and its key in base64
NODES = "/hanse/nodes"  # the gate answers this path itself, with what it has heard of nodes
ACTIVATE = "/v1/fleet/activate-node"  # the first request of a node
ARRAYS = "/v1/fleet/push-object"  # the one request that takes long, so that its time says nothing
State = Literal["fine", "warning", "failure"]
LET_IN_S = 75.0  # seconds that a node asks to be let in; for 60, Flower takes one that was stopped for online


def skewed(first: datetime, last: datetime, other: datetime) -> str:
    """Return by how much a clock is wrong; "" if it is not.

    Args:
        first: what the clock showed before the other clock was read.
        last: what it showed after that.
        other: what the other clock showed.

    Examples:
        >>> noon = datetime(2026, 11, 28, 12, tzinfo=UTC)
        >>> skewed(noon, noon, noon + timedelta(seconds=400)), skewed(noon, noon + timedelta(seconds=20), noon)
        ('400 s behind', '')
    """
    ahead, behind = (first - other).total_seconds(), (other - last).total_seconds()
    wrong = max(ahead, behind)
    return f"{wrong:.0f} s {'ahead of' if ahead > behind else 'behind'}" if wrong > APART_S else ""


def seldom(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that says a line at most once in :data:`AGAIN_S` seconds, and nothing for an empty one."""
    said = dict[str, float]()

    def once(line: str) -> None:
        now = time.monotonic()
        for old in [one for one, when in said.items() if now - when >= AGAIN_S]:
            del said[old]
        if line and line not in said and len(said) < MOST:
            said[line] = now
            say(f"hanse: {line}")

    return once


class ClockGate:
    """An ASGI application that notes when it heard of each node, and says in the server's log if its clock is wrong.

    Args:
        app: the application behind the gate, which may refuse the node.
    """

    def __init__(self, app: Any) -> None:
        self.app, self._say = app, seldom(lambda line: print(line, flush=True))
        self._heard = dict[str, tuple[float, float]]()  # by key: when, and the seconds that its clock was ahead

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Pass a request on, or answer what is known of the nodes."""
        if scope.get("path") == NODES:
            now = time.monotonic()
            said = {key: {"ago_s": now - at, "ahead_s": ahead} for key, (at, ahead) in self._heard.items()}
            await answer(send, 200, json.dumps(said).encode())
            return
        key, ahead = "", 0.0
        with suppress(ValueError, TypeError, KeyError):  # no node's request
            headers = dict(scope["headers"])
            stamp, now_here = datetime.fromisoformat(headers[STAMP.encode()].decode()), datetime.now(UTC)
            ahead = (stamp - now_here).total_seconds() if scope.get("path") != ARRAYS else 0.0
            wrong = skewed(stamp, stamp, now_here) if ahead else ""
            self._say(wrong and f"a node's clock is {wrong} this machine's, and may be refused; set it (NTP)")
            key = sha256(b64decode(headers[PUBLIC_KEY])).hexdigest()

        async def noted(said: Any) -> None:
            """Note a node that the application has let in by its key, or its clock if it was let in before, and pass
            the answer on.
            """
            if key and said.get("status") == 200:
                self._heard[key] = (time.monotonic(), ahead)
            elif key in self._heard:
                self._heard[key] = (self._heard[key][0], ahead)
            await send(said)

        await self.app(scope, receive, noted)


async def answer(send: Callable[[Any], Any], status: int, body: bytes) -> None:
    """Answer a request with a plain text."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


def why_unverified(error: str, now: datetime) -> str:
    """Return what is wrong with the operator's certificate by OpenSSL's error; "" if the error is of something else."""
    for said, what in (("has expired", "has run out"), ("is not yet valid", "is not valid yet")):
        if f"certificate {said}" in error:
            return f"the operator's certificate {what} by this machine's clock, {now:%Y-%m-%d %H:%M} UTC"
    return ""


def name_refusals(say: Callable[[str], None]) -> None:
    """From now on, say why requests of this process fail because of a clock, a certificate or an earlier node.

    A node that is not let in asks again: the SuperLink may still take its predecessor for online. It also asks again
    where Flower would end it because of what passes: a certificate that has run out, a connection cut in the making, a
    fault of the SuperLink.
    """
    import httpx

    send, told = httpx.Client.send, seldom(say)

    def sent(self: httpx.Client, request: httpx.Request, **how: Any) -> httpx.Response:
        """Send a request as before."""
        begun, end = datetime.now(UTC), time.monotonic() + LET_IN_S
        try:
            response = send(self, request, **how)
        except httpx.ConnectError as wrong:
            if why := why_unverified(str(wrong), begun):
                told(why)
            elif "certificate" in str(wrong):  # another operator's
                raise
            # in other words: whatever names TLS ends a SuperNode, be it a SuperLink that hung up while it was stopped
            raise httpx.ConnectError("no connection; it is tried again") from wrong
        told(_apart(response, begun))
        while request.url.path == ACTIVATE and response.status_code == 412 and time.monotonic() < end:
            why = "its key was not admitted, or a node with it was stopped less than a minute ago"
            told(f"the SuperLink does not let this node in ({why}); it is asked again for {LET_IN_S:.0f} s")
            time.sleep(APART_S)
            response = send(self, request, **how)
        if response.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
            # what ails the SuperLink (its disk is full) passes; after this answer a node would end, or send no signs of
            # life any more
            response.status_code = httpx.codes.SERVICE_UNAVAILABLE
        return response

    httpx.Client.send = sent  # type: ignore[method-assign]


def _apart(response: httpx.Response, begun: datetime) -> str:
    """Return how the clock here differs from that of the machine that answered a request, which says when it did."""
    with suppress(ValueError, TypeError, KeyError):  # it does not say so
        # to the second
        other = parsedate_to_datetime(response.headers["date"]) + timedelta(seconds=0.5)
        wrong = skewed(begun, datetime.now(UTC), other)
        return wrong and f"this machine's clock is {wrong} the operator's, which may refuse it: set it (NTP)"
    return ""


def watch_certificates(folder: Path, say: Callable[[str], None], load: Callable[[], None]) -> None:
    """From now on, say it once for each certificate in a folder that has run out, or will soon, and load new ones.

    Args:
        folder: the folder.
        say: is given each line.
        load: loads the server's own certificate and key; it is called when a certificate there has changed.
    """

    def watch() -> None:
        """Look now and then."""
        told, loaded = set[str](), _written(folder)
        while True:
            try:
                lines = check_certificates(folder, datetime.now(UTC))
                if (now := _written(folder)) != loaded:
                    load()
                    loaded = now
            except (ValueError, OSError) as wrong:  # one has run out, or is being replaced
                lines = str(wrong).splitlines()
            for line in lines:
                if line not in told:
                    say(f"hanse: {line}")
            told |= set(lines)
            time.sleep(APART_S)

    threading.Thread(target=watch, daemon=True).start()


def _written(folder: Path) -> list[int]:
    """Return when each certificate in a folder was written."""
    return [path.stat().st_mtime_ns for path in sorted(folder.glob("*.crt"))]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: its kind: "certificate", "agreement", "process", "node", "disk", "run", "bond", "books", "backup".
        name: which one.
        state: whether it is well.
        said: what was found, in a line.
        numbers: what can be measured, such as ``{"days": 300.0}``, named for what is counted.
        asked: whether the whole goes by it. Backups are asked for once one was made.
    """

    about: str
    name: str
    state: State
    said: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    asked: bool = True

    @property
    def line(self) -> str:
        """The finding in a line."""
        return f"{self.state:8} {self.about} {self.name}: {self.said}"


def judged(where: Path, now: datetime) -> Iterator[Finding]:
    """Yield how long certificates are good: each in a folder, or that in a file.

    Args:
        where: a certificate, or an operator's folder with ``ca.crt`` and the servers' certificates.
        now: the time.

    Raises:
        UserError: a file holds none.
    """
    from cryptography import x509

    for path in [where] if where.is_file() else sorted(where.glob("*.crt")):
        try:
            found = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError:
            raise UserError(f"{path}: is not a certificate (PEM)") from None
        first, last = found.not_valid_before_utc, found.not_valid_after_utc
        days = (last - now) / timedelta(days=1)
        said = f"lasts until {last:%Y-%m-%d %H:%M} UTC ({quantity(f'{days:.0f}', 'day')})"
        if first <= now <= last:
            yield Finding("certificate", path.name, "warning" if days < SOON_D else "fine", said, {"days": days})
        else:
            said = (
                f"has run out on {last:%Y-%m-%d %H:%M} UTC" if days < 0 else f"is valid from {first:%Y-%m-%d %H:%M} UTC"
            )
            said = f"{said}, by this machine's clock"
            yield Finding("certificate", path.name, "failure", said, {"days": days})


def check_certificates(where: Path, now: datetime) -> list[str]:
    """Return a warning for each of an operator's certificates that will run out soon (:func:`judged`).

    Raises:
        UserError: one has run out, or is not valid yet. The message has a line for each.
    """
    found, folder = list(judged(where, now)), where.parent if where.is_file() else where
    if wrong := [f"{folder / one.name}: {one.said}: no node is let in" for one in found if one.state == "failure"]:
        raise UserError(*wrong, "'hanse network renew' makes others")
    soon = (one for one in found if one.state == "warning")
    return [f"warning: {folder / one.name}: {one.said}; then no node is let in: 'hanse network renew'" for one in soon]
