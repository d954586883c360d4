"""One line for the client app of a Flower project: it answers the questions that some mechanisms put to clients.

The app's own train and evaluate functions stay as they are. What is asked beside training (scores of models, bids, a
test of a mix) is answered with the evaluate function, on the samples that it has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Context, MessageType, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from hanse.base.errors import UserError
from hanse.core.port import Reply, Request, Tested
from hanse.core.recipe import Recipe
from hanse.data.federated import RemoteData
from hanse.deployment.arrays import Form, metrics_of, numbers_of
from hanse.deployment.message import from_records, to_records
from hanse.federation.codec import Message, WireError, pack, unpack
from hanse.federation.local import LocalFederation
from hanse.federation.policy import Loyal
from hanse.learning.by_function import FunctionEngine
from hanse.learning.figures import Figures
from hanse.learning.job import Problem

SPEAKS = "speaks"
"""The kind of the question whether an app answers at all; the answer has the word, and the client's profile."""


def speaks(app: ClientApp, *, policy: Any = None, profile: dict[str, Any] | None = None, name: str = "") -> ClientApp:
    """Return the client app, which answers hanse's questions from now on with its own evaluate function.

    ``policy`` decides what it bids, declares and whether it stays (default: loyal; :mod:`hanse.federation.policy`).
    ``profile`` are plain values that the server may know of it, ``name`` what it is called. Raises UserError for what
    is no ClientApp, or answers already.
    """
    if not isinstance(app, ClientApp):
        raise UserError(f"speaks: {type(app).__name__}: must be a flwr.clientapp.ClientApp")

    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        try:
            request, values = from_records(message.content)
            if values.get("kind") == SPEAKS:
                said = {"profile": profile or {}, "name": name}
                return FlowerMessage(RecordDict({SPEAKS: ConfigRecord({"said": json.dumps(said)})}), reply_to=message)
            form, number = Form.beside(message.content), int(values["round"])
            asked = _Asked(app, message, context, form, values)
            reply = asked.reply(number, unpack(request), Loyal() if policy is None else policy, profile or {})
            return FlowerMessage(to_records(reply, round=number), reply_to=message)
        except WireError as wrong:
            return FlowerMessage(to_records(Message("null"), refused=str(wrong)), reply_to=message)

    try:
        app.query("hanse")(answer)
    except ValueError:
        raise UserError("speaks: the app answers hanse's questions already: must be wrapped once") from None
    return app


@dataclass(frozen=True)
class _Asked:
    """A question to a client: it is answered as a client of hanse's own does, by an engine that asks the app."""

    app: ClientApp
    message: FlowerMessage
    context: Context
    form: Form
    values: dict[str, Any]

    def reply(self, round: int, request: Any, policy: Any, profile: dict[str, Any]) -> Message:
        """Return the packed reply to a request. Raises WireError if it is none."""
        if not isinstance(request, Request):
            raise WireError("not a request")
        clients = int(self.values["clients"])
        if not 0 <= request.client < clients <= 1_000_000:
            raise WireError(f"not a request for one of {clients} clients")
        federation = LocalFederation(
            RemoteData.of([1] * clients, (1,), None),  # no samples are here: the app's function has its own
            Problem(nn.Identity(), self.form.layout, "mse"),
            FunctionEngine(self._evaluate),
            Recipe(),
            int(self.values["seed"]),
            policy=policy,
            profiles=[profile if i == request.client else {} for i in range(clients)],
        )
        replies = federation.exchange(round, [request], None, None)
        return pack(_without_own(replies[0]))

    def _evaluate(self, row: Tensor) -> Figures:
        """Return what the app's own evaluate function says of a model."""
        content = RecordDict()
        for key, record in self.message.content.items():
            if not key.startswith("hanse") and key != "arrays":
                content[key] = record
        content[str(self.values["arrayrecord-key"])] = self.form.arrays(row)
        content[str(self.values["configrecord-key"])] = ConfigRecord(json.loads(str(self.values["config"])))
        asked = FlowerMessage(content, reply_to=self.message)  # in a client app Flower makes no other
        asked.metadata.message_type = MessageType.EVALUATE
        said = self.app(asked, self.context)
        figures = numbers_of(metrics_of(said.content))
        return {**figures, "count": figures.get(str(self.values["weighted-by-key"]), 1.0)}


def _without_own(reply: Reply) -> Reply:
    """Return the reply without the weights of the client's own mixtures, without errors, which an evaluate function
    does not know, and without bytes, which the server counts.
    """
    results = tuple(replace(r, weights=None, loss_error=None) if isinstance(r, Tested) else r for r in reply.results)
    return replace(reply, results=results, bytes_down=0, bytes_up=0, arrival=None)
