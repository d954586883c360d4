"""Operation: a network's processes, certificates and gates, and the live page.

``network.py`` and ``serve.py`` (the live page) are the commands. ``loopback.py`` is a network on this machine, with
``processes.py``, ``certificates.py`` and ``warm_process.py``. ``server_access.py`` has the gates before a SuperLink.
"""

from hanse.base.wings import Command, Wing

LOOK, NETWORK = "Look at runs", "On a network"

WING = Wing(
    "operate",
    commands=(
        Command("serve", "hanse.wings.operate.serve:serve", LOOK),
        Command("network", "hanse.wings.operate.network:app", NETWORK, plays=True),
    ),
    names={"statements": {"page": "hanse.wings.operate.serve:statement_page"}},
)
