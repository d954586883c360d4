"""For the nodes' warm process: the base model of the tests with adapters, loaded once for all messages."""

from hanse.wings.language.adapter import TINY, load_base

load_base(TINY, width=16, layers=1)
