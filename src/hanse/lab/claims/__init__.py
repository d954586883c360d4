"""Claims that decide themselves: what a paper says as data, the seeds that decide it, and the word that they give.

Read in this order: :mod:`~hanse.lab.claims.statistics` (tests and words, arrays in and out),
:mod:`~hanse.lab.claims.claim` (a paper's ``claims.toml``), :mod:`~hanse.lab.claims.judge` (from kept runs to words) and
:mod:`~hanse.lab.claims.planner` (which runs are played next).
"""
