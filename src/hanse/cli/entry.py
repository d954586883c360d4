"""The ``hanse`` command: its general options, its subcommands, and what it does with errors.

``run``, ``resume``, ``compare``, ``report``, ``demo`` and ``list`` are here. Each other subcommand is in a module of
its own. The docstring of a command is what its ``--help`` shows. The first paragraph is also shown in the list of
commands, so it is one short sentence. Commands import what they need inside their functions, which keeps ``hanse
--help`` fast.

There are three exit codes. 0: all is well. 1: the machine failed, the run was stopped, or what was checked is not true.
2: the user made a mistake. Each error is reported in one line. (141: nobody reads the output any more.)
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hanse.base.errors import MachineError, PartError, PartWarning, UserError, first_line, of_file, out_of_memory
from hanse.base.files import on_network, taken
from hanse.base.imports import is_looking, looking
from hanse.base.plain_text import quantity
from hanse.base.terminal import plainly
from hanse.base.wings import absent, target, wings
from hanse.cli import audit, doctor, facts, invoice, ledger, receipt, statement, sweep
from hanse.cli.options import (
    Changes,
    Dirs,
    ExperimentFile,
    RunFolder,
    Trust,
    each_run,
    err,
    flowing,
    importing,
    name_of,
    out,
    own_modules,
    say,
    trusting,
    warn,
)
from hanse.flower import new

if TYPE_CHECKING:
    from hanse.runs.played_run import PlayedRun

app = typer.Typer(
    name="hanse",
    epilog="Examples:\n\nhanse demo\n\nhanse run exp.toml && hanse report runs/exp\n\n"
    "What an experiment's file may say: docs/first-steps.md, docs/reference/experiment.md",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Run directory to make; default runs/<name of file or run>.")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Also log to tensorboard, or to an observer (module:function); may be repeated."),
]
# what runs an experiment, on the user's word; every other command only looks, and imports nothing that files name
RUNS = ("run", "resume", "sweep", "list", "demo")
# what is looked for among the commands, and is not there
PAPERS = "it comes with hanse-papers, the folder papers of a clone: pip install -e papers"
ELSEWHERE = {"value": "it is a function of Python, hanse.value", "reproduce": PAPERS, "theory": "reproduce pifl theory"}
# where the commands stand in --help
START, RUN, LOOK, NETWORK = "Start here", "Run something", "Look at runs", "On a network"


@app.callback()
def hanse(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=lambda on: _version(on)),
    ] = False,
) -> None:
    """Federated learning as an economy: who trains, whose model counts, what each contribution is worth.

    An experiment is a TOML file. 'hanse run' plays it, and leaves a run directory with its rounds, models, values and
    books. The other commands look at such directories. 'hanse demo' shows all of this on a small example.
    """
    del version


def _version(on: bool) -> None:
    """Print the version and end, if the option was given."""
    if on:
        from importlib.metadata import version

        out.print(f"hanse {version('hanse')}", highlight=False)
        raise typer.Exit


@app.command(rich_help_panel=START)
def demo(
    out_dir: Annotated[Path, typer.Option("--out", "-o", help="Folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds.")] = 5,
) -> None:
    """A tour of less than a minute on real data: four hospitals, 920 patients.

    They train a model together and are paid by what their updates were worth; for comparison, each trains alone. It
    ends with three answers, a report, a statement for each hospital, an invoice, and the audit of the books.

    Everything is in one folder of runs, which 'hanse serve' shows as a page. An earlier demo there is replaced.

    Examples:
        hanse demo --out runs/demo
    """
    from hanse.cli.demo import run_demo

    run_demo(out_dir, seeds, out)


@app.command(name="list", rich_help_panel=START)
def list_(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A mechanism shows its parts, a section its keys, others their options."),
    ] = None,
    combinations: Annotated[
        bool, typer.Option("--combinations", help="Show what fits in a mechanism, or in every one.")
    ] = False,
) -> None:
    """List mechanisms, parts, data sources, partitions, models and behaviours.

    These are the names that an experiment's file may use. Give a mechanism's name to see its parts and options; add
    --combinations to see which parts can replace them, and why others do not fit. Give any other name to see its
    options. Give a kind, such as 'partitions' or 'data.partition', to see the options of all its names. Give a section,
    such as 'data', to see its keys, or 'words' to see what parts and settings may need and forbid.

    Examples:
        hanse list
        hanse list greedyfed
        hanse list greedyfed --combinations
        hanse list attacker
        hanse list partitions
        hanse list data
        hanse list words
    """
    from hanse.cli.listing import combination_table, name_table, tables

    if combinations:
        out.print(combination_table(name))
    else:
        for table in [name_table()] if name is None else tables(name):
            out.print(table)


@app.command(rich_help_panel=RUN)
def run(
    file: ExperimentFile,
    set_: Changes = None,
    out_dir: Out = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an existing run directory first.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also say which training engine was chosen, and why.")
    ] = False,
    track: Track = None,
) -> None:
    """Run an experiment and leave a run directory.

    The directory has the experiment with all defaults (config.toml), one line per round (metrics.jsonl), and one line
    per client and round (clients.jsonl). It also has the rounds' arrays, checkpoints, and the books if the mechanism
    pays. 'hanse report' turns it into a page.

    Ctrl-C ends the run after the current round; 'hanse resume' continues it. All mistakes in the file are listed before
    training starts. An experiment's file can name functions to import, so run only files that you trust.

    Examples:
        hanse run exp.toml
        hanse run exp.toml --out runs/other --set train.lr=0.1 --set mechanism.weigh=uniform
    """
    folder = out_dir or _free(file)
    if not overwrite and (folder / "config.toml").exists() and not on_network(folder):
        raise taken(folder)  # at once, before seconds of imports

    with importing():
        from hanse.runs import experiment as running
        from hanse.runs.config import Experiment
        from hanse.runs.observers import ProgressBar, make_trackers

    experiment = Experiment.read(file, set_ or [])
    bar = ProgressBar(out, experiment.mechanism.name, explain=explain)
    trackers = make_trackers(track or [], folder)
    result = running.run(experiment, out=folder, observers=[bar, *trackers], overwrite=overwrite)
    _finish(result)


@app.command(rich_help_panel=RUN)
def resume(
    folder: RunFolder,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also say which training engine is used, and why.")
    ] = False,
    other_data: Annotated[
        bool, typer.Option("--other-data", help="Continue even if the data have changed since; the run records this.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Continue to this many rounds in all; this changes config.toml.")
    ] = None,
    track: Track = None,
) -> None:
    """Continue a run that was stopped or killed from its last checkpoint, or extend it by more rounds.

    The result is bit for bit that of an uninterrupted run. Changed data are refused unless you give --other-data. A run
    of a mechanism that pays cannot be extended once its last round was settled. To continue a run on a network, use
    'hanse network run'.

    Examples:
        hanse resume runs/exp
        hanse resume runs/exp --rounds 60
    """
    with importing():
        from hanse.runs import experiment as running
        from hanse.runs.observers import ProgressBar, make_trackers

    bar = ProgressBar(out, folder.name, explain=explain)
    observers = [bar, *make_trackers(track or [], folder)]
    _finish(running.resume(folder, observers=observers, other_data=other_data, rounds=rounds))


def _free(file: Path) -> Path:
    """Return the run directory of an experiment by its name; by that of a run, and free, if the file is a run's."""
    places = (Path("runs") / f"{name_of(file)}{more}" for more in chain([""], (f"-{number}" for number in count(2))))
    return next(place for place in places if file.name != "config.toml" or not place.exists())


