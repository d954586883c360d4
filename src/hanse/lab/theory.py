"""``hanse theory``: a paper's theory, plotted against simulation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from hanse.base.errors import UserError, nearest
from hanse.base.streams import stream
from hanse.games import tiers_theory as gaussian

__all__ = ["Point", "crossings", "gains", "pifl_points", "theory"]

EPILOG = (
    "Examples:\n\nhanse theory pifl --clients 50 --samples 20\n\nhanse theory pifl --run runs/pifl --alone runs/local"
)


@dataclass(frozen=True)
class Point:
    """One tau^2: a client's error alone (eq. 53), with one model for all (eq. 54) and with its tier's (eqs 55, 56); of
    these the simulated mean with its standard error, the exact value, and the printed one.
    """

    tau2: float
    local: float
    local_simulated: float
    tier: float
    tier_printed: float
    tier_simulated: float
    tier_error: float
    federated: float
    federated_printed: float
    federated_simulated: float
    federated_error: float


def pifl_points(
    clients: int, samples: int, sigma2: float, beta_diff: float, points: int, repetitions: int, seed: int
) -> list[Point]:
    """Return theory and simulation for tau^2 from 0 to twice the printed bound of eq. (57) with two equal tiers of
    ``clients`` with ``samples`` each.
    """
    found = []
    for step, tau2 in enumerate(np.linspace(0, clients * sigma2 / samples, points).tolist()):
        n, tier = [samples] * (2 * clients), [0] * clients + [1] * clients
        setting = gaussian.Gaussian(n, tier, sigma2, tau2, beta_diff)
        seen = gaussian.simulate(setting, 0, repetitions, stream(seed, "theory", round=step))
        found.append(
            Point(
                tau2,
                gaussian.local_error(setting, 0),
                seen["local"][0],
                gaussian.tier_error(setting, 0),
                gaussian.tier_error(setting, 0, printed=True),
                *seen["tier"],
                gaussian.federated_error(setting, 0),
                gaussian.federated_error(setting, 0, printed=True),
                *seen["federated"],
            )
        )
    return found


def crossings(clients: int, samples: int, sigma2: float) -> dict[str, float]:
    """Return the tau^2 below which joining pays, eq. (57): exact, and as printed."""
    return {"exact": sigma2 / samples, "printed": clients * sigma2 / (2 * samples)}


def gains(run: Path, alone: Path) -> np.ndarray:
    """Return what each client gained in a run over another one, ``[n]``: its own test accuracy at the last test less
    that of local training (loss the other way round for regression).

    Raises UserError if the runs did not test the same clients on their own shares.
    """
    from hanse.runs.record import load_run

    found = []
    for path in (run, alone):
        loaded = load_run(path)
        rounds = [line["round"] for line in loaded.metrics if line.get("client/test_loss") is not None]
        tests = loaded.own_tests(rounds[-1]) if rounds else None
        if tests is None:
            raise UserError(f"{path}: no client tested on its own share (data.client_test and eval.clients above 0)")
        found.append((loaded, tests))
    (first, mine), (second, theirs) = found
    if not np.array_equal(mine.clients, theirs.clients) or first.config.get("data") != second.config.get("data"):
        raise UserError(f"{run} and {alone}: the runs have different clients; give them the same [data]")
    if np.isnan(mine.accuracy).all():
        return np.asarray(theirs.loss - mine.loss)
    return np.asarray(mine.accuracy - theirs.accuracy)


def theory(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="pifl", show_default=False)],
    clients: Annotated[int, typer.Option("--clients", min=2, help="Clients in each of the two tiers.")] = 10,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples of each client.")] = 10,
    sigma2: Annotated[float, typer.Option("--sigma2", min=1e-9, help="Variance of a sample.")] = 1.0,
    beta_diff: Annotated[float, typer.Option("--beta-diff", help="Distance of the tiers' centres.")] = 1.0,
    points: Annotated[int, typer.Option("--points", min=2, help="How many tau^2.")] = 21,
    repetitions: Annotated[int, typer.Option("--repetitions", min=2, help="Simulations of each.")] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulation.")] = 0,
    out_dir: Annotated[Path, typer.Option("--out", "-o", help="Folder of the picture and the numbers.")] = Path(
        "runs/theory"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    run: Annotated[
        Path | None, typer.Option("--run", help="A run directory: what did its clients gain (with --alone)?")
    ] = None,
    alone: Annotated[Path | None, typer.Option("--alone", help="The run of local training to compare with.")] = None,
) -> None:
    """When does a client gain by joining a tier? PI-FL's Gaussian case (eqs 53-57): exact, as printed, simulated."""
    from rich.console import Console
    from rich.table import Table

    if paper != "pifl":
        raise UserError(f"theory {paper}: no such theory{nearest(paper, ['pifl'])}")
    if (run is None) != (alone is None):
        raise UserError("theory: --run and --alone: give both, or neither")
    if run is not None and alone is not None:
        _print_gains(gains(run, alone), as_json)
        return
    found = pifl_points(clients, samples, sigma2, beta_diff, points, repetitions, seed)
    bound = crossings(clients, samples, sigma2)
    result: dict[str, Any] = {"bound": bound, "points": [asdict(p) for p in found]}
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "pifl.json").write_text(json.dumps(result, indent=1) + "\n")
    _draw(found, bound, out_dir / "pifl.png")
    if as_json:
        print(json.dumps(result, indent=1))
        return
    console = Console()
    table = Table(
        "tau^2", "alone (53)", "tier (55)", "simulated", "as printed", "one model (54)", "simulated", "as printed"
    )
    for p in found:
        tier = f"{p.tier_simulated:.4f}±{p.tier_error:.4f}"
        federated = f"{p.federated_simulated:.4f}±{p.federated_error:.4f}"
        numbers = (p.tau2, p.local, p.tier, tier, p.tier_printed, p.federated, federated, p.federated_printed)
        table.add_row(*(x if isinstance(x, str) else f"{x:.4f}" for x in numbers))
    console.print(table)
    console.print(
        f"Joining pays below tau^2 = {bound['exact']:.4g} (exact: sigma^2 / n_0, however large the tier); eq. (57) as "
        f"printed says {bound['printed']:.4g}, because it leaves out a covariance (docs/papers.md P18).",
        highlight=False,
    )
    console.print(f"wrote {out_dir / 'pifl.json'}, {out_dir / 'pifl.png'}", highlight=False, markup=False)


