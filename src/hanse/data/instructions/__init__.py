"""Texts of instructions and answers, for fine-tuning language models.

:mod:`~hanse.data.instructions.sources` has the sources by name and their clients,
:mod:`~hanse.data.instructions.published` reads the sets that iPFL uses, and :mod:`~hanse.data.instructions.records`
reads files and makes tokens.
"""
