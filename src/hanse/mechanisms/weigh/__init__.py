"""WEIGH: how a group's updates become its server row; one file a family of parts."""

from hanse.mechanisms.weigh.average import BySamples, UniformWeights, sample_shares
from hanse.mechanisms.weigh.distance import InverseDistance
from hanse.mechanisms.weigh.gtflat import GTFLAT, ValidationGTFLAT

__all__ = ["GTFLAT", "BySamples", "InverseDistance", "UniformWeights", "ValidationGTFLAT", "sample_shares"]
