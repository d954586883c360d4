"""The search for cheats: what a client could gain by deviating from what its mechanism asks.

``attack_command.py`` is the command ``hanse attack``. ``deviant.py`` is the behaviour that may change all that a client
sends, and ``search.py`` looks for the changes that pay best. ``cheat_table.py`` plays the known cheats of
``cheats.toml``.
"""

from hanse.base.wings import Command, Wing

WING = Wing(
    "attack",
    commands=(Command("attack", "hanse.wings.attack.attack_command:attack", "Run something", plays=True),),
    names={"behaviours": {"deviant": "hanse.wings.attack.deviant:Deviant"}},
)
