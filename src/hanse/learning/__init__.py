"""Models, their local training by several engines that agree, and the scoring of many models at once.

``job.py`` says what training is asked to do. ``models.py`` makes models, ``losses.py`` has what they minimise, and
``metrics.py`` how they are judged. ``engines.py`` chooses an engine (``sequential.py``, ``stacked.py``, ``vmapped.py``,
``native/``), and ``agreement.py`` checks that it computes what the module itself computes. ``scoring.py`` scores many
models, ``coalitions.py`` values coalitions of clients. ``loop.py`` is for users' own training loops.
"""
