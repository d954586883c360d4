"""One question, one call: answers in one line of Python, as objects that display themselves.

``valuing.py`` values contributions (``hanse.value``, ``hanse.shapley``), ``joining.py`` says who gains by joining a
federation (``hanse.who_gains``), and ``run.py`` gives the same answers for a run (``hanse.run``, ``hanse.load``).
``showing.py`` displays answers in a notebook or terminal.
"""
