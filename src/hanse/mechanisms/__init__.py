"""Parts by decision, and one short module for each published system that composes them."""
