"""TRAIN: how the model table is laid out, and what each seat minimises."""

from hanse.mechanisms.train.basic import OwnModels, Proximal, SharedModel, chosen_seats, units

__all__ = ["OwnModels", "Proximal", "SharedModel", "chosen_seats", "units"]
