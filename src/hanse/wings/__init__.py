"""Wings that come with hanse. Each is found by its entry point (:mod:`hanse.base.wings`); the core imports none."""
