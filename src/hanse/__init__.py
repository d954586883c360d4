"""Federated learning as an economy."""
