"""Receipts that a participant was told over a network: checked, signed with its own key, and kept."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hanse.federation.codec import WireError
from hanse.federation.secret import private_file, private_folder
from hanse.ledger.receipts import Receipt, load_key, write_receipts

__all__ = ["keep_receipts"]


def keep_receipts(folder: Path, client: int, lines: str, secret: Path) -> None:
    """Add the receipts in ``lines`` (JSON, one a line) to the client's file in ``folder``, signed with the Ed25519 key
    in the file ``secret`` if there is one.

    Raises WireError for a line that is no receipt, or is another client's: it would spoil the file.
    """
    try:
        told = [_read(json.loads(line)) for line in lines.splitlines()]
    except (ValueError, TypeError, KeyError) as wrong:
        raise WireError(f"not receipts: {wrong}") from None
    if any(receipt.client != client for receipt in told):
        raise WireError("a receipt of another client")
    file = private_folder(folder) / f"client-{client}.jsonl"
    have = _last(file, len(told))
    with private_file(file, "ab"):
        pass  # made here, so that it is private
    write_receipts(folder, [r for r in told if r not in have], {client: load_key(secret)} if secret.exists() else None)


def _last(path: Path, count: int) -> list[Receipt]:
    """Return the last receipts of a file, as they were told: a server that died before it heard us tells them again."""
    if not path.exists():
        return []
    found = []
    with path.open() as file:
        for line in deque(file, maxlen=count):
            with suppress(ValueError, TypeError, KeyError):  # torn by a crash while it was written
                found.append(_read(json.loads(line)))
    return found


def _read(said: Any) -> Receipt:
    postings = tuple((str(step), str(account), int(units)) for step, account, units in said["postings"])
    receipt = Receipt(**{**said, "postings": postings})
    numbers = (receipt.round, receipt.client, receipt.count, receipt.balance, receipt.escrow)
    words = (receipt.book, receipt.head)
    if any(type(n) is not int for n in numbers) or not all(isinstance(w, str) for w in words):
        raise ValueError("a field of another type")
    return replace(receipt, key="", signature="")  # the participant signs, nobody else
