"""What a server knows of clients whose data lie elsewhere, and how they test the models that they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.data.federated import FederatedData
from hanse.data.samples import Samples
from hanse.federation.own import OWN_ROW, PERSONAL
from hanse.federation.port import Answered, Ask, Federation, Reply, Request, Score, Scored
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
    present = federation.present(round).ids if len(clients) else clients
    here = [c for c in np.intersect1d(present, clients).tolist() if table.owner[rows[c]] in (SERVER, c)]
    asked = [Request(c, (_test(table, int(rows[c]), own),)) for c in here]
    found = {}
    for reply in federation.exchange(round, asked, None, 0) if asked else ():
        said = _said(reply)
        if said is not None and reply.client in here:
            found[reply.client] = said
    if not found:
        return ours
    tested = np.array(sorted(found), dtype=np.int64)
    loss, accuracy, count = np.array([found[int(c)] for c in tested]).T
    metrics: dict[str, float | None] = {"client/test_loss": float(loss.mean())}
    arrays = {"tested": tested, "test_loss": loss, "test_accuracy": accuracy, "test_samples": count.astype(np.int64)}
    if isinstance(data, RemoteData) and data.text:
        arrays["test_perplexity"] = np.array([perplexity(one) for one in loss.tolist()])
        metrics["client/test_perplexity"] = perplexity(float(np.average(loss, weights=count)))
    if not np.isnan(accuracy).any():
        metrics["client/test_accuracy"] = float(accuracy.mean())
        metrics["client/test_accuracy_weighted"] = float(np.average(accuracy, weights=count))
        metrics["client/test_accuracy_min"] = float(accuracy.min())
    metrics |= personal_fit(Scores(loss, accuracy, arrays["test_samples"]))
    return Tested({**ours.metrics, **metrics}, arrays)


def _test(table: Table, row: int, own: OwnMix | None) -> Score | Ask:
    """Return the question how well a client does with what it holds."""
    model = table.rows[row][None]
    if table.owner[row] != SERVER:  # the server has the first one alone
        return Ask(OWN_ROW, {"row": row}, model, "test")
    if own is None:
        return Score("test", model, "test")
    return Ask(PERSONAL, {"normalised": own.normalised}, table.rows[own.rows], own.share)


def _said(reply: Reply) -> tuple[float, float, int] | None:
    """Return loss, accuracy (NaN: none) and number of samples of a reply to a test, which is untrusted input."""
    if reply.refused is not None or len(reply.results) != 1:
        return None
    [result] = reply.results
    if isinstance(result, Scored) and result.num_samples and len(result.loss) == 1 == len(result.accuracy):
        return float(result.loss[0]), float(result.accuracy[0]), result.num_samples
    if isinstance(result, Answered) and result.name in (PERSONAL, OWN_ROW):
        loss, accuracy, count = (result.values.get(key) for key in ("loss", "accuracy", "num_samples"))
        sound = isinstance(loss, int | float) and isinstance(accuracy, int | float | None) and isinstance(count, int)
        if sound and count:
            return float(loss), math.nan if accuracy is None else float(accuracy), count  # type: ignore[arg-type]
    return None
