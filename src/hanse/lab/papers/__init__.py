"""The papers' experiments and published tables as data, and ``hanse reproduce``, which runs them."""
