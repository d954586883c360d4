"""The game theory behind the mechanisms: functions from arrays to arrays, without learning, files or clients.

Every function here can be used without the rest of hanse. Module ``shapley`` lists all values of players. GTFLAT's game
among models is in ``replicator``, iPFL's market of models in ``market``, and PI-FL's tiers and tokens are in ``tiers``
and ``tokens``.
"""
