"""Clocks and certificates, whose faults Flower tells nobody: both ends name them at the first request that they spoil.

Flower's SuperLink refuses a node whose signature is dated in the future, and TLS a certificate that has run out.
:class:`ClockGate` stands before the SuperLink, :func:`name_refusals` is called in a SuperNode's process, and
:func:`check_certificates` when the operator starts servers or a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanse.base.errors import UserError

if TYPE_CHECKING:
    import httpx

AHEAD_S, BEHIND_S = 5, 305  # by so much Flower lets a node's clock differ from the SuperLink's
SOON_D = 30  # days before its end from which a certificate is warned of
AGAIN_S = 60.0  # the gate's log has at most a line in this time, since anybody can claim to have another time


def skewed(stamp: datetime, now: datetime) -> str:
    """Return by how much a node's clock is wrong, if Flower refuses that; "" if it does not.

    Args:
        stamp: the time by the node's clock.
        now: the time by the SuperLink's.

    Examples:
        >>> noon = datetime(2026, 11, 28, 12, tzinfo=UTC)
        >>> skewed(noon + timedelta(seconds=30), noon), skewed(noon, noon)
        ('30 s ahead', '')
    """
    ahead = (stamp - now).total_seconds()
    return "" if -BEHIND_S < ahead <= AHEAD_S else f"{abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"


class ClockGate:
    """An ASGI application that says in the server's log which nodes are refused because of their clocks.

    Args:
        app: the application behind the gate, which refuses them.
    """

    def __init__(self, app: Any) -> None:
        self.app, self._told = app, -AGAIN_S

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Pass a request on."""
        try:
            stamp = dict(scope.get("headers", ())).get(b"flwr-timestamp", b"")
            wrong = skewed(datetime.fromisoformat(stamp.decode()), datetime.now(UTC))
        except (ValueError, TypeError):  # no node's request
            wrong = ""
        if wrong and time.monotonic() - self._told >= AGAIN_S:
            self._told = time.monotonic()
            print(f"hanse: a node is refused, since its clock is {wrong} of this machine's; set it (NTP)", flush=True)
        await self.app(scope, receive, send)


def why_refused(status: int, headers: Mapping[str, str], now: datetime) -> str:
    """Return that a SuperLink's answer is a refusal because of this node's clock; "" if it is not.

    Args:
        status: the answer's status code.
        headers: its headers, with the other machine's time in "date", to the second.
        now: the time here.
    """
    try:
        wrong = skewed(now, parsedate_to_datetime(headers["date"]) + timedelta(seconds=0.5)) if status == 401 else ""
    except (KeyError, ValueError, TypeError):
        wrong = ""
    return f"this machine's clock is {wrong} of the operator's, which refuses it: set it (NTP)" if wrong else ""


def why_unverified(error: str, now: datetime) -> str:
    """Return what is wrong with the operator's certificate by OpenSSL's error; "" if the error is of something else."""
    for said, what in (("has expired", "has run out"), ("is not yet valid", "is not valid yet")):
        if f"certificate {said}" in error:
            return f"the operator's certificate {what} by this machine's clock, {now:%Y-%m-%d %H:%M} UTC"
    return ""


def name_refusals(say: Callable[[str], None]) -> None:
    """From now on, say why requests of this process fail because of a clock or a certificate."""
    import httpx

    send = httpx.Client.send

    def sent(self: httpx.Client, request: httpx.Request, **how: Any) -> httpx.Response:
        """Send a request as before."""
        why = ""
        try:
            response = send(self, request, **how)
            why = why_refused(response.status_code, response.headers, datetime.now(UTC))
            return response
        except httpx.ConnectError as wrong:
            why = why_unverified(str(wrong), datetime.now(UTC))
            raise
        finally:
            if why:
                say(f"hanse: {why}")

    httpx.Client.send = sent  # type: ignore[method-assign]


def check_certificates(folder: Path, now: datetime) -> list[str]:
    """Return a warning for each certificate in an operator's folder that will run out soon.

    Args:
        folder: the folder with ``ca.crt`` and the servers' certificates.
        now: the time.

    Raises:
        UserError: one has run out, or is not valid yet. The message has a line for each.
    """
    from cryptography import x509

    wrong, soon = list[str](), list[str]()
    for path in sorted(folder.glob("*.crt")):
        found = x509.load_pem_x509_certificate(path.read_bytes())
        first, last = found.not_valid_before_utc, found.not_valid_after_utc
        if not first <= now <= last:
            wrong.append(
                f"{path}: is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, and this machine's clock says {now}"
            )
        elif last - now < timedelta(days=SOON_D):
            soon.append(f"warning: {path}: runs out on {last:%Y-%m-%d}; then no node is let in")
    if wrong:
        remedy = (
            "remove all of certs but operator.key and operator.pub: 'up' makes others, and members need the new ca.crt"
        )
        raise UserError(*wrong, remedy)
    return soon
