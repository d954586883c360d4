"""Hanse on Flower: the names that a Flower app of one's own imports.

* For a project of ``hanse new``, whose participants hold their data: ``server_app`` makes its server's app of an
  experiment, ``client_app`` a participant's of a ``load_data``, which returns ``ClientData``; ``instructions`` reads
  texts for language models, and ``Trusted`` says with whose updates its own may be summed.
* For a Flower app that stays as it is: ``strategy`` plays a mechanism over its client app, whose messages ``Keys``
  describes, and ``speaks`` is the line in that client app with which it answers what a mechanism asks besides training.

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
