"""Who paid whom, by the postings of one transaction."""

import pytest

from hanse.ledger.totals import flows_of, net_of


@pytest.mark.parametrize(
    ("postings", "flows"),
    [
        ((("client/0", -5), ("client/1", 3), ("pool/a", 2)), [("client/0", "client/1", 3), ("client/0", "pool/a", 2)]),
        ((("client/0", -5), ("escrow/0", 5)), []),
        ((("escrow/0", -5), ("pool/a", 5)), [("client/0", "pool/a", 5)]),
        ((("mint", -5), ("client/0", 5)), []),
        ((("pool/a", -9), ("client/0", 4), ("client/1", 5)), [("pool/a", "client/0", 4), ("pool/a", "client/1", 5)]),
        (
            (("client/0", -6), ("client/1", -4), ("client/2", 5), ("client/3", 5)),
            [("client/0", "client/2", 3), ("client/0", "client/3", 3), ("client/1", "client/2", 2),
             ("client/1", "client/3", 2)],
        ),
    ],
)  # fmt: skip
def test_who_paid_whom(postings: tuple[tuple[str, int], ...], flows: list[tuple[str, str, int]]) -> None:
    assert flows_of(net_of(postings)) == flows