def _print_gains(gained: np.ndarray, as_json: bool) -> None:
    known = gained[np.isfinite(gained)]
    summary = {"clients": len(known), "mean": float(known.mean()), "gained": float((known > 0).mean())}
    summary |= {f"q{q}": float(np.quantile(known, q / 100)) for q in (10, 50, 90)}
    if as_json:
        print(json.dumps({**summary, "gains": [float(g) if np.isfinite(g) else None for g in gained]}, indent=1))
        return
    print(
        f"{summary['clients']} clients: {100 * summary['gained']:.0f} % gain over training alone; mean gain "
        f"{summary['mean']:+.4f}, a tenth at most {summary['q10']:+.4f}, half {summary['q50']:+.4f}, nine tenths "
        f"{summary['q90']:+.4f}"
    )


def _draw(found: list[Point], bound: dict[str, float], path: Path) -> None:
    from hanse.reports.chart import Chart, Line, Lines
    from hanse.reports.draw_matplotlib import to_matplotlib

    def column(name: str) -> np.ndarray:
        return np.array([getattr(p, name) for p in found])

    x, tier, error = column("tau2"), column("tier_simulated"), 2 * column("tier_error")
    lines = (
        Line("alone, eq. (53)", x, column("local")),
        Line("its tier, exact", x, column("tier")),
        Line("its tier, simulated", x, tier, tier - error, tier + error, dots=True),
        Line("its tier, eq. (55) as printed", x, column("tier_printed")),
        Line("one model for all, exact", x, column("federated")),
        Line("one model for all, eq. (54) as printed", x, column("federated_printed")),
    )
    title = "When does a client gain by joining a tier?"
    caption = f"joining pays below {bound['exact']:.4g}; as printed below {bound['printed']:.4g}"
    chart = Chart("theory", "Theory", title, caption, "tau^2, the variance inside a tier", "expected squared error",
                  Lines(lines, whole=False))  # fmt: skip
    to_matplotlib(chart).savefig(path)
