"""SETTLE: who pays whom; one file a family of parts."""

from hanse.mechanisms.settle.market import Payments, Utilities
from hanse.mechanisms.settle.tokens import ServerTokens, Tokens

__all__ = ["Payments", "ServerTokens", "Tokens", "Utilities"]
