"""Language models: LoRA adapters as table rows, and the scoring of their answers.

``adapter.py`` is the model ``"lora"``, and ``judge.py`` scores its answers. The instruction data are in
:mod:`hanse.data.instructions`. All of this needs the extra ``hanse[llm]``, whose libraries are imported when they are
first used.
"""
