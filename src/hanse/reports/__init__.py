"""Figures, tables and pages made from run directories.

``report.py`` puts together the report of several runs; each kind of chart has a module of its own, and ``groups.py``
gathers the seeds of one experiment for all of them; ``answers.py`` says
on top what most readers want to know.
``statement.py`` is for one participant, ``compare.py`` for several
runs side by side, ``audit.py`` and ``disputes.py`` are for checking a run, ``prospect.py`` is for deciding
before one, and ``crate.py`` describes a run for other tools.
"""
