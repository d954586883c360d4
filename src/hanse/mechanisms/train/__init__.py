"""TRAIN: how the model table is laid out, and what each seat minimises; one file a family of parts."""

from hanse.mechanisms.train.basic import OwnModels, Proximal, SharedModel, chosen_seats
from hanse.mechanisms.train.clusters import ClusterModels, SoftClusters
from hanse.mechanisms.train.control import Controlled
from hanse.mechanisms.train.personal import Ditto, FromCentres, SentModels, TowardsCentres

__all__ = [
    "ClusterModels",
    "Controlled",
    "Ditto",
    "FromCentres",
    "OwnModels",
    "Proximal",
    "SentModels",
    "SharedModel",
    "SoftClusters",
    "TowardsCentres",
    "chosen_seats",
]
