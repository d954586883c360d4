"""The printed cells of GreedyFed's tables I-IV: test accuracy in percent, mean and deviation over five seeds.

Each line is an algorithm with a pair ``mean sd`` for each column: those of Tables I and II, then those of III and
IV but for x = 0 and sigma = 0, where the paper prints the column alpha = 1e-4 of Table I again.
"""

from __future__ import annotations

from collections.abc import Mapping

from hanse.lab.papers.frame import Published

__all__ = ["CELLS", "COLUMNS"]

COLUMNS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "table1": dict.fromkeys(("mnist", "fashion_mnist", "cifar10"), ("alpha=1e-4", "alpha=0.1", "alpha=100")),
    "table2": {
        "mnist": ("T=150", "T=250", "T=350"),
        "fashion_mnist": ("T=150", "T=250", "T=350"),
        "cifar10": ("T=100", "T=150", "T=200"),
    },
    "table3": dict.fromkeys(("mnist", "fashion_mnist", "cifar10"), ("x=0", "x=0.5", "x=0.9")),
    "table4": dict.fromkeys(("mnist", "fashion_mnist", "cifar10"), ("sigma=0", "sigma=0.05", "sigma=0.1")),
}

PRINTED: Mapping[str, tuple[str, str]] = {
    "mnist": (
        """
            GreedyFed       94.06 0.19   88.83 0.74   93.98 0.33   91.12 0.32   92.90 0.28   93.78 0.09
            UCB             93.39 0.72   87.70 3.19   94.12 0.28   90.26 0.83   90.91 1.05   92.40 1.28
            S-FedAvg        91.94 0.95   86.26 2.10   94.77 0.29   87.33 3.24   91.26 1.44   89.22 3.11
            FedAvg          92.19 1.40   88.86 2.09   94.79 0.29   87.56 2.23   90.20 3.21   89.50 0.88
            FedProx         92.18 1.39   88.84 2.12   94.78 0.32   87.57 2.14   90.22 3.18   89.53 0.85
            Power-Of-Choice 91.58 1.52   88.27 2.12   94.72 0.29   85.26 1.74   89.09 2.25   91.20 2.38
            Centralized     95.37 0.26   95.20 0.24   95.32 0.22   92.77 0.28   94.27 0.27   95.04 0.23
        """,
        """
            GreedyFed       93.70 0.33   92.94 0.22   90.79 0.45   87.33 0.68
            UCB             92.62 0.65   91.84 0.64   87.23 1.82   75.36 4.67
            S-FedAvg        91.57 1.27   92.05 0.29   79.17 5.88   62.78 4.37
            FedAvg          91.03 1.15   88.44 5.74   83.98 2.45   63.63 6.34
            FedProx         91.05 1.14   88.45 5.77   83.95 2.42   63.33 6.31
            Power-Of-Choice 89.60 3.43   90.24 2.19   83.87 1.85   58.22 4.55
            Centralized     95.37 0.26   95.37 0.26   95.37 0.26   95.37 0.26
        """,
    ),
    "fashion_mnist": (
        """
            GreedyFed       85.18 0.33   79.16 0.62   84.83 0.42   82.06 0.51   84.02 0.37   84.75 0.29
            UCB             84.41 0.68   77.24 1.24   83.80 0.73   80.53 2.34   82.53 1.16   83.04 1.67
            S-FedAvg        81.04 6.09   71.77 5.87   85.38 0.38   76.25 4.95   75.04 6.75   80.23 5.86
            FedAvg          82.84 1.29   72.68 5.79   85.37 0.49   72.07 9.28   72.64 12.22  77.69 7.64
            FedProx         82.86 1.21   73.62 5.72   85.29 0.52   73.37 7.10   73.47 10.06  78.94 5.66
            Power-Of-Choice 69.46 7.34   73.28 3.45   85.41 0.22   70.13 5.94   71.74 9.18   74.93 12.11
            Centralized     86.16 0.32   85.75 0.37   85.95 0.24   83.44 0.38   84.83 0.55   85.64 0.41
        """,
        """
            GreedyFed       84.66 0.55   84.19 0.19   81.23 0.55   77.17 0.73
            UCB             83.58 1.15   81.86 2.56   76.11 2.28   67.26 7.29
            S-FedAvg        82.23 2.11   74.66 10.17  75.45 3.72   57.67 7.49
            FedAvg          78.93 5.20   76.20 6.53   74.77 2.12   62.18 4.39
            FedProx         79.35 4.61   76.31 6.01   74.81 2.06   62.79 4.71
            Power-Of-Choice 81.49 3.12   79.03 4.63   69.47 5.08   56.08 8.06
            Centralized     86.16 0.32   86.16 0.32   86.16 0.32   86.16 0.32
        """,
    ),
    "cifar10": (
        """
            GreedyFed       50.26 0.95   43.90 1.04   50.80 0.96   46.36 1.65   49.38 1.02   50.26 0.95
            UCB             48.89 1.84   43.02 2.75   51.86 0.62   43.75 1.44   46.94 1.74   48.89 1.84
            S-FedAvg        40.71 4.54   41.85 1.59   51.92 0.58   34.38 7.00   36.31 5.78   40.71 4.54
            FedAvg          41.04 5.54   41.67 3.85   51.74 0.85   33.22 6.08   40.67 2.62   41.04 5.54
            FedProx         42.00 3.45   41.66 3.84   51.74 0.83   34.88 2.48   40.80 0.94   42.00 3.45
            Power-Of-Choice 42.54 3.23   42.27 1.22   51.78 0.80   36.58 5.22   38.36 6.18   42.54 3.23
            Centralized     51.48 1.86   52.36 1.82   53.22 1.06   46.59 1.14   49.91 1.10   51.48 1.86
        """,
        """
            GreedyFed       48.74 1.34   47.58 0.77   48.44 1.06   47.64 1.02
            UCB             47.98 1.71   46.51 0.87   47.86 1.87   44.76 2.19
            S-FedAvg        38.55 5.93   34.88 3.54   39.41 4.07   31.89 12.33
            FedAvg          43.16 2.57   37.23 4.47   39.74 6.30   36.34 5.53
            FedProx         43.26 2.54   37.21 4.35   39.66 6.27   36.16 5.52
            Power-Of-Choice 36.92 8.51   37.39 3.41   38.55 2.82   36.19 1.87
            Centralized     51.52 1.85   51.52 1.94   51.44 1.83   51.46 1.93
        """,
    ),
}


def _cells() -> dict[tuple[str, str, str, str], Published]:
    found: dict[tuple[str, str, str, str], Published] = {}
    for source, texts in PRINTED.items():
        for (first, second), text in zip((("table1", "table2"), ("table3", "table4")), texts, strict=True):
            for line in text.strip().splitlines():
                algorithm, *numbers = line.split()
                printed = [Published(*map(float, pair)) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
                if first == "table3":
                    again = found["table1", source, "alpha=1e-4", algorithm]
                    printed = [again, *printed[:2], again, *printed[2:]]
                places = [(table, source, column) for table in (first, second) for column in COLUMNS[table][source]]
                found |= {(*place, algorithm): cell for place, cell in zip(places, printed, strict=True)}
    return found


CELLS: Mapping[tuple[str, str, str, str], Published] = _cells()
"""``(table, source, column, algorithm)`` to the printed cell."""
