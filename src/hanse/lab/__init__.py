"""Plays many runs: grids of experiments and the published tables, in several processes or on a cluster.

``sweep.py`` makes a grid of runs from one experiment, ``papers/`` makes the tables of the papers. Both make a list of
jobs (``job.py``), which ``player.py`` plays in this process, in several, or on a cluster. ``theory.py`` compares a
paper's formulas with simulation.
"""
