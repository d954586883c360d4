"""The charter: what a consortium signs, and what software plays, bounds and proves of it.

``capped.py`` weighs by member, with caps, fixed weights, a clip and a floor.

Leaving: ``lineage.py`` finds the models that hold a client's updates, ``leaving.py`` makes a client leave a run,
``leave_receipt.py`` is what it gets, and ``leave_command.py`` has the commands.
"""

from hanse.base.wings import Command, Wing

WING = Wing(
    "charter",
    names={"weigh": {"capped": "hanse.wings.charter.capped:Capped"}},
    commands=(
        Command("leave", "hanse.wings.charter.leave_command:leave", "Run something"),
        Command("audit leave", "hanse.wings.charter.leave_command:check", ""),
    ),
)
