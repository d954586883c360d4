"""One question, one call: what users ask of hanse in a line of Python, answered by an object that shows itself.

``valuing.py`` says what contributions were worth (``hanse.value``, ``hanse.shapley``), ``joining.py`` whom joining a
federation pays (``hanse.who_gains``), and ``run.py`` is a run with the same answers (``hanse.run``, ``hanse.load``).
``showing.py`` puts answers on a notebook's page and on a terminal.
"""
