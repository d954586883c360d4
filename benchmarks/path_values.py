"""How near path values and the surrogate are to the exact Shapley values of each game, on real rounds of digits.

    python benchmarks/path_values.py

Ten clients, label skew by Dirichlet 0.1 and 0.5, an MLP with 20 hidden units, FedAvg with full participation, rounds
1, 5 and 16 (one seed). Errors are relative L2 distances from the exact values, which take all 1,024 coalitions.
"""

from __future__ import annotations

import numpy as np

import hanse
from hanse.core.part import Values, View
from hanse.mechanisms.registry import build_mechanism
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import build, settle_engine

ALPHAS, ROUNDS, N, POINTS, BUDGETS = (0.1, 0.5), (1, 5, 16), 10, (1, 2, 3, 5), (3, 5, 10)


def valued(view: View, **options: object) -> Values:
    part = build_mechanism({"name": "fedavg", "value": options}).value
    assert part is not None
    return part.value(view, {})[0]


def main() -> None:
    print("| alpha, round | increment game: path, 1, 2, 3, 5 points | mixture, 3n, 5n, 10n | average game: mixture |")
    print("|---|---|---|---|")
    for alpha in ALPHAS:
        experiment = hanse.Experiment(
            data={"clients": N, "partition": {"alpha": alpha}},
            model={"name": "mlp", "hidden": [20]},
            mechanism={"name": "fedavg", "clients_per_round": N},
            train={"lr": 0.1, "epochs": 2},
            engine={"train": "stacked", "threads": 1},
        )
        world = settle_engine(build(experiment)).setup
        state = first_state(world)
        for number in range(1, max(ROUNDS) + 1):
            played = play_round(world, state)
            state = played.state
            if number in ROUNDS:
                print(row(f"{alpha}, {number}", played.view))


def row(name: str, view: View) -> str:
    cells = [name]
    for game in ("increment", "average"):
        exact = valued(view, name="exact", game=game).per_seat

        def off(found: Values, exact: np.ndarray = exact) -> str:
            return f"{np.linalg.norm(found.per_seat - exact) / np.linalg.norm(exact):.3f}"

        if game == "increment":
            cells.append(", ".join(off(valued(view, name="path", points=k)) for k in POINTS))
        cells.append(", ".join(off(valued(view, name="mixture", game=game, budget=k * N)) for k in BUDGETS))
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
