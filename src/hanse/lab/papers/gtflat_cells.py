"""The printed cells of GTFLAT's tables 2 and 3 and of its Example 1."""

from __future__ import annotations

from collections.abc import Mapping

from hanse.lab.papers.frame import Published

__all__ = ["ACCURACY", "PHI", "ROUNDS", "SOURCES", "STATE", "TABLE1", "WEIGHTS"]

SOURCES = ("mnist", "fashion_mnist", "emnist_balanced", "cifar10")

# table 2: for each source alpha = 0.05, then alpha = 1, each mean and deviation over five seeds
_TABLE2 = """
    FedAvg     89.65 2.05 94.11 0.48  69.04 2.64 76.88 0.72  56.88 1.76 72.15 2.35  28.32 0.80 39.16 0.25
    GTFedAvg   91.01 1.27 94.27 0.43  71.78 1.08 76.96 0.84  60.76 1.85 71.54 2.50  30.38 0.79 39.24 0.22
    FedProx    88.71 2.63 94.01 0.43  66.85 2.41 76.74 0.84  55.46 2.73 70.22 2.62  27.74 0.82 39.28 0.14
    GTFedProx  91.17 1.11 94.11 0.35  70.53 1.99 76.90 0.81  59.43 2.77 70.70 2.52  29.59 1.06 39.44 0.14
    FedGen     92.82 0.42 96.18 0.35  67.30 1.43 77.90 0.49  62.62 2.07 74.85 1.74  29.82 0.59 42.35 0.44
    GTFedGen   94.14 0.55 96.19 0.24  70.99 1.57 77.78 0.57  64.40 2.70 74.62 1.79  33.37 0.79 42.92 0.23
"""

# table 3: effective rounds without and with GTFLAT and the improvement in percent, for FedAvg, FedProx, FedGen
_TABLE3: Mapping[float, str] = {
    0.05: """
        mnist            159  93 41.51  150  85 43.33  131  76 41.98
        fashion_mnist    101  48 52.48   70  44 37.14   47  40 14.89
        emnist_balanced  191 127 33.51  193 113 41.45  197 128 35.03
        cifar10          196 136 30.61  199 128 35.68  189  94 50.26
    """,
    1.0: """
        mnist            117 111  5.13  128 119  7.03   71  75 -5.63
        fashion_mnist    113  93 17.70   98  93  5.10   73  73  0.00
        emnist_balanced  178 190 -6.72  191 183  4.19  181 189 -4.42
        cifar10          158 147  6.96  171 160  6.34  152 134 11.84
    """,
}


def _accuracy() -> dict[tuple[str, float, str], Published]:
    found: dict[tuple[str, float, str], Published] = {}
    for line in _TABLE2.strip().splitlines():
        algorithm, *numbers = line.split()
        pairs = [Published(float(m), float(s)) for m, s in zip(numbers[::2], numbers[1::2], strict=True)]
        places = [(source, alpha) for source in SOURCES for alpha in (0.05, 1.0)]
        found |= {(*place, algorithm): pair for place, pair in zip(places, pairs, strict=True)}
    return found


def _rounds() -> dict[tuple[str, float, str], tuple[Published, Published, Published]]:
    found: dict[tuple[str, float, str], tuple[Published, Published, Published]] = {}
    for alpha, text in _TABLE3.items():
        for line in text.strip().splitlines():
            source, *numbers = line.split()
            figures = [Published(float(n)) for n in numbers]
            for i, base in enumerate(("FedAvg", "FedProx", "FedGen")):
                without, with_it, percent = figures[3 * i : 3 * i + 3]
                found[source, alpha, base] = (without, with_it, percent)
    return found


ACCURACY: Mapping[tuple[str, float, str], Published] = _accuracy()
"""``(source, alpha, algorithm)`` to table 2's cell."""
ROUNDS: Mapping[tuple[str, float, str], tuple[Published, Published, Published]] = _rounds()
"""``(source, alpha, base)`` to table 3's three numbers: the base's effective rounds, with GTFLAT, the improvement.

Two printed improvements disagree with their rounds by eq. (13): EMNIST -6.72 (-6.74), CIFAR-10 6.34 (6.43); T12.
"""

PHI = ((0.0, -0.53, -0.55), (-0.53, 0.0, -0.37), (-0.55, -0.37, 0.0))
"""Example 1's payoffs; printed are its state X and its weights omega."""
STATE: Mapping[tuple[int, int], float] = {
    (0, 1): 0.50,
    (0, 2): 0.50,
    (1, 0): 0.13,
    (1, 2): 0.87,
    (2, 0): 0.12,
    (2, 1): 0.88,
}
WEIGHTS = (0.08, 0.46, 0.46)

TABLE1: Mapping[tuple[int, int, int], tuple[float, float, float]] = {
    (1, 0, 0): (-0.18, -0.35, -0.49),
    (1, 0, 1): (-0.35, -0.18, -0.42),  # the last is -0.43 by eq. (12); papers.md T9
    (1, 2, 0): (-0.36, -0.30, -0.31),
    (1, 2, 1): (-0.54, -0.12, -0.25),
    (2, 0, 0): (-0.18, -0.48, -0.37),
    (2, 0, 1): (-0.36, -0.30, -0.31),
    (2, 2, 0): (-0.37, -0.42, -0.18),
    (2, 2, 1): (-0.54, -0.25, -0.12),
}
"""Example 1's table 1: who chose whom ``(s_0, s_1, s_2)`` to the three payoffs."""
