"""The progress of diabetes with JAX and Flower."""
