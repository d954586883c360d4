"""Hanse on Flower: ``server_app`` and ``client_app`` for a consortium's own project, ``instructions`` for its texts;
``strategy`` for a mechanism over a client app that stays as it is, ``speaks`` for what that app is asked beside.

Needs the extra ``flower`` (``pip install 'hanse[flower]'``).
"""

from hanse.deployment.client import client_app, instructions
from hanse.deployment.server import server_app
from hanse.deployment.strategy.federation import Keys
from hanse.deployment.strategy.speaks import speaks
from hanse.deployment.strategy.strategy import strategy
from hanse.federation.node import ClientData

__all__ = ["ClientData", "Keys", "client_app", "instructions", "server_app", "speaks", "strategy"]
