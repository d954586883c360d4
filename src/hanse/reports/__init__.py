"""Figures, tables and pages made from run directories.

``report.py`` assembles the report of several runs. Each kind of chart has its own module, ``groups.py`` gathers the
seeds of one experiment, and ``answers.py`` writes the summary at the top. ``statement.py`` is for one participant, and
``compare.py`` shows runs side by side. ``audit.py`` checks a run, ``invoice.py`` splits a total among its clients, and
``prospect.py`` helps to decide before one. Their numbers are in ``facts.py``.
"""
