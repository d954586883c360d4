"""A federation around another one, as the server sees it: the base of every wrapper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hanse.core.port import Closing, Federation, Reply, Request, Roster


@dataclass(frozen=True)
class Wrapped:
    """A federation that asks another one and changes the requests or the replies. This one changes nothing.

    Override :meth:`asked` or :meth:`heard`; or :meth:`exchange`, if one exchange becomes several.

    Attributes:
        inner: the federation that is asked.
    """

    inner: Federation

    def present(self, round: int) -> Roster:
        """Return the clients that are present."""
        return self.inner.present(round)

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Send the requests, and return the replies, both as this federation changes them."""
        replies = self.inner.exchange(round, self.asked(requests), deadline_s, closing)
        return self.heard(round, {request.client: request for request in requests}, replies, deadline_s)

    def asked(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return the requests as they are sent."""
        return requests

    def heard(
        self, round: int, asked: Mapping[int, Request], replies: Sequence[Reply], deadline_s: float | None
    ) -> Sequence[Reply]:
        """Return the replies as the server gets them.

        Args:
            round: the round.
            asked: the requests by client.
            replies: what came. It is not checked yet, and may be of clients that were not asked.
            deadline_s: the number of seconds after which a reply is too late. None: it is never too late.
        """
        return replies