def _finish(result: PlayedRun) -> None:
    """Print how a run ended, its last figures, warnings, and what to do next. Raises typer.Exit with 1 if it was
    stopped, or has no result.
    """
    from hanse.reports.accuracy import reached
    from hanse.reports.answers import answers
    from hanse.reports.facts import VALUED_OTHERWISE, facts_of
    from hanse.reports.groups import group_runs
    from hanse.reports.words import doubts_said
    from hanse.runs.observers import mostly_refused
    from hanse.runs.run_record import load_run

    if result.interrupted:
        out.print(f"Stopped after round {len(result.metrics)} of {result.experiment.run.rounds}. Go on with:")
        out.print(f"  hanse resume {shlex.quote(str(result.path))}", markup=False)
        raise typer.Exit(1)
    if result.over is not None:
        out.print(result.over, highlight=False)
    assert result.path is not None  # what a command plays has a run directory, and so at least a round
    record = load_run(result.path)
    warn(dict.fromkeys(filter(None, (result.nothing, *doubts_said(record)))))
    what, tested = reached(record)
    out.print(f"{quantity(len(result.metrics), 'round')}; {' '.join([what, *tested[-1:]])}", highlight=False)
    noted = [note.said for note in facts_of(record).notes if note.code in ("minted", *VALUED_OTHERWISE)]
    for line in (*mostly_refused(result.clients, result.names), *noted):
        say(f"warning: {line}", style="yellow")
    for question, answer in answers(group_runs([record])).lines.items():
        say(f"{question} {answer}", wrap=True)
    say(f"in {result.path}; a picture of it: hanse report {shlex.quote(str(result.path))}")
    if result.nothing:
        raise typer.Exit(1)


