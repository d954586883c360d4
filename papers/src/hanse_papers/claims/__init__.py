"""Papers' claims as data, the runs that decide them, and the verdicts.

Read in this order: :mod:`hanse.lab.statistics` (tests and verdicts, arrays in and out), ``claim.py`` (a paper's
``claims.toml``), ``judge.py`` (from kept runs to verdicts) and ``planner.py`` (which runs to play next).
"""
