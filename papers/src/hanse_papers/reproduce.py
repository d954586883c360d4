"""``hanse reproduce``: the tables of papers, played again. The work is done in :mod:`hanse_papers`."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.base.errors import MachineError, UserError
from hanse.base.files import write_whole
from hanse.cli.options import Workers, err, out, resumable, say

if TYPE_CHECKING:
    from hanse_papers.runner import TableOutcome
    from hanse_papers.tables import PaperTable


Table = Annotated[
    str | None,
    typer.Argument(
        metavar="TABLE", help="A table or figure of the paper, such as table1 or figure2.", show_default=False
    ),
]
Scale = Annotated[
    str,
    typer.Option("--scale", help="smoke (a minute), small (a stated part of the paper's settings) or paper (all)."),
]
Recipe = Annotated[
    str,
    typer.Option("--recipe", help="paper (what the text says) or authors (what their code does: docs/papers.md)."),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder of results, shared by tables; default runs/reproduce/PAPER. For all papers: the folder above.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="WORDS",
        help="Only cells with all these words, such as 'mnist alpha=0.1 fedavg'; may be repeated. The files of the "
        "table are written with these cells alone.",
    ),
]


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(metavar="PAPER", help="greedyfed, gtflat, pifl or ipfl.", show_default=False)
    ] = None,
    table: Table = None,
    scale: Scale = "smoke",
    recipe: Recipe = "paper",
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", help="Seeds 0 to N - 1; the default depends on the scale. A larger N runs only the new ones."
        ),
    ] = None,
    workers: Workers = None,
    out_dir: Folder = None,
    only: Only = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    decide: Annotated[
        bool,
        typer.Option(
            "--decide", help="Play the runs that decide the paper's claims until all are; one at a time by default."
        ),
    ] = False,
    hours: Annotated[float | None, typer.Option("--hours", help="With --decide: start no run after this time.")] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the table's experiments into this folder, and play none.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the runs that --decide would play, and play none.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Run a paper's experiments and compare its published numbers with ours.

    Without a paper and a table it lists all of them, the data that each needs, and whether those are here.

    --scale smoke checks in a minute that everything runs, small plays a stated part of the paper's settings, and paper
    plays all of them. Where a paper's text and its authors' code differ, --recipe chooses between them.

    --only plays only the cells with all of these words in their row, column or data. Repeat it to add cells.

    Finished runs are kept under --out. Repeat the command to continue a stopped table, or with a larger --seeds to add
    seeds. The table is printed, and saved with its pictures next to the runs as JSON and Markdown.

    Without a table, --decide works on the claims of the paper, or of all papers. It plays the runs that decide the most
    claims for their time, one after another, until all claims are decided. You can stop it at any time; it waits while
    its folder contains a file called pause.

    --export writes each experiment of a table as a file, to change, run and sweep.

    Examples:
        hanse reproduce
        hanse reproduce greedyfed table1
        hanse reproduce greedyfed table2 --scale small --only 'mnist t=150' --workers 4
        hanse reproduce gtflat table3 --scale small --export mine
        hanse reproduce gtflat --decide --hours 2
    """
    for_table = _given(scale=scale != "smoke", recipe=recipe != "paper", seeds=seeds is not None, only=bool(only),
                       device=device != "cpu", export=export is not None)  # fmt: skip
    if decide or plan or hours is not None:
        _check_options(for_table, decide=decide, plan=plan, hours=hours, workers=workers)
        return _decide(paper, table, out_dir, hours, plan=plan, workers=workers, as_json=as_json)
    if paper is None or table is None:
        if for_table := for_table + _given(workers=workers is not None, out=out_dir is not None):
            raise UserError(f"{', '.join(for_table)}: name the paper's table that is to be played: this lists them")
        return _print_papers(paper, as_json)
    from hanse.learning.engines import pick_device
    from hanse_papers.catalogue import find_table
    from hanse_papers.runner import play_audited, run_table
    from hanse_papers.tables import filtered, on_device, with_seeds

    folder = out_dir or Path("runs") / "reproduce" / paper
    chosen = filtered(_with_data(find_table(paper, table, scale, recipe)), only or [])
    # the same table at full scale: what is printed says how the chosen scale differs, and how long all would take
    full = find_table(paper, table, "paper", recipe)
    pick_device(device)  # it is looked for before anything starts
    chosen = with_seeds(on_device(chosen, device), seeds, full.seeds)
    if export is not None:
        return say(f"wrote {_export(chosen, export)} experiments to {export}")
    _check_folder(folder)
    with resumable():
        outcome = run_table(
            chosen,
            seeds=chosen.seeds,
            workers=workers,
            folder=folder,
            console=err,
            work=play_audited,
        )
    _report(outcome, full, folder, as_json)


