"""Federated learning as an economy: who trains, whose model counts, what each contribution is worth, who pays whom."""

from hanse.config import Experiment
from hanse.errors import UserError
from hanse.experiment import Run, resume, run

__all__ = ["Experiment", "Run", "UserError", "resume", "run"]
__version__ = "0.1.0"
