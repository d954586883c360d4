"""Privacy: sums of updates under masks, noise, and the accounts that count it.

``budgets.py`` reads ``[federation] private`` and ``secure`` and has their guards, ``forbids.py`` what they do not go
with; ``node_guard.py`` is a node's. Sums: ``secure_sums.py`` (in a simulation), ``masked_sums.py`` (the server of a
network), ``masker.py`` (a node), ``masks.py`` (the cryptography). Noise: ``privacy.py``, ``account.py``,
``clipping.py`` (a clip that follows the updates), and ``private_loop.py`` (DP-SGD as a training loop).
"""

from hanse.base.wings import Wing

WING = Wing(
    "private",
    names={
        "guards": {
            "federation.private": "hanse.wings.private.budgets:PrivateGuard",
            "federation.secure": "hanse.wings.private.budgets:SecureGuard",
        },
        "forbids": {"private": "hanse.wings.private.forbids:FORBIDS"},
        "accounts": {"private": "hanse.wings.private.account:account_from"},
        "node_guards": {"private": "hanse.wings.private.node_guard:PrivateNodeGuard"},
        "flower": {"Trusted": "hanse.wings.private.masker:Trusted"},
    },
)
