"""Sources of samples and how they are split over clients.

``build(DataSpec(source="digits", partition="dirichlet", clients=20))`` is all that a federation needs.
"""

from hanse.data.build import build, split
from hanse.data.counts_table import counts_table
from hanse.data.dataset import Dataset
from hanse.data.federated import FederatedData, Share
from hanse.data.own import from_arrays, from_frame, from_hugging_face, from_torch
from hanse.data.partitions import PARTITIONS, Partition
from hanse.data.samples import Samples
from hanse.data.sources import SOURCES, load
from hanse.data.spec import DataSpec, parse_spec

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "DataSpec",
    "Dataset",
    "FederatedData",
    "Partition",
    "Samples",
    "Share",
    "build",
    "counts_table",
    "from_arrays",
    "from_frame",
    "from_hugging_face",
    "from_torch",
    "load",
    "parse_spec",
    "split",
]
