"""Language models in the market: LoRA adapters as table rows, instruction data, and what answers are worth.

The model ``"lora"`` and the sources ``"instructions"``, ``"mixed_finance"`` and so on come from here; they need the
extra ``hanse[llm]``. Nothing of it is imported before it is used.
"""
