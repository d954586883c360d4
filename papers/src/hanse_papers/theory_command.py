"""``hanse theory``: a paper's theory, plotted against simulation.

The formulas and the simulation are in :mod:`hanse_papers.theory`. ``docs/papers.md`` says which printed formulas are
wrong, and why.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from hanse.base.errors import UserError, nearest
from hanse.base.terminal import Terminal
from hanse.cli.options import err

if TYPE_CHECKING:
    from hanse_papers.theory import TheoryPoint


def theory(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="pifl", show_default=False)],
    clients: Annotated[int, typer.Option("--clients", min=2, help="Clients in each of the two tiers.")] = 10,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples of each client.")] = 10,
    sigma2: Annotated[float, typer.Option("--sigma2", min=1e-9, help="Variance of a sample.")] = 1.0,
    beta_diff: Annotated[float, typer.Option("--beta-diff", help="Distance of the tiers' centres.")] = 1.0,
    points: Annotated[int, typer.Option("--points", min=2, help="How many values of tau^2.")] = 21,
    repetitions: Annotated[
        int, typer.Option("--repetitions", min=2, help="Simulations of each value of tau^2.")
    ] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulation.")] = 0,
    out_dir: Annotated[Path, typer.Option("--out", "-o", help="Folder of the picture and the numbers.")] = Path(
        "runs/theory"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    run: Annotated[
        Path | None, typer.Option("--run", help="A run directory: what did its clients gain? Goes with --alone.")
    ] = None,
    alone: Annotated[Path | None, typer.Option("--alone", help="The run of local training to compare with.")] = None,
) -> None:
    """When does a client gain by joining a tier? PI-FL's Gaussian case (eqs 53-57): exact, as printed, simulated.

    Clients of two tiers estimate a mean from a few samples each. For each variance tau^2 within a tier, it prints the
    expected squared error of a client alone, with its tier, and with one model for all. Each error is given in three
    forms: exact, as printed in the paper, and simulated. It also prints the tau^2 below which joining pays. The numbers
    and a picture are written to --out.

    With --run and --alone, it instead says how many clients of a real run did better than alone.

    Examples:
        hanse theory pifl --clients 50 --samples 20
        hanse theory pifl --run runs/pifl --alone runs/local
    """
    from rich.table import Table

    from hanse.runs.observers import counting
    from hanse_papers.theory import crossings, gains, pifl_points

    if paper != "pifl":
        raise UserError(f"theory {paper}: no such theory{nearest(paper, ['pifl'])}")
    if (run is None) != (alone is None):
        raise UserError("theory: --run and --alone: give both, or neither")
    if run is not None and alone is not None:
        _print_gains(gains(run, alone), as_json)
        return
    with counting("simulated", err) as told:
        theory_points = pifl_points(clients, samples, sigma2, beta_diff, points, repetitions, seed, told)
    bound = crossings(clients, samples, sigma2)
    result: dict[str, Any] = {"bound": bound, "points": [asdict(p) for p in theory_points]}
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "pifl.json").write_text(json.dumps(result, indent=1) + "\n")
    _draw(theory_points, bound, out_dir)
    if as_json:
        print(json.dumps(result, indent=1))
        return
    console = Terminal()
    table = Table(
        "tau^2", "alone (53)", "tier (55)", "simulated", "as printed", "one model (54)", "simulated", "as printed"
    )
    for p in theory_points:
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
    """Print how much the clients of a run gained over training alone, as a share, a mean and quantiles.

    Args:
        gained: ``[N]``, each client's gain, in accuracy (0 to 1) or in the run's main metric; NaN: not known.
    """
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


def _draw(found: list[TheoryPoint], bound: dict[str, float], folder: Path) -> None:
    from hanse.reports.chart import Chart, Line, Lines
    from hanse.reports.vega import save

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
    marks, axis = Lines(lines, whole=False), "tau^2, the variance inside a tier"
    chart = Chart("pifl", "Theory", title, caption, marks, x=axis, y="expected squared error")
    save(chart, folder)
