"""What a server knows of clients whose data lie elsewhere, and how they test the models that they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.data.federated import FederatedData
from hanse.data.samples import Samples
from hanse.federation.check import heard
from hanse.federation.port import Answered, Ask, Federation, Reply, Request, Roster, Score, Scored
from hanse.federation.said import OWN_ROW, PERSONAL, Tried
from hanse.held import personal_fit
from hanse.learning.job import Engine, Scores
from hanse.learning.sequences import perplexity
from hanse.mechanisms.part import OwnMix
from hanse.records import Tested, evaluate
from hanse.table import SERVER, Table

__all__ = ["RemoteData", "test_elsewhere"]


@dataclass(frozen=True)
class RemoteData(FederatedData):
    """The server's own sets, the shape of a sample, and the clients' reported sizes; no client's sample is here.

    ``text``: samples are tokens with a label at every position.
    """

    text: bool = field(default=False, kw_only=True)

    @staticmethod
    def of(
        sizes: Sequence[int],
        input_shape: tuple[int, ...],
        num_classes: int | None,
        validation: Samples | None = None,
        test: Samples | None = None,
        text: bool = False,
    ) -> RemoteData:
        """Return what the server knows of clients with these reported ``sizes``."""
        numbers = np.array(sizes, dtype=np.int64)
        return RemoteData("remote", num_classes, input_shape, "", numbers, validation, test, text=text)

    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Return no samples: they are elsewhere."""
        self._check(clients, share)
        shape, kind = self.input_shape, torch.float32 if self.num_classes is None else torch.int64
        none = Samples(torch.zeros(0, *shape), torch.zeros(0, dtype=kind))
        if self.text:
            none = Samples(torch.zeros(0, *shape, dtype=kind), torch.zeros(0, *shape, dtype=kind))
        return none, [torch.zeros(0, dtype=torch.int64) for _ in clients]

    def origin(self, share: str) -> Sequence[str]:
        """Return nothing: each participant's node keeps a fingerprint of its own data."""
        return ()

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return None: the server does not know them."""
        return None


def test_elsewhere(
    engine: Engine,
    data: FederatedData,
    federation: Federation,
    round: int,
    table: Table,
    rows: NDArray[np.int64],
    clients: NDArray[np.int64],
    own: OwnMix | None,
) -> Tested:
    """Test what clients hold: on the server's test set here, and by ``clients [n]`` that are here, each on
    its own test share.

    With ``own`` each client tests the personal model that it mixes for itself; the server sees neither model nor
    weights. A row that is a client's own is tested by its owner alone, and so not on the server's set.
    """
    public = rows[table.owner[rows] == SERVER]
    ours = evaluate(engine, data, table, public, np.zeros(0, np.int64)) if len(public) else Tested()
    roster = federation.present(round) if len(clients) else Roster()
    here = [c for c in np.intersect1d(roster.ids, clients).tolist() if table.owner[rows[c]] in (SERVER, c)]
    asked = [Request(c, (_test(table, int(rows[c]), own),)) for c in here]
    replies = federation.exchange(round, asked, None, 0) if asked else ()
    came = heard(round, asked, replies, table.rows.shape[1], roster)
    found = {c: said for c, reply in came.replies.items() if (said := _said(reply)) is not None}
    refused = {
        "test_refused": np.array([c for c, _ in came.refusals], np.int64),
        "test_reason": np.array([reason for _, reason in came.refusals], np.str_),
    }
    if not found:
        return replace(ours, arrays={**ours.arrays, **refused}) if came.refusals else ours
    tested = np.array(sorted(found), dtype=np.int64)
    loss, accuracy, count = np.array([found[int(c)] for c in tested]).T
    metrics: dict[str, float | None] = {"client/test_loss": float(loss.mean())}
    arrays = {"tested": tested, "test_loss": loss, "test_accuracy": accuracy, "test_samples": count.astype(np.int64)}
    if isinstance(data, RemoteData) and data.text:
        arrays["test_perplexity"] = np.array([perplexity(one) for one in loss.tolist()])
        mean = perplexity(float(np.average(loss, weights=count)))
        metrics["client/test_perplexity"] = mean if math.isfinite(mean) else None
    if not np.isnan(accuracy).any():
        metrics["client/test_accuracy"] = float(accuracy.mean())
        metrics["client/test_accuracy_weighted"] = float(np.average(accuracy, weights=count))
        metrics["client/test_accuracy_min"] = float(accuracy.min())
    metrics |= personal_fit(Scores(loss, accuracy, arrays["test_samples"]))
    return Tested({**ours.metrics, **metrics}, arrays | refused if came.refusals else arrays)


def _test(table: Table, row: int, own: OwnMix | None) -> Score | Ask:
    """Return the question how well a client does with what it holds."""
    model = table.rows[row][None]
    if table.owner[row] != SERVER:  # the server has the first one alone
        return Ask(OWN_ROW, {"row": row}, model, "test")
    if own is None:
        return Score("test", model, "test")
    return Ask(PERSONAL, {"normalised": own.normalised}, table.rows[own.rows], own.share)


def _said(reply: Reply) -> tuple[float, float, int] | None:
    """Return loss, accuracy (NaN: none) and number of samples of a sound reply to a test; None: it has no samples."""
    [result] = reply.results
    if isinstance(result, Answered):
        tried = cast(Tried, result.values)
        loss, accuracy, count = tried["loss"], tried["accuracy"], tried["num_samples"]
        return (float(loss), math.nan if accuracy is None else float(accuracy), count) if count else None
    assert isinstance(result, Scored)
    return (float(result.loss[0]), float(result.accuracy[0]), result.num_samples) if result.num_samples else None
