"""Language models: instructions as data, and LoRA adapters as table rows.

:mod:`~hanse.wings.language.sources` has the sources by name and their clients, and
:mod:`~hanse.wings.language.records` reads files and makes tokens. ``adapter.py`` is the model ``"lora"``, and
``judge.py`` scores its answers. The models need the extra ``hanse[llm]``, whose libraries are imported when they are
first used.
"""

from hanse.base.wings import Wing

TEXTS = (
    "instructions", "instruction_files", "fiqa", "tfns", "nwgi", "code_alpaca", "mixed_finance", "finance_code",
)  # fmt: skip

WING = Wing(
    "language",
    names={
        "models": {"lora": "hanse.wings.language.adapter:lora"},
        "sources": dict.fromkeys(TEXTS, "hanse.wings.language.sources:INSTRUCTIONS"),
    },
)
