"""`hanse.flower.strategy` and `hanse.flower.speaks`: a mechanism instead of a Flower strategy."""
