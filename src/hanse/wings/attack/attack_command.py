"""``hanse attack``: what a client could gain by cheating. The search is in :mod:`hanse.wings.attack.search`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.core import ParameterSource

from hanse.base.errors import UserError
from hanse.base.plain_text import quantity
from hanse.cli.options import Changes, Workers, err, name_of, out, print_json, resumable, say

if TYPE_CHECKING:
    from hanse.wings.attack.cheat_table import AttackTable
    from hanse.wings.attack.search import Attacked

What = Annotated[
    str | None,
    typer.Argument(
        metavar="EXP.toml|MECHANISM", help="An experiment's file, or a mechanism by name.", show_default=False
    ),
]
SeedsFrom = Annotated[
    str | None, typer.Option("--seeds-from", metavar="COMMIT", help="With --table: draw its seeds from this hash.")
]


# options of one way alone
TABLE, SEARCH = {"smoke", "seeds_from"}, {"client", "pair", "tries", "seed"}


def attack(
    ctx: typer.Context,
    what: What = None,
    client: Annotated[int, typer.Option("--client", help="Who deviates.")] = 0,
    pair: Annotated[bool, typer.Option("--pair", help="The next client deviates, too.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Play known cheats under several mechanisms.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="With --table: a small one, in a minute or two.")] = False,
    seeds_from: SeedsFrom = None,
    tries: Annotated[int, typer.Option("--tries", help="How many deviations are tried.")] = 150,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds that confirm the best (5), or a table's (8).")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The first of the search's three seeds.")] = 0,
    set_: Changes = None,
    workers: Workers = None,
    out_dir: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; default runs/attack-<name>.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Search for the cheat that gains most for a client or a pair: false numbers, answers, models, gradients, silence.

    The mechanism's questions to the client define the possible deviations. Each is played with the same data, models
    and draws as honest play, so the difference is what the cheat earns. The best one is confirmed with fresh seeds and
    written to attack.toml, which 'hanse run' plays. Finished runs are kept: repeat the
    command to continue.

    A mechanism's name stands for a small experiment on handwritten digits with 8 clients. --table plays a list of known
    cheats under eight mechanisms (with a file, under its own one, too) and says of each whether it pays.

    Examples:
        hanse attack ipfl --tries 20
        hanse attack exp.toml --client 3 --pair
        hanse attack --table --smoke
        hanse attack exp.toml --table
        hanse attack runs/market/config.toml --client 3 --set mechanism.eta=2
        hanse attack pifl --set 'mechanism.value={name="first_order_clients", judges="all"}'
    """
    from hanse.runs.observers import counting
    from hanse.wings.attack.search import search

    _check_options(ctx, table)
    if table:
        return _on_table(what, set_ or [], out_dir, workers, smoke, seeds, seeds_from, as_json)
    if what is None:
        raise UserError("EXP.toml|MECHANISM: is missing: give an experiment's file, a mechanism's name, or --table")
    sections, name = _asked(what, set_ or [])
    clients = [client, client + 1] if pair else [client]
    folder = out_dir or Path("runs") / f"attack-{name}"
    with resumable(), counting("runs", err, thread=False) as told:  # no thread: players may fork
        found = search(sections, clients, folder, tries=tries, seeds=seeds or 5, seed=seed, workers=workers, told=told)
    if as_json:
        return print_json(asdict(found) | {"pays": found.pays, "interval": found.best.gain(found.fresh)})
    for line in sentences(found):
        say(line, wrap=True)
    say(f"hanse run {folder / 'attack.toml'} plays it")


def _check_options(ctx: typer.Context, table: bool) -> None:
    """Raise UserError for an option that was given and that the table, or the search, would not use."""
    options = {one.name: one.opts[0] for one in ctx.command.params if one.name}
    given = {one for one in options if ctx.get_parameter_source(one) is ParameterSource.COMMANDLINE}
    for name in sorted(given & (SEARCH if table else TABLE)):
        why = "--table does not use it" if table else "goes with --table only"
        raise UserError(f"{options[name]}: not here: {why}")
    if "seeds_from" in given and given & {"what", "smoke", "set_"}:
        raise UserError("--seeds-from: is for the rules' whole table: not with a file, a name, --smoke or --set")


