"""The charter: what a consortium signs, and what software plays, bounds and proves of it.

``charter.py`` has its file and what it sets in an experiment, ``guard.py`` what surrounds the clients: members only, a
quorum, no question beyond it. ``capped.py`` weighs by member, with caps, fixed weights, a clip and a floor.
``amendment.py`` is about amendments and their signatures, ``command.py`` has ``hanse charter``.

Leaving: ``lineage.py`` finds the models that hold a client's updates, ``leaving.py`` makes a client leave a run,
``leave_receipt.py`` is what it gets, and ``leave_command.py`` has the commands.
"""

from hanse.base.wings import Command, Wing

WING = Wing(
    "charter",
    commands=(
        Command("charter", "hanse.wings.charter.command:app", "Run something", plays=True),
        Command("leave", "hanse.wings.charter.leave_command:leave", "Look at runs"),
        Command("audit leave", "hanse.wings.charter.leave_command:check", ""),
    ),
    names={
        "sections": {"charter": "hanse.wings.charter.charter:sections_under"},
        "amends": {"charter": "hanse.wings.charter.charter:amended"},
        "guards": {"charter": "hanse.wings.charter.guard:CharterGuard"},
        "weigh": {"capped": "hanse.wings.charter.capped:Capped"},
    },
)
