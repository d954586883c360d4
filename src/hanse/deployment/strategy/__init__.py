"""`hanse.flower.strategy` and `hanse.flower.speaks`: a mechanism in the place of a Flower strategy."""
