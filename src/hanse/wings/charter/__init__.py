"""The charter: what a consortium signs, and what software plays, bounds and proves of it.

``charter.py`` has its file, ``section.py`` what it sets in an experiment, ``guard.py`` what surrounds the clients:
members only, a quorum, no question beyond it. ``capped.py`` weighs by member, with caps, fixed weights, a clip and a
floor. ``amendment.py`` is about amendments and their signatures. ``rehearse.py`` plays a charter before it is signed,
and ``shift.py`` says how far a few members can move a model in a round. ``command.py`` has ``hanse charter``.

Leaving: ``lineage.py`` finds the models that hold a client's updates, ``leaving.py`` makes a client leave a run,
``leave_receipt.py`` is what it gets, and ``leave_command.py`` has the commands.
"""

from hanse.base.wings import Command, Wing

WING = Wing(
    "charter",
    commands=(
        Command("charter", "hanse.wings.charter.command:app", "Run something", plays=True),
        Command("leave", "hanse.wings.charter.leave_command:leave", "Run something"),
        Command("audit leave", "hanse.wings.charter.leave_command:check", ""),
    ),
    names={
        "sections": {"charter": "hanse.wings.charter.section:sections_under"},
        "amends": {"charter": "hanse.wings.charter.amendment:amended"},
        "guards": {"charter": "hanse.wings.charter.guard:CharterGuard"},
        "weigh": {"capped": "hanse.wings.charter.capped:Capped"},
        "replays": {"leave": "hanse.wings.charter.leave_receipt:unsigned"},
    },
)
