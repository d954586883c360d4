"""`hanse.flower.strategy`: a mechanism instead of a Flower strategy, over plain client apps."""