@app.command(rich_help_panel=LOOK)
def compare(
    dirs: Dirs,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Label of the experiment to compare with; default the first.")
    ] = None,
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="How close to the baseline's best accuracy counts as equally good.")
    ] = 5e-3,
    form: Annotated[str, typer.Option("--format", "-f", help="table, json, csv, latex or markdown.")] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Put runs side by side: accuracy, time, bytes; over several seeds also paired tests.

    For each experiment it prints the final and best accuracy, the rounds needed to match the baseline's best, seconds
    per round, and megabytes: means and deviations over runs that differ only in their seeds, which --format csv lists
    one by one. Differences from the baseline, over common seeds, get confidence intervals.

    Examples:
        hanse compare runs/greedyfed runs/fedavg
        hanse compare runs/sweep-exp --baseline theirs --format latex
    """
    from hanse.reports.answers import doubts_of
    from hanse.reports.compare import as_text, cautions, differences_table, experiments_table, with_baseline
    from hanse.reports.groups import group_runs
    from hanse.runs.run_record import load_runs

    form = "json" if as_json else form
    runs = load_runs(each_run(dirs))
    groups = with_baseline(group_runs(runs), baseline)
    for line in doubts_of(groups):
        say(f"warning: {line}", out if form == "table" else err, style="bold yellow", wrap=True)
    if form != "table":
        return print(as_text(form, runs, epsilon, baseline), end="")
    for table in (experiments_table(groups, epsilon), differences_table(groups)):
        if table.rows:
            out.print(table)
    for note in cautions(groups):
        say(note.said, wrap=True)


@app.command(rich_help_panel=LOOK)
def report(
    dirs: Dirs,
    out_dir: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write to; default the first of them.")
    ] = None,
    retrain: Annotated[
        bool,
        typer.Option("--retrain", help="First train a simulation anew without each client, to tell who does harm."),
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="With --retrain: leave out only this client; repeatable.", show_default=False),
    ] = None,
    trust: Trust = False,
) -> None:
    """Write report.html (one file, works offline), and each figure as PNG, SVG and CSV.

    The report shows accuracy, who took part, what each client contributed, and payments if there are any. Several runs
    are also compared. You can report on a run that is still going on.

    A value says what a client's updates added; it does not say whether the others would do better without it. --retrain
    plays a simulation five times with all clients and five times without each (kept in DIR/without, and continued if
    stopped). Only a client whose absence surely helps is then called harmful.

    Examples:
        hanse report runs/exp
        hanse report runs/a runs/b --out both
        hanse report runs/exp --retrain --without 7
    """
    from hanse.reports.report import reported
    from hanse.runs.observers import counting

    if without and not retrain:
        raise UserError("--without: goes with --retrain only")
    runs = each_run(dirs)
    if retrain:
        from hanse.reports.harm import retrain as play
        from hanse.runs.observers import ProgressBar

        with trusting(trust):
            play(runs, without or (), observers=lambda label: [ProgressBar(err, label, figure=False)])
    with counting("drawing", err) as progress:
        page, first = reported(runs, out_dir or dirs[0], progress)
    warn(first.doubts)
    for question, answer in first.lines.items():
        say(f"{question} {answer}")
    say(f"wrote {page}")


app.command(rich_help_panel=START)(doctor.doctor)
app.command(rich_help_panel=RUN)(sweep.sweep)
app.command(rich_help_panel=LOOK)(statement.statement)
app.add_typer(audit.app, name="audit", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(invoice.invoice)
app.command(rich_help_panel=LOOK)(facts.facts)
app.add_typer(ledger.app, name="ledger", rich_help_panel=LOOK)
app.add_typer(receipt.app, name="receipt", rich_help_panel=LOOK)
app.command(rich_help_panel=NETWORK, epilog=new.EPILOG)(new.new)
app.command(rich_help_panel=NETWORK, epilog=new.SCHEMA_EPILOG)(new.schema)
for wing in wings():
    for command in wing.commands:
        added = target(command.target)
        group, _, word = command.name.rpartition(" ")
        if isinstance(added, typer.Typer):
            app.add_typer(added, name=command.name, rich_help_panel=command.panel)
        else:
            {"": app, "audit": audit.app}[group].command(word, rich_help_panel=command.panel or None)(added)
flowing(app)


def _usage(wrong: Any) -> str:
    """Return a mistake in the command line as one line, with where to look."""
    # typer and click each add a suggestion
    line = (
        re.sub(r"( Did you mean [^?]*\?) \(?Did you mean .*", r"\1", wrong.format_message()).removesuffix(".")
        or "a command is missing"
    )
    if missing := re.match(r"No such command '(\w+)'", line):
        line = f"{missing[0]}: {ELSEWHERE[missing[1]]}" if missing[1] in ELSEWHERE else f"{line}{absent()}"
    context = getattr(wrong, "ctx", None)
    return line if context is None else f"{line} (see '{context.command_path} --help')"


def _cannot_be_read(wrong: Exception) -> None:
    """Say in a line that a damaged run directory made a command fail where nothing had looked for that damage.

    Commands that look at a run only read its files, so their errors almost always come from these files. If not, the
    place that is named and HANSE_TRACEBACK=1 tell.
    """
    last = traceback.extract_tb(wrong.__traceback__)[-1]
    message = " ".join(str(wrong).split())[:200]
    say(
        f"hanse: {' '.join(sys.argv[1:])}: the files do not fit together ({type(wrong).__name__} at "
        f"{Path(last.filename).name}:{last.lineno}: {message}); HANSE_TRACEBACK=1 shows where",
        err,
    )


def main() -> None:
    """Run the command line and end the process with its exit code.

    Commands that play experiments may import modules that the experiments name, also from the current folder. All other
    commands import nothing that a run's files name.
    """
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    with plainly():
        _refuse_empty(sys.argv[1:])
        _refuse_lost_folder()
        if command in (*RUNS, *(one.name for wing in wings() for one in wing.commands if one.plays)):
            # the user runs this file, so it may name modules of the current folder
            own_modules()
            _main()
        else:
            with looking():
                _main()


def _refuse_empty(words: Sequence[str]) -> None:
    """End with 2 if a word of the command line is empty: mostly a shell's variable that is not set, and an empty path
    would be taken for the current folder.
    """
    for before, word in zip(("hanse", *words), words, strict=False):
        if not word or re.fullmatch(r"--[a-z-]+=", word):
            say(f"hanse: {word.rstrip('=') or f'the word after {before}'}: is empty; must be a word or left out", err)
            sys.exit(2)


def _refuse_lost_folder() -> None:
    """End with 2 if the current folder was removed: neither paths nor imports mean anything there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        say("hanse: the current folder was removed; go into one that is there (cd)", err)
        sys.exit(2)


