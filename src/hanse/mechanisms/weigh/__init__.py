"""WEIGH: the next model table from the updates that came back; one file a family of parts."""

from hanse.mechanisms.weigh.average import BySamples, UniformWeights, average_groups, sample_shares

__all__ = ["BySamples", "UniformWeights", "average_groups", "sample_shares"]
