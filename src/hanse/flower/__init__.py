"""hanse on Flower: the names that your Flower app imports.

* A project of ``hanse new``, whose participants have the data, uses these names. ``server_app`` makes the server's app
from an experiment. ``client_app`` makes a participant's app from a function ``load_data`` that returns ``ClientData``.
``Trusted`` names the members with whose updates a participant's own may be summed.
* For an existing Flower app: ``strategy`` plays a mechanism with its client app, whose messages ``Keys`` describes.

Needs the extra ``flower`` (``pip install '.[flower]'`` in a clone of hanse).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hanse.base.wings import Names, absent

if TYPE_CHECKING:
    from hanse.federation.node import ClientData
    from hanse.flower.client import client_app, table
    from hanse.flower.existing_app.federation import Keys
    from hanse.flower.existing_app.strategy import strategy
    from hanse.flower.server import server_app

__all__ = ["ClientData", "Keys", "Trusted", "client_app", "server_app", "strategy", "table"]

_OF_WINGS = Names({}, "flower")
# the module of each other public name
_HOMES = {
    "ClientData": "hanse.federation.node",
    "Keys": "hanse.flower.existing_app.federation",
    "client_app": "hanse.flower.client",
    "server_app": "hanse.flower.server",
    "strategy": "hanse.flower.existing_app.strategy",
    "table": "hanse.flower.client",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that modules of this folder do not import each other's users."""
    if name in _OF_WINGS:
        return _OF_WINGS[name]
    if name in __all__ and name not in _HOMES:
        raise ImportError(f"hanse.flower.{name}: needs a wing{absent()}")
    if name not in _HOMES:
        raise AttributeError(f"module 'hanse.flower' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
