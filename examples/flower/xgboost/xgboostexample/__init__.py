"""Boosted trees with XGBoost and Flower."""
