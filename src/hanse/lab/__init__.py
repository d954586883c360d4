"""Plays many runs: grids of experiments, and other lists of jobs, in several processes or on a cluster.

``sweep.py`` makes a grid of runs from one experiment: a list of jobs (``job.py``), which ``player.py`` plays in this
process, in several, or on a cluster. ``kept.py`` keeps their results, ``statistics.py`` tests what they show.
"""
