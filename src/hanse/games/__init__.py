"""The game theory behind the mechanisms: arrays in, arrays out; no learning, no files, no clients.

Every function here can be used without the rest of hanse. Values of players: ``shapley`` names them all. GTFLAT's game
among models: ``replicator``. iPFL's market of models: ``market``. PI-FL's tiers and tokens: ``tiers`` and ``tokens``.
"""
