"""Would a client of a market have gained by lying? Its run is played again with that one thing changed.

:func:`counterfactuals` is what ``hanse audit --client`` does: it plays the run once with the client honest and once for
each *story*, which is a lie or an attack of :data:`STORIES`, or training :data:`ALONE`. :func:`verdict` puts what came
out into sentences. Unlike the audit, this needs the experiment's data, since everything is trained anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.runs.config import Experiment
from hanse.runs.experiment import Run, run

# What a client might do instead of being honest, as changes to the experiment's [behaviour]. The numbers multiply what
# the client declares.
STORIES: Mapping[str, Mapping[str, Any]] = {
    "size x0.1": {"liar": {"size": 0.1}},
    "size x0.5": {"liar": {"size": 0.5}},
    "size x2": {"liar": {"size": 2.0}},
    "size x10": {"liar": {"size": 10.0}},
    "cost x0.5": {"liar": {"cost": 0.5}},
    "cost x2": {"liar": {"cost": 2.0}},
    "cost x10": {"liar": {"cost": 10.0}},
    "eagerness x0.5": {"liar": {"eagerness": 0.5}},
    "eagerness x2": {"liar": {"eagerness": 2.0}},
    "attack (sign flip)": {"attacker": {"kind": "flip"}},
    "attack (random model)": {"attacker": {"kind": "random"}},
}
ALONE = "alone"
"""The story in which the client trains by itself and trades nothing."""
LEAST = 1e-6  # tokens, one unit: less is no gain


@dataclass(frozen=True)
class Fared:
    """How a client fared under one behaviour.

    Attributes:
        utility: its utility over the run, in tokens, by what is true of it and not by what it said.
        accuracy: its accuracy on its own test data at the end, 0 to 1; None: not tested.
    """

    utility: float
    accuracy: float | None


@dataclass(frozen=True)
class Counterfactual:
    """How the client would have fared by a story.

    Attributes:
        story: the story's name.
        utility: its true utility over the run, in tokens.
        accuracy: its accuracy on its own test data at the end, 0 to 1; None: not tested.
        gain: its utility less that of being honest, in tokens.
        gain_under_critical_prices: the same gain where sellers are paid critical prices, in tokens. It is None for
            :data:`ALONE`, and for a story that gains nothing.
    """

    story: str
    utility: float
    accuracy: float | None
    gain: float
    gain_under_critical_prices: float | None = None


def counterfactuals(
    folder: Path, client: int, stories: Sequence[str] = (), said: Callable[[str], None] = lambda story: None
) -> tuple[Fared, list[Counterfactual]]:
    """Return how a client fares if it is honest, and how it would by each story.

    Stories that pay are played once more under critical prices, and so is the honest run.

    Args:
        folder: the directory of a run of the mechanism ``ipfl``.
        client: the client's number.
        stories: names of :data:`STORIES`, or :data:`ALONE`; none tries all of them.
        said: told of each run before it is played, for a progress line.

    Returns:
        The client's fortune in the honest run, and one entry for each story.

    Raises:
        UserError: there is no such client or story, or the run cannot be played again.
    """
    if not (folder / "config.toml").exists():
        raise UserError(f"{folder}: is not a run directory (it has no config.toml)")
    experiment = Experiment.read(folder / "config.toml")
    if not 0 <= client < experiment.data.clients:
        raise UserError(f"--client {client}: there is no such client; allowed: 0..{experiment.data.clients - 1}")
    if experiment.sections()["mechanism"].get("name") != "ipfl":
        raise UserError(f"{folder}: its mechanism is '{experiment.mechanism.name}'; lies are tried on 'ipfl' runs")
    wanted = list(stories) or [*STORIES, ALONE]
    unknown = [story for story in wanted if story not in STORIES and story != ALONE]
    if unknown:
        raise UserError(*(f"--story {s}: no such story; allowed: {', '.join([*STORIES, ALONE])}" for s in unknown))
    critical: Fared | None = None
    said("honest")
    honest = _play(_changed(experiment, client, {}), client)
    found = []
    for story in wanted:
        said(story)
        fared = _play(_changed(experiment, client, STORIES.get(story)), client)
        gain, under = fared.utility - honest.utility, None
        if gain > LEAST and story != ALONE:  # who trades nothing is paid no prices
            said(f"{story}, critical prices")
            if critical is None:
                critical = _play(_changed(experiment, client, {}, critical=True), client)
            lied = _play(_changed(experiment, client, STORIES[story], critical=True), client)
            under = lied.utility - critical.utility
        found.append(Counterfactual(story, fared.utility, fared.accuracy, gain, under))
    return honest, found


def _changed(
    experiment: Experiment, client: int, story: Mapping[str, Any] | None, critical: bool = False
) -> Experiment:
    """Return the experiment with the client's behaviour replaced.

    Args:
        experiment: the experiment of the run.
        client: the client's number.
        story: the behaviour's options; ``{}`` makes it honest, None lets everyone train alone.
        critical: whether sellers are paid critical prices.
    """
    sections = experiment.sections()
    behaviour = {name: dict(options) for name, options in sections.get("behaviour", {}).items()}
    for options in behaviour.values():  # whatever it really did is not part of the comparison
        if isinstance(options.get("clients"), list):
            options["clients"] = [c for c in options["clients"] if c != client]
    behaviour = {name: options for name, options in behaviour.items() if options.get("clients", None) != []}
    mechanism = dict(sections["mechanism"])
    if story is None:
        mechanism = {"name": "local"}
        behaviour = {}
    for name, options in (story or {}).items():
        # A behaviour of this name may be there for other clients, with options of its own. The second one goes under
        # its import path, so that both stand side by side.
        key = name if name not in behaviour else f"hanse.federation.behaviour:{name.capitalize()}"
        behaviour[key] = {"clients": [client], **options}
    if critical:
        mechanism["pricing"] = "critical"
        mechanism.pop("stop", None)  # critical prices exist only in a market that skips sellers that do not pay
        mechanism.pop("settle", None)
    return Experiment(**{**sections, "mechanism": mechanism, "behaviour": behaviour})


def _play(experiment: Experiment, client: int) -> Fared:
    """Play an experiment in memory and return how the client fared."""
    result = run(experiment)
    last = result.metrics[-1] if result.metrics else {}
    return Fared(float(last.get(f"utility/client/{client}", 0.0)), accuracies(result).get(client))


def accuracies(result: Run) -> dict[int, float]:
    """Return the accuracy (0 to 1) of each client that was tested on its own data at the end of a run."""
    pairs = zip(result.tested.get("tested", ()), result.tested.get("test_accuracy", ()), strict=True)
    return {int(client): float(accuracy) for client, accuracy in pairs}


def verdict(client: int, honest: Fared, found: Sequence[Counterfactual]) -> list[str]:
    """Return what the stories say of lying in this run, in sentences.

    Args:
        client: the client's number.
        honest: how it fared by honesty.
        found: how it would have fared by each story.

    Example:
        >>> lies = [Counterfactual("cost x2", utility=3.0, accuracy=0.8, gain=-1.0)]
        >>> for line in verdict(2, Fared(4.0, 0.8), lies):
        ...     print(line)
        Client 2 would have gained by none of this: of what was tried, honesty was its best choice in this run.
        Overstating the cost cannot pay in a round (iPFL Theorem 3); for every other lie there is no such proof.
    """
    paying = [c for c in found if c.gain > LEAST]
    lines = []
    if not paying:
        best = "of what was tried, honesty was its best choice in this run"
        lines.append(f"Client {client} would have gained by none of this: {best}.")
    for c in paying:
        line = f"Client {client} would have gained {c.gain:.3f} tokens by '{c.story}'"
        under = c.gain_under_critical_prices
        if under is not None:
            line += (
                ", and nothing under critical prices"
                if under <= LEAST
                else f", and {under:.3f} under critical prices, which prevent only lies about the cost"
            )
        lines.append(line + ".")
    alone = next((c for c in found if c.story == ALONE), None)
    if alone is not None and alone.accuracy is not None and honest.accuracy is not None:
        change = 100 * (honest.accuracy - alone.accuracy)
        lines.append(
            f"Against training alone it gained {honest.utility:.3f} tokens and {change:+.1f} points of accuracy."
        )
    lines.append(
        "Overstating the cost cannot pay in a round (iPFL Theorem 3); for every other lie there is no such proof."
    )
    return lines
