"""The papers' experiments and published tables as data, and what ``hanse reproduce`` does with them.

A table is a TOML file (``<paper>/<table>.toml``). ``tables.py`` reads it, ``catalogue.py`` finds it by name, and
``runner.py`` plays its runs. ``compare.py`` compares results with the published numbers; ``figures.py`` and ``show.py``
present them. ``changes.py`` lists what a smaller scale leaves out, and ``computed.py`` has the few numbers that need no
training. ``claims/`` has what the papers claim and which runs decide it. ``authors.py`` and ``twins.py`` are parts:
what the authors' code does, and mechanisms without their game. The command is in ``reproduce.py``.
"""

from hanse.base.wings import Command, Wing

__version__ = "0.1.0"  # hanse's: the two are of one clone

WING = Wing(
    "papers",
    commands=(Command("reproduce", "hanse_papers.reproduce:reproduce", "Run something", plays=True),),
)