def _on_table(
    what: str | None,
    overrides: list[str],
    out_dir: Path | None,
    workers: int | None,
    smoke: bool,
    seeds: int | None,
    seeds_from: str | None,
    as_json: bool,
) -> None:
    """Play a table of cheats and print it. Exit with 1 if a run failed, or if nothing could be measured."""
    from hanse.lab.kept import KeptFile
    from hanse.mechanisms.registry import MECHANISMS
    from hanse.runs.observers import counting
    from hanse.wings.attack.cheat_table import play_table, read_rules

    own, name = (None, what) if what is None or what in MECHANISMS else _asked(what, overrides)
    rules = read_rules(own, name if own is None else None, smoke=smoke, seeds=seeds)
    if own is None and overrides:
        rules = replace(rules, columns={key: _changed(dict(one), overrides) for key, one in rules.columns.items()})
    folder = out_dir or Path("runs") / "-".join(["attack-table", *filter(None, [name]), *["smoke"] * smoke])
    if (mended := KeptFile(folder).mend()) is not None:
        say(mended, err)
    with resumable(), counting("runs", err, thread=False) as told:  # no thread: players may fork
        found = play_table(rules, folder, commit=seeds_from, workers=workers, told=told)
    if as_json:
        print_json(found.as_json())
    else:
        for line in table_sentences(found):
            say(line, wrap=True)
        out.print(found.shown)
        say(f"{folder / 'table.md'} has the intervals, {folder / 'table.json'} everything; the same command goes on")
    if found.failed or not found.cells:
        raise typer.Exit(1)


def table_sentences(found: AttackTable) -> list[str]:
    """Return what a table of cheats says, in sentences."""
    counts, cells, failed = found.counts, found.cells, found.failed
    words = ", ".join(f"{counts[word]} {word}" for word in ("pays", "does not pay", "open"))
    first = f"{words}, of {quantity(len(cells), 'cell')} ({quantity(len(found.seeds), 'seed')} each)."
    first = f"Nothing is decided: {first}" if counts["open"] == len(cells) else first
    lines = [first if cells else "Nothing could be measured."]
    if failed:
        lines = [f"{quantity(len(failed), 'cell')} could not be played. {first}"]
        lines += [f"The first, {failed[0].cheat} under {failed[0].mechanism}: {failed[0].failed}"]
    lines += [f"{one.name}: not measured: {one.why}." for one in found.columns if one.why is not None]
    look = "a smoke table, too small to decide much" if found.rules.smoke else "a look, not evidence"
    drawn = f"drawn from commit {found.commit}" if found.commit else f"not drawn after the rules were fixed: {look}"
    return [
        *lines,
        f"The seeds, {', '.join(map(str, found.seeds))}, were {drawn}.",
        "Gains are in % of honest pay, with intervals corrected over all cells. Pays: the interval lies above 0; does "
        f"not pay: it ends at most at {100 * found.rules.margin:g} %; open: neither.",
    ]


def _changed(sections: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Return an experiment's sections with the changes of --set, and say what they replace."""
    from hanse.runs.overrides import apply

    changed, notes = apply(sections, overrides)
    for line in notes:
        say(line, err, style="yellow")
    return changed


def _asked(what: str, overrides: list[str]) -> tuple[dict[str, Any], str]:
    """Return the experiment's sections, and what to call its folder."""
    from hanse.mechanisms.registry import MECHANISMS
    from hanse.runs.config import read_file
    from hanse.wings.attack.search import small

    if what in MECHANISMS:
        sections, name = small(what), what
    elif what.endswith(".toml") or Path(what).exists():
        sections, name = read_file(what), name_of(Path(what))
    else:
        raise UserError(f"{what!r}: no such file, and no mechanism of that name; 'hanse list' shows these")
    return _changed(sections, overrides), name


def sentences(found: Attacked) -> list[str]:
    """Return what a search says, in sentences."""
    fresh = f"seeds {found.fresh[0]} to {found.fresh[-1]}"
    nothing = f"Found nothing that pays surely in {len(found.tries)} tries; best"
    gain, low, high = (100 * value / found.scale for value in found.best.gain(found.fresh))
    gains = f"gains {gain:.1f} % (95 % interval {low:.1f} to {high:.1f}; {fresh})"
    of = "the mean amount by which honest clients' balances end above or below their grant"
    if found.measure == "utility":
        of = f"the mean absolute utility of client {' and '.join(map(str, found.clients))} when honest"
    lines = [f"{'Pays' if found.pays else nothing}: {found.best.said}. It {gains} of {found.scale:.3f} tokens, {of}."]
    if failed := [one for one in found.tries if one.failed is not None]:
        lines.append(f"{len(failed)} could not be played; the first, {failed[0].said}: {failed[0].failed}")
    return [*lines, *["Every deviation was tried."] * (found.ended == "space")]
