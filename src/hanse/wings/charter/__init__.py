"""The charter: what a consortium signs is what is played.

``charter.py`` has its file, ``section.py`` what it sets in an experiment, ``guard.py`` what surrounds the clients:
members only, a quorum, no question beyond it. ``capped.py`` weighs by member, with caps, fixed weights, a clip and a
floor. ``amendment.py`` is about amendments and their signatures. ``rehearse.py`` plays a charter before it is signed,
and ``shift.py`` says how far a few members can move a model in a round. ``command.py`` has ``hanse charter``.
"""

from hanse.base.wings import Command, Wing

WING = Wing(
    "charter",
    commands=(Command("charter", "hanse.wings.charter.command:app", "Run something", plays=True),),
    names={
        "sections": {"charter": "hanse.wings.charter.section:sections_under"},
        "amends": {"charter": "hanse.wings.charter.charter:amended"},
        "guards": {"charter": "hanse.wings.charter.guard:CharterGuard"},
        "weigh": {"capped": "hanse.wings.charter.capped:Capped"},
    },
)
