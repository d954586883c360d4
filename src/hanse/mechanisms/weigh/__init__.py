"""WEIGH: the next model table from the updates that came back; one file a family of parts."""

from hanse.mechanisms.weigh.average import BySamples, UniformWeights, average_groups, sample_shares
from hanse.mechanisms.weigh.centres import FedAMP, HeurFedAMP, PFedGraph
from hanse.mechanisms.weigh.cfl import CFL
from hanse.mechanisms.weigh.distance import InverseDistance
from hanse.mechanisms.weigh.fedfomo import FedFomo
from hanse.mechanisms.weigh.gtflat import GTFLAT, ValidationGTFLAT
from hanse.mechanisms.weigh.linear import ControlVariates, SoftShares
from hanse.mechanisms.weigh.market import Imports

__all__ = [
    "CFL",
    "GTFLAT",
    "BySamples",
    "ControlVariates",
    "FedAMP",
    "FedFomo",
    "HeurFedAMP",
    "Imports",
    "InverseDistance",
    "PFedGraph",
    "SoftShares",
    "UniformWeights",
    "ValidationGTFLAT",
    "average_groups",
    "sample_shares",
]
