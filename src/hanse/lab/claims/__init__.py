"""Papers' claims as data, the runs that decide them, and the verdicts.

Read in this order: :mod:`~hanse.lab.claims.statistics` (tests and verdicts, arrays in and out),
:mod:`~hanse.lab.claims.claim` (a paper's ``claims.toml``), :mod:`~hanse.lab.claims.judge` (from kept runs to verdicts)
and :mod:`~hanse.lab.claims.planner` (which runs to play next).
"""
