"""Properties are checked without a clock: a busy machine is no fault."""

from hypothesis import settings

settings.register_profile("hanse", deadline=None)
settings.load_profile("hanse")
