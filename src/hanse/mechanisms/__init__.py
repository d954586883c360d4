"""Mechanisms: the parts that decide what happens in a round, and the published systems that are composed of them.

Each published system has its own module, to be read with its paper (``scaffold``, ``ipfl``, ``pifl``, ...). Parts that
several systems share are grouped by slot: ``select``, ``train``, ``weigh`` (with ``robust`` and ``server_steps``),
``value`` and ``deploy``. ``baselines`` has the systems that combine only such parts. ``registry`` finds all of them by
name and checks their options. ``mechanism_table`` does the reverse: it writes a mechanism as the table of an
experiment's file. :mod:`hanse.core.part` says what a part is.
"""
