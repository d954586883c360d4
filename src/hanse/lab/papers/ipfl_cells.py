"""The printed numbers of iPFL's tables 4, 5, 7, 8 and 9, as they stand in the paper (docs/papers.md I17, I18)."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["TABLE4", "TABLE5", "TABLE7", "TABLE8", "TABLE9"]

# lie -> (the liar's accuracy in percent, its utility over 50 rounds)
TABLE4: Mapping[str, tuple[float, float]] = {
    "honest": (75.430, 617.295),
    "size x0.1": (66.933, -513.410),
    "size x0.5": (75.331, -9.951),
    "size x10": (75.430, 0.00),
    "cost x2": (75.430, 0.00),
    "cost x5": (75.430, 0.00),
    "cost x10": (75.430, 0.00),
}

# client (from 0) -> samples, local accuracy, federated accuracy, balance and utility over 20 rounds
TABLE5: Mapping[int, tuple[int, float | None, float | None, float, float]] = {
    0: (4546, 70.10, 70.10, 102.67, 102.67),
    1: (3468, 69.17, 70.23, -50.77, 53.04),
    2: (5278, 71.91, 72.54, -48.02, 34.41),
    3: (4885, 70.24, 71.08, -3.89, 23.46),
    4: (3550, 85.65, 86.63, -35.84, 78.59),
    5: (3212, 83.55, 83.55, 26.12, 26.12),
    6: (4185, 84.42, 84.88, -10.32, 51.57),
    7: (2688, 82.48, 82.48, 20.04, 20.04),
    8: (4473, 74.07, 75.42, -44.99, 3.98),
    9: (4353, 71.50, 73.68, -59.36, 6.05),
    10: (4065, 73.05, 73.05, 104.35, 104.35),
    11: (5297, None, None, 0.00, 0.00),
}

# samples -> accuracy of local training on uniform data
TABLE7: Mapping[int, float] = {
    50000: 62.880,
    25000: 62.353,
    10000: 59.834,
    5000: 55.490,
    2500: 48.454,
    1000: 40.384,
    500: 34.751,
    250: 29.483,
}

TABLE8: Mapping[str, float] = {"p1": -698.87, "p2": 66.00, "R2": 0.98275, "RMSE": 1.8486}

# local iterations -> accuracy, utility over 50 rounds
TABLE9: Mapping[int, tuple[float, float]] = {
    10: (60.434, 106.9),
    50: (73.156, 108.1),
    100: (72.948, 111.1),
    200: (73.268, 111.3),
    400: (72.672, 108.0),
    800: (71.584, 102.7),
}
