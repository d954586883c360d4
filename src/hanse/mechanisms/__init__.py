"""Mechanisms: the parts that decide what happens in a round, and the published systems that are composed of them.

A published system has a module of its own, to be read beside its paper (``scaffold``, ``ipfl``, ``pifl``, ...). Parts
that several systems share are grouped by the slot they fill: ``select``, ``train``, ``weigh`` (with ``robust``,
``server_steps`` and ``staleness``), ``value`` and ``deploy``. ``baselines`` has the systems that need no part of their
own. ``registry`` finds all of them by name and checks their options; ``written`` turns a mechanism back into a file's
table. :mod:`hanse.core.part` says what a part is.
"""
