"""The data of a partition, as XGBoost takes them, and the trees' parameters."""

from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray
from sklearn.datasets import make_classification


def params(run_config: Any) -> dict[str, Any]:
    """Return the parameters of XGBoost that the run's configuration names."""
    return {
        "objective": "binary:logistic",
        "eval_metric": ["logloss", "auc"],
        "max_depth": int(run_config["max-depth"]),
        "eta": float(run_config["eta"]),
        "nthread": 1,
        "num_parallel_tree": 1,
        "tree_method": "hist",
    }


def _samples() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return all samples: made, the same at every node."""
    return make_classification(2500, 20, n_informative=8, flip_y=0.05, random_state=0)


def load_data(partition: int, partitions: int) -> tuple[xgb.DMatrix, xgb.DMatrix]:
    """Return the training and the test samples of one partition of the first 2,000."""
    x, y = _samples()
    x, y = x[:2000][partition::partitions], y[:2000][partition::partitions]
    cut = int(0.8 * len(y))
    return xgb.DMatrix(x[:cut], label=y[:cut]), xgb.DMatrix(x[cut:], label=y[cut:])


def load_server_data() -> xgb.DMatrix:
    """Return the server's samples: those that no partition has."""
    x, y = _samples()
    return xgb.DMatrix(x[2000:], label=y[2000:])


def load_booster(model: bytes, run_config: Any) -> xgb.Booster:
    """Return the trees that travel as bytes of JSON."""
    booster = xgb.Booster(params=params(run_config))
    booster.load_model(bytearray(model))
    return booster


def metrics_of(booster: xgb.Booster, samples: xgb.DMatrix) -> dict[str, float]:
    """Return the trees' log loss and the area under their ROC curve."""
    said = booster.eval_set([(samples, "test")])  # "[0]\ttest-logloss:0.51\ttest-auc:0.88"
    figures = dict(word.removeprefix("test-").split(":") for word in said.split("\t")[1:])
    return {"loss": float(figures["logloss"]), "auc": float(figures["auc"])}
