"""The book as a value, and exact splits."""

from fractions import Fraction
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given
from ledger_cases import grant, pay

from hanse.core.book import Book, LedgerError, OverdraftError
from hanse.core.entry import MINT, TOKEN, Transaction, client
from hanse.ledger.split import split


def test_a_book_posts_all_or_nothing() -> None:
    book = Book().post(0, [grant(0), grant(1)])
    with pytest.raises(OverdraftError, match="-1 units"):
        book.post(0, [pay(0, 1, 5), pay(1, 0, 100 * TOKEN + 6)])
    assert (book.count, book.balances) == (2, {MINT: -200 * TOKEN, client(0): 100 * TOKEN, client(1): 100 * TOKEN})
    assert not book.can_pay(client(0), 100 * TOKEN + 1)
    assert book.can_pay(client(0), 100 * TOKEN)


def test_a_step_is_posted_once_and_rounds_do_not_go_back() -> None:
    book = Book().post(0, [grant(0)])
    with pytest.raises(LedgerError, match="name already"):
        book.post(0, [grant(0)])
    later = book.post(1, [grant(0)])  # another round: another key
    assert later.balance(client(0)) == 200 * TOKEN
    with pytest.raises(LedgerError, match="the book is in round 1 already"):
        later.post(0, [grant(1)])
    assert later.post(1, []) is later
    assert not hasattr(later, "add")  # parts are shown such a book, and the loop alone posts


def test_splits_worked_out_by_hand() -> None:
    assert split(10, [1, 1, 1]) == [4, 3, 3]  # equal remainders: the earlier
    assert split(10, [1, 2, 4]) == [1, 3, 6]  # 1.43, 2.86, 5.71: remainders .43, .86, .71
    assert split(100, [0, 0, 0, 0]) == [25, 25, 25, 25]
    assert split(-10, [1, 1, 1]) == [-4, -3, -3]
    assert split(1, [Fraction(1, 3), Fraction(2, 3)]) == [0, 1]


@given(st.integers(0, 10**18), st.lists(st.one_of(st.integers(0, 10**6), st.floats(0, 1e300)), min_size=1, max_size=30))
def test_parts_sum_to_the_whole_and_are_within_one_of_their_share(total: int, weights: list[float]) -> None:
    parts = split(total, weights)
    assert sum(parts) == total
    exact = [Fraction(w) for w in weights]
    if sum(exact):
        for part, weight in zip(parts, exact, strict=True):
            assert abs(part - total * weight / sum(exact)) < 1
            assert weight or part == 0
    order = sorted(range(len(parts)), key=lambda i: weights[i])
    assert all(parts[a] <= parts[b] for a, b in pairwise(order) if weights[a] < weights[b])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Transaction("", "x", (("mint", -1), ("client/0", 1))), "step ''"),
        (Transaction("a", "", (("mint", -1), ("client/0", 1))), "kind ''"),
        (Transaction("a", "x", (("mint", -1), ("client/0", 1)), "two\nlines"), "memo"),
        (Transaction("a" * 201, "x", (("mint", -1), ("client/0", 1))), "step 'a"),
        (Transaction("a", "x" * 201, (("mint", -1), ("client/0", 1))), "kind 'x"),
        (Transaction("a", "x", (("mint", -1), ("client/0", 1)), "m" * 10_001), "memo 'm"),
        (Transaction("a", "x", (("mint", -1), (f"pool/{'p' * 196}", 1))), "account 'pool/p"),
        (Transaction("a", "x", (("client/0", 0),)), "1 postings"),
        (Transaction("a", "x", (("mint", -1), ("clients/0", 1))), "account 'clients/0'"),
        (Transaction("a", "x", (("mint", 0), ("client/0", 0))), "amount 0"),
        (Transaction("a", "x", (("mint", -5.0), ("client/0", 5.0))), "amount -5.0"),  # type: ignore[arg-type]
        (Transaction("a", "x", (("mint", -1), ("client/0", True))), "amount True"),
        (Transaction("a", "x", (("mint", -(2**63)), ("client/0", 2**63))), "amount -9223372036854775808"),
        (Transaction("a", "x", (("mint", 1 - 2**63), ("pool/a", 2**63 - 1), ("mint", -5), ("pool/a", 5))), "at most"),
        (Transaction("a", "x", (("mint", -1), ("client/0", 2))), "postings sum"),
    ],
)
def test_a_book_takes_nothing_malformed(wrong: Transaction, said: str) -> None:
    with pytest.raises(LedgerError, match=said):
        Book().post(0, [wrong])