def _main() -> None:
    """Run the command, and turn each kind of error into its lines and its exit code."""
    whole = bool(os.environ.get("HANSE_TRACEBACK"))
    plain = warnings.formatwarning
    warnings.formatwarning = lambda said, kind, *at: (
        f"warning: {said}\n" if kind is PartWarning else plain(said, kind, *at)
    )
    try:
        code = app(standalone_mode=False, prog_name="hanse")
        if sys.stdout is not None:  # as it is where the shell has closed it
            sys.stdout.flush()  # a full disk shows here, and not after the exit code is set
    except (BrokenPipeError, SystemExit) as ended:
        if not any(isinstance(one, BrokenPipeError) for one in (ended, ended.__context__)):
            raise
        # whoever read the output has had enough, as in "hanse list | head", which rich and typer may have seen before;
        # nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # as a shell says of a program that ends since nobody reads on
    except typer.Abort:
        err.print("hanse: stopped")
        sys.exit(1)
    except KeyboardInterrupt:
        goes_on = "'hanse resume DIR' goes on from the last checkpoint"
        if sys.argv[1:2] == ["network"]:
            goes_on = "what the SuperLink plays goes on without this command; 'hanse network down DIR' ends it"
        err.print(f"hanse: stopped at once; {goes_on}")
        sys.exit(1)
    except Exception as wrong:
        if type(wrong).__module__.startswith(("click", "typer")) and hasattr(wrong, "format_message"):
            say(f"hanse: {_usage(wrong)}", err)
            sys.exit(2)
        said = of_file(wrong) if isinstance(wrong, OSError) else wrong
        told = isinstance(said, MachineError) or (isinstance(said, UserError) and wrong.__cause__ is None)
        hidden = not told and said is wrong
        if whole and (hidden or wrong.__cause__ is not None or said is not wrong):
            raise
        if (lines := _lines(said)) is None:
            if not is_looking():
                raise
            _cannot_be_read(wrong)
            sys.exit(1)
        for line in lines:
            say(f"hanse: {line}{HINT if hidden and line == lines[-1] else ''}", err)
        sys.exit(2 if isinstance(said, UserError) else 1)
    sys.exit(code if isinstance(code, int) else 0)


HINT = "; HANSE_TRACEBACK=1 shows where"


def _lines(wrong: Exception) -> Sequence[str] | None:
    """Return the lines that say what went wrong; None if only a traceback can."""
    if isinstance(wrong, UserError | MachineError):
        return wrong.lines
    if out_of_memory(wrong):
        return [f"not enough memory: {first_line(wrong)}"]
    if isinstance(wrong, PartError):  # the line names the part and the round, enough for whoever wrote the part
        return [str(wrong)]
    # a note names whose code it was: a part's or a behaviour's
    notes = getattr(wrong, "__notes__", ())
    return [f"{first_line(wrong)}, {notes[0]}"] if notes else None
