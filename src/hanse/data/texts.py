"""Sources of instructions by name, and how their texts become tokens; the sources are in :mod:`hanse.llm`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TEXTS", "TextOptions"]

TEXTS = (
    "instructions",
    "instruction_files",
    "fiqa",
    "tfns",
    "nwgi",
    "code_alpaca",
    "mixed_finance",
    "finance_code",
)


@dataclass(frozen=True)
class TextOptions:
    """How instructions become tokens: the ``tokenizer`` ("bytes", or a model's) and the window's ``length``."""

    tokenizer: str = "bytes"
    length: int = 512
