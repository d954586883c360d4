"""The native engine: local SGD of linear layers in compiled code, if hanse was installed with a C compiler.

The code is ``seats.c``, and ``tiles.h`` has its matrix products, once for each width of vectors. ``engine.py`` loads
the compiled code, and wraps it as an engine.
"""
