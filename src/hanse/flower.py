"""Hanse on Flower: ``server_app`` and ``client_app`` for a consortium's own project, ``instructions`` for its texts.

Needs the extra ``flower`` (``pip install 'hanse[flower]'``).
"""

from hanse.deployment.client import client_app, instructions
from hanse.deployment.server import server_app
from hanse.federation.node import ClientData

__all__ = ["ClientData", "client_app", "instructions", "server_app"]
