"""hanse on Flower: the names that your Flower app imports.

* A project of ``hanse new``, whose participants have the data, uses these names. ``server_app`` makes the server's app
from an experiment. ``client_app`` makes a participant's app from a function ``load_data`` that returns ``ClientData``.
``instructions`` reads texts for language models. ``Trusted`` names the members with whose updates a participant's own
may be summed. * For an existing Flower app: ``strategy`` plays a mechanism with its client app, whose messages ``Keys``
describes. Some mechanisms ask for more than training. One line with ``speaks`` lets the client app answer.

Needs the extra ``flower`` (``pip install '.[flower]'`` in a clone of hanse).
"""

from hanse.deployment.client import client_app, instructions
from hanse.deployment.server import server_app
from hanse.deployment.strategy.federation import Keys
from hanse.deployment.strategy.strategy import strategy
from hanse.deployment.strategy.wrapped_app import speaks
from hanse.federation.masker import Trusted
from hanse.federation.node import ClientData

__all__ = ["ClientData", "Keys", "Trusted", "client_app", "instructions", "server_app", "speaks", "strategy"]
