"""Many runs: grids of experiments, the published tables, and the processes or clusters that play them.

``sweep.py`` makes a grid of runs from one experiment, ``papers/`` makes the tables of the papers. Both end as a list of
jobs (``job.py``), which ``player.py`` plays in this process, in several, or on a cluster. ``theory.py`` compares a
paper's formulas with simulation.
"""
