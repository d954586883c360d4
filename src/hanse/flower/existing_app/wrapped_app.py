"""One line that makes the client app of a Flower project answer hanse's questions.

Some mechanisms ask clients for more than training: scores of several models, bids, the test of a mix. :func:`speaks`
adds an answer to such questions to an app. It calls the app's own evaluate function with each model that is to be
scored; the samples are that function's. The app's train and evaluate functions do not change.

The answer is made by the same code as a simulated client's (:class:`hanse.federation.local.LocalFederation`), with an
engine that scores models by calling the app.
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
from hanse.federation.codec import Message, WireError, pack, unpack
from hanse.federation.local import LocalFederation
from hanse.federation.policy import Loyal
from hanse.flower.arrays import ArrayLayout
from hanse.flower.message import from_records, to_records
from hanse.flower.replies import metrics_of, numbers_of
from hanse.learning.by_function import FunctionEngine
from hanse.learning.figures import Figures
from hanse.learning.job import Problem

SPEAKS = "speaks"
"""The kind of the question whether an app answers at all; the answer has the word, and the client's profile."""


def speaks(app: ClientApp, *, policy: Any = None, profile: dict[str, Any] | None = None, name: str = "") -> ClientApp:
    """Make a client app answer hanse's questions as well, and return it.

    Args:
        app: the app. It has an evaluate function whose metrics include a loss, or what the mechanism asks for.
        policy: the participant's own decisions: bids, prices, and whether it stays (:mod:`hanse.federation.policy`).
            Default: :class:`~hanse.federation.policy.Loyal`.
        profile: plain values that the server may know of the participant, such as its costs.
        name: the participant's name, at most 80 characters. Default: the name under which its node was registered.

    Raises:
        UserError: ``app`` is not a ClientApp, or answers hanse's questions already.

    Examples:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp()
        >>> speaks(app, name="clinic", profile={"cost": 2.0}) is app
        True
        >>> speaks(app)
        Traceback (most recent call last):
        hanse.base.errors.UserError: speaks: the app answers hanse's questions already: wrap it once
    """
    if not isinstance(app, ClientApp):
        raise UserError(f"speaks: {type(app).__name__}: must be a flwr.clientapp.ClientApp")

    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        """Answer one question: whether the app answers at all, or a request of the server."""
        try:
            request, values = from_records(message.content)
            if values.get("kind") == SPEAKS:
                said = {"profile": profile or {}, "name": name}
                return FlowerMessage(RecordDict({SPEAKS: ConfigRecord({"said": json.dumps(said)})}), reply_to=message)
            form, number = ArrayLayout.beside(message.content), int(values["round"])
            asked = _Asked(app, message, context, form, values)
            reply = asked.reply(number, unpack(request), Loyal() if policy is None else policy, profile or {})
            return FlowerMessage(to_records(reply, round=number), reply_to=message)
        except WireError as wrong:
            return FlowerMessage(to_records(Message("null"), refused=str(wrong)), reply_to=message)

    try:
        app.query("hanse")(answer)
    except ValueError:
        raise UserError("speaks: the app answers hanse's questions already: wrap it once") from None
    return app


@dataclass(frozen=True)
class _Asked:
    """A request to a client, and what it takes to answer it with the client's own app.

    Attributes:
        app: the client's app.
        message: the server's message, to which an answer belongs.
        context: Flower's context of the node.
        form: what the app's arrays are.
        values: the plain values beside the request: names of records, number of clients, seed, configuration.
    """

    app: ClientApp
    message: FlowerMessage
    context: Context
    form: ArrayLayout
    values: dict[str, Any]

    def reply(self, round: int, request: Any, policy: Any, profile: dict[str, Any]) -> Message:
        """Return the packed reply to a request. Raises WireError if it is not a request to one of the clients."""
        if not isinstance(request, Request):
            raise WireError("not a request")
        clients = int(self.values["clients"])
        # the bound keeps a hostile server from making the node build lists of any length
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
        """Return what the app's evaluate function says of the model in ``row [P]``."""
        content = RecordDict()
        # the app gets the message that its evaluate function knows, with the model in question and nothing of hanse's
        # own
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
    """Return the reply without what must not be sent or means nothing here.

    The weights of the client's own mixture are private, an evaluate function knows no standard errors, and the server
    counts bytes itself.
    """
    results = tuple(replace(r, weights=None, loss_error=None) if isinstance(r, Tested) else r for r in reply.results)
    return replace(reply, results=results, bytes_down=0, bytes_up=0, arrival=None)
