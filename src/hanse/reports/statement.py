"""One page for one participant: what it gave, what it gained, what it is owed, and whether joining paid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.reports.statement_accuracy import Fit, fit_of
from hanse.reports.statement_gave import Contributed, contributed
from hanse.reports.statement_models import Models, models_of
from hanse.reports.statement_money import Money, money_of
from hanse.reports.statement_page import render
from hanse.reports.statement_verdict import Verdict, verdict_of
from hanse.runs.record import RunRecord, load_run

__all__ = ["Statement", "client_of", "render", "statement"]


@dataclass(frozen=True)
class Statement:
    """What a run did for one client and the client for it. Rounds are numbered from 0, as in the records; money is in
    units (1 token = 1,000,000), None where nobody pays.

    ``label`` is what the client is called; ``names``: the run allows to name other clients; ``told``: what the run's
    parts say to who takes part, and what the client itself does in it.
    """

    run: str
    mechanism: str
    seed: Any
    client: int
    label: str
    rounds: int
    planned: int
    num_clients: int
    names: bool
    verdict: Verdict
    fit: Fit
    contributed: Contributed
    money: Money | None
    models: Models
    told: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def statement(
    folder: str | Path, client: int, *, alone: str | Path | None = None, ledger_url: str | None = None
) -> Statement:
    """Return the statement of ``client`` (its number) in the run directory ``folder``.

    ``alone`` is a run of the same experiment with every client by itself (the mechanism ``local``); without it, one is
    looked for in ``folder/alone`` and beside ``folder``. Other clients are named only if the run's ``[clients] named``
    is true. ``ledger_url``: where the books are, if not in the folder. Raises UserError: no run, no such client, a
    ledger that cannot be read, an ``alone`` that does not fit.
    """
    run = load_run(folder, ledger_url)
    if type(client) is not int or not 0 <= client < run.num_clients:
        raise UserError(f"--client {client}: no such client; this run has clients 0 to {run.num_clients - 1}")
    names = _names_allowed(run.config)
    fit = fit_of(run, client, None if alone is None else Path(alone))
    given = contributed(run, client)
    money = money_of(run.path, client, kinds=run.about.kinds, names=names, ledger_url=ledger_url)
    models = models_of(run, client, names=names)
    return Statement(
        run.name,
        run.mechanism,
        run.seeds[0],
        client,
        run.client_label(client),
        len(run.metrics),
        run.rounds_planned,
        run.num_clients,
        names,
        verdict_of(fit, money, models),
        fit,
        given,
        money,
        models,
        run.about.told_to(client),
    )


def client_of(run: RunRecord, said: str) -> int:
    """Return the number of the client that a person means: a number, or the name of exactly one. Raises UserError."""
    if said.isdecimal():
        return int(said)
    found = [c for c in range(run.num_clients) if run.client_label(c) == said]
    if len(found) != 1:
        what = "no client has this name" if not found else f"{len(found)} clients have this name"
        raise UserError(f"--client {said}: {what}; give its number, 0 to {run.num_clients - 1}")
    return found[0]


def _names_allowed(config: Mapping[str, Any]) -> bool:
    clients = config.get("clients")
    return isinstance(clients, Mapping) and clients.get("named") is True
