"""One question, one call: one line of Python gives an answer, as an object that displays itself.

``valuing.py`` values contributions (``hanse.value``, ``hanse.shapley``). ``joining.py`` says who gains by joining a
federation (``hanse.who_gains``). ``run.py`` gives the same answers for a run (``hanse.run``, ``hanse.load``).
``showing.py`` displays answers in a notebook or terminal.
"""
