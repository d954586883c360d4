"""The papers' experiments and published tables as data, and what ``hanse reproduce`` does with them.

A table is a TOML file (``<paper>/<table>.toml``). ``tables.py`` reads it, ``catalogue.py`` finds it by name, and
``runner.py`` plays its runs. ``compare.py`` compares results with the published numbers; ``figures.py`` and ``show.py``
present them. ``changes.py`` lists what a smaller scale leaves out, and ``computed.py`` has the few numbers that need no
training.
"""