def _given(**options: bool) -> list[str]:
    """Return the options that are given, as they are written."""
    return [f"--{name}" for name, is_given in options.items() if is_given]


def _check_options(
    for_table: Sequence[str], *, decide: bool, plan: bool, hours: float | None, workers: int | None
) -> None:
    """Raise UserError for options that do not go with --decide or --plan; ``for_table`` are those of a table alone."""
    if decide == plan or (plan and hours is not None):
        raise UserError("--decide, --plan, --hours: give --plan, or --decide with or without --hours")
    if for_table:
        raise UserError(f"{', '.join(for_table)}: for a table; what --decide and --plan play is said by the claims")
    if plan and workers is not None:
        raise UserError(f"--workers {workers}: --plan plays nothing; give it with --decide")


def _decide(
    paper: str | None,
    table: str | None,
    out_dir: Path | None,
    hours: float | None,
    *,
    plan: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Play what decides the claims of a paper (None: of all), or print what would be played; then print the claims.

    Raises:
        typer.Exit: with 1, a run failed.
    """
    from hanse_papers.catalogue import PAPERS, list_papers
    from hanse_papers.claims.claim import load_claims
    from hanse_papers.claims.judge import Runs, as_rows, judge, printed_claims
    from hanse_papers.claims.planner import away, decide, plan_rows, printed_plan
    from hanse_papers.claims.planner import plan as planned

    if table is not None:
        raise UserError("--decide, --plan, --hours: are for the claims of a paper or of all, without a table")
    if paper is not None:
        list_papers(paper)  # which refuses one that does not exist
    root = out_dir or Path("runs") / "reproduce"
    folders = {name: root if paper and out_dir else root / name for name in ([paper] if paper else PAPERS)}
    asked = {folder: load_claims(name) for name, folder in folders.items()}
    failures: Mapping[str, str] = {}
    for folder in folders.values():
        _check_folder(folder, written=not plan)
    if plan:
        books = [Runs(folder) for folder in asked]
        judged = [judge(claims, runs) for claims, runs in zip(asked.values(), books, strict=True)]
        verdicts = [verdict for found in judged for verdict in found]
        plans = [planned(found, runs) for found, runs in zip(judged, books, strict=True)]
        steps = list(heapq.merge(*plans, key=lambda step: step.rank))
    else:
        with resumable():
            workers = 1 if workers is None else workers
            verdicts, failures = decide(asked, hours=hours, workers=workers, console=err)
    if as_json:
        print(json.dumps({"claims": as_rows(verdicts), **({"plan": plan_rows(steps)} if plan else {})}, indent=1))
    else:
        for name in folders:
            out.print(
                printed_claims([v for v in verdicts if v.claim.paper == name], f"{name}: what its claims come to")
            )
        if plan:
            out.print(printed_plan(steps))
    for claims in asked.values():
        lacking = {claim.name: away(claim) for claim in claims if not claim.arms or away(claim)}
        if lacking:
            names = ", ".join(sorted({source for found in lacking.values() for source in found}))
            say(
                f"hanse: {claims[0].paper}: the data of {len(lacking)} of {len(claims)} claims are not here: {names}",
                err,
            )
    for label, why in failures.items():
        say(f"hanse: {label} failed: {why}", err)
    if failures:
        raise typer.Exit(1)


def _check_folder(folder: Path, option: str = "--out", *, written: bool = True) -> None:
    """Raise UserError if this is not a folder, or nothing can be written to it (unless it is only read), before half an
    hour of runs that could not be kept.
    """
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists() or path.is_symlink())
        if not there.is_dir():
            raise UserError(f"{option} {folder}: {there} is not a folder")
        if written:
            TemporaryDirectory(prefix=".hanse-", dir=there).cleanup()
    except OSError as wrong:
        raise UserError(f"{option} {folder}: nothing can be written there ({wrong.strerror})") from None


def _with_data(table: PaperTable) -> PaperTable:
    """Return the table; one that is counted on data which were not here is built again after they were fetched.

    Raises:
        UserError: they cannot be had. A table of experiments finds that out itself.
    """
    if any(cell.variants or cell.computed is not None for cell in table.cells):
        return table
    from hanse.data.sources import load
    from hanse_papers.catalogue import find_table
    from hanse_papers.tables import sources_of

    for source in sources_of(table.paper, table.name, table.scale, table.recipe):
        load(source)
    return find_table(table.paper, table.name, table.scale, table.recipe)


def _export(table: PaperTable, folder: Path) -> int:
    """Write the experiments of a table into files, each with its cell as a comment; return how many there are.

    Raises:
        UserError: the table has no experiments, or the folder cannot be written.
    """
    from hanse.reports.chart import slug
    from hanse.runs.config import Experiment

    tried = [(cell, variant) for cell in table.cells for variant in cell.variants]
    if not tried:
        raise UserError(f"--export: {table.name} is computed: it has no experiments")
    _check_folder(folder, "--export")
    for number, (cell, variant) in enumerate(tried, start=1):
        name = f"{cell.setting}, {cell.algorithm} {variant.name}".strip()
        printed = "" if cell.published is None else f"; the paper has {cell.published.mean:g}"
        sweep = "--grid run.seed=" + ",".join(map(str, range(table.seeds)))  # of one split
        sweep = sweep if "seed" in variant.sections["data"] else f"--seeds {table.seeds}"
        file = folder / f"{number:03d}-{slug(name)}.toml"
        said = f"# {table.paper} {table.name}: {name}, read after {cell.at} rounds{printed}\n"
        said += f"# hanse sweep {file.name} {sweep}\n"
        write_whole(file, said + Experiment(**variant.sections).to_toml())
    return len(tried)


def _report(outcome: TableOutcome, full: PaperTable, folder: Path, as_json: bool) -> None:
    """Write and print what came out.

    Raises:
        typer.Exit: with 1, a run failed.
        MachineError: the files cannot be written, such as on a full disk.
    """
    from hanse_papers import show

    try:
        paths = show.write_outcome(outcome, full, folder)
    except OSError as wrong:
        where = wrong.filename or folder
        raise MachineError(f"{where}: cannot be written: {wrong.strerror or wrong}; finished runs are kept") from None
    if as_json:
        print(json.dumps(show.as_json(outcome), indent=1, allow_nan=False))
    else:
        show.print_outcome(outcome, full, out)
        _print_claims(outcome.table, folder)
        say(f"wrote {', '.join(map(str, paths))}")
    for label, why in outcome.failures.items():
        say(f"hanse: {label} failed: {why}", err)
    if outcome.failures:
        raise typer.Exit(1)


def _print_claims(table: PaperTable, folder: Path) -> None:
    """Print the words of the claims that a table's runs decide; at another scale or recipe, which runs decide them."""
    from hanse_papers.claims.claim import load_claims
    from hanse_papers.claims.judge import Runs, judge, printed_claims

    of_table = [claim for claim in load_claims(table.paper) if claim.arms and claim.table == table.name]
    made = [(claim.arms[0][0].table.recipe, claim.arms[0][0].table.scale) for claim in of_table]
    asked = (table.recipe, table.scale)
    if asked in made:
        here = [claim for claim, by in zip(of_table, made, strict=True) if by == asked]
        out.print(printed_claims(judge(here, Runs(folder)), f"{table.name}: what the paper's claims come to"))
    for recipe, scale in dict.fromkeys(by for by in made if by != asked):
        say(f"The paper's claims on {table.name} are decided by --recipe {recipe} --scale {scale}.")


def _print_papers(paper: str | None, as_json: bool) -> None:
    """Print what can be reproduced: the tables of all papers, or of one, with the data that each needs.

    Args:
        paper: its name; None: all papers.
        as_json: print JSON alone, for other programs.
    """
    from hanse_papers.catalogue import list_papers, printed_papers

    papers = list_papers(paper)
    if as_json:
        print(json.dumps({"papers": papers}, indent=1))
        return
    for table in printed_papers(papers):
        out.print(table)
    out.print(
        "--scale smoke needs no data. What is not here is downloaded where that is allowed, or looked for in the "
        "folder HANSE_DATA.",
        style="dim",
        highlight=False,
    )
