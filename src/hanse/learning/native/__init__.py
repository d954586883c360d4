"""The native engine: local SGD of linear layers in compiled code, if hanse was installed with a C compiler.

``seats.c`` is the code (``tiles.h`` its products, once for each width of vectors), ``library.py`` loads it,
``engine.py`` wraps it as an engine, and ``outputs.py`` scores models with it.
"""
