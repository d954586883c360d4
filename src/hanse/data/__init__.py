"""Data of a federation: where samples come from, and how they are split over clients and the server.

Most callers need two names. A :class:`DataSpec` says what to load and how to split it (it is the ``[data]`` table of an
experiment). :func:`build` does both and returns a :class:`FederatedData`. The steps inside can be called on their own:
:func:`load` reads a named source into a :class:`Dataset`, and :func:`split` turns it into a :class:`Partition`. Data of
your own become a :class:`Dataset` through :func:`as_dataset`.
"""

from hanse.data.build import build, split
from hanse.data.dataset import Dataset
from hanse.data.federated import FederatedData, Share
from hanse.data.own import as_dataset
from hanse.data.samples import Samples
from hanse.data.shares import Partition
from hanse.data.sources import SOURCES, load
from hanse.data.spec import PARTITIONS, DataSpec, parse_spec

__all__ = ["PARTITIONS", "SOURCES", "DataSpec", "Dataset", "FederatedData", "Partition", "Samples", "Share",
           "as_dataset", "build", "load", "parse_spec", "split"]  # fmt: skip
