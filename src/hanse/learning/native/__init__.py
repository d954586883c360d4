"""The native engine: local SGD of linear layers as compiled code, wherever the installation could compile it.

``seats.c`` is the code (``tiles.h`` its products, once for each width of vectors), ``library.py`` loads it, and
``engine.py`` makes an engine of it.
"""
