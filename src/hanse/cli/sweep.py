"""``hanse sweep``: one experiment with many settings.

This module checks the options and prints the comparison. :mod:`hanse.lab.sweep` has grids, seeds and rows, and
:mod:`hanse.lab.player` plays runs in parallel.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hanse.base.errors import UserError
from hanse.base.plain_text import quantity
from hanse.cli.options import Changes, ExperimentFile, Workers, err, name_of, out, print_json, resumable, say

Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="KEY=A,B,C",
        help="Values of section.key, one each; may be repeated, then every combination is played.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Run on this Ray cluster instead: host:port, auto or local."),
]
Gpus = Annotated[
    float | None,
    typer.Option("--gpus-per-job", help="On Ray: graphics cards for each run; 0.25 puts four runs on one."),
]
Part = Annotated[
    str | None,
    typer.Option("--part", metavar="I/N", help="Only every N-th run, from the I-th on: for jobs that share a folder."),
]
Folder = Annotated[Path | None, typer.Option("--out", "-o", help="Folder; default runs/sweep-<name of file or run>.")]
RowsOnly = Annotated[
    bool, typer.Option("--rows-only", help="Keep no run directories; a run that is cut off starts again.")
]


def sweep(
    file: ExperimentFile,
    grid: Grid = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", help="Play everything with seeds 0 to N - 1, for the split and for everything else."),
    ] = None,
    set_: Changes = None,
    workers: Workers = None,
    ray: Ray = None,
    gpus: Gpus = None,
    part: Part = None,
    out_dir: Folder = None,
    rows_only: RowsOnly = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and start none.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Run an experiment with many settings and tabulate the results.

    Finished runs are kept: repeat the command to continue.

    Each --grid gives the values of one key. All combinations are played, each with --seeds seeds. The table (table.csv
    in the sweep's folder) has a row per run with its settings and final figures. What is printed is the comparison of
    'hanse compare': means and standard deviations over the seeds.

    Runs are played in parallel, one thread each. Use --part to divide a sweep among machines that share a folder, and
    --ray to play it on a cluster. A failed run does not stop the others. The exit code is then 1.

    Each run leaves a run directory that you can report on and resume. --rows-only leaves table.csv alone, which saves
    space if there are thousands of short runs. Try --dry-run first to see what would be played.

    Examples:
        hanse sweep exp.toml --grid train.lr=0.1,0.01 --grid mechanism.name=fedavg,greedyfed --seeds 3
        hanse sweep exp.toml --grid 'model.hidden=[50],[50,25]' --workers 4
        hanse sweep exp.toml --grid mechanism.name=fedavg,local,greedyfed --seeds 20 --part 2/8
    """
    from hanse.lab.sweep import TABLE, grid_of, part_of, rows_of, run_sweep, without_effect
    from hanse.reports.compare import cautions, experiments_table
    from hanse.reports.groups import group_runs
    from hanse.runs.run_record import load_runs

    _check(bool(grid) or seeds is not None, ray, workers, gpus)
    points = grid_of(file, set_ or [], grid or [], seeds)
    # what is left out of some runs, and which settings have no effect in any: what concerns many runs is said once
    for line in dict.fromkeys([*(line for point in points for line in point.notes), *without_effect(points)]):
        say(line, err, style="yellow")
    points, table = (points, TABLE) if part is None else part_of(points, part)
    if not points:
        return say(f"--part {part}: no run is left for this part")
    if dry_run:
        labels = [point.job.label for point in points]
        return print_json({"runs": labels}) if as_json else print("\n".join(labels))
    folder = out_dir or Path("runs") / f"sweep-{name_of(file)}"
    with resumable():
        done = run_sweep(
            points,
            folder,
            workers=workers,
            ray=ray,
            gpus=gpus,
            table_name=table,
            rows_only=rows_only,
            console=err,
        )
    if as_json:
        print_json({"rows": rows_of(points, done)})
    else:
        places = [found.get("folder") for found in done.results.values()]
        kept = [place for place in places if place is not None and Path(place).is_dir()]
        if kept:
            groups = group_runs(load_runs(kept))
            out.print(experiments_table(groups))
            for note in cautions(groups):
                say(note.said, wrap=True)
        say(f"{quantity(len(points), 'run')}, {done.played} of them now; {folder / table}")
        if kept:
            say(f"a picture of them: hanse report {shlex.quote(str(folder))}")
    for why in dict.fromkeys(done.failures.values()):
        of = [point.job.label for point in points if done.failures.get(point.job.key) == why]
        say(f"{of[0]}{f' and {len(of) - 1} more' if of[1:] else ''}: {why}", err)
    if done.failures:
        every = quantity(len(points), "run")
        err.print(f"hanse: {len(done.failures)} of {every} failed; the same command tries them again")
        raise typer.Exit(1)


def _check(varied: bool, ray: str | None, workers: int | None, gpus: float | None) -> None:
    """Raise UserError for a sweep that varies nothing, or for options that do not go together."""
    if not varied:
        raise UserError("--grid: give at least one, as in --grid train.lr=0.1,0.01, or --seeds")
    if ray is not None and workers is not None:
        raise UserError(f"--workers {workers}: goes without --ray, whose cluster has its own cores")
    if gpus is not None and (ray is None or gpus < 0):
        raise UserError(f"--gpus-per-job {gpus:g}: " + ("goes with --ray" if ray is None else "must be 0 or more"))
