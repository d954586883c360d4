"""A participant's statement: what it gave, what it gained, what it is owed, and whether joining paid.

:func:`statement` makes one from a run directory. It combines what is also available separately. :class:`ModelQuality`
compares the client's own tests with those of a model that it trains alone. :func:`contributed` says what its updates
were worth, :func:`models_of` where its models went, and :func:`money_of` what its books are. :func:`verdict_of` answers
whether joining paid. :mod:`hanse.reports.alone` plays the run of single clients that the comparison needs.

The sentences are read by participants who are not engineers. None of these claims more than the numbers allow: each
says how sure it is, or that this is not known. Rounds are numbered from 0, as in the records. The page is made by
:mod:`hanse.reports.statement_page`; ``docs/statement.md`` explains each figure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import MEMBERS, table
from hanse.reports.alone import by_python
from hanse.reports.contributions import lost_files
from hanse.reports.statement_contributed import Contributed, contributed
from hanse.reports.statement_fit import ModelQuality, fit_of
from hanse.reports.statement_models import Models, models_of
from hanse.reports.statement_money import Money, money_of
from hanse.reports.statement_privacy import privacy_of
from hanse.reports.statement_short import in_short
from hanse.reports.statement_verdict import JoiningVerdict, verdict_of
from hanse.runs.run_record import load_run

APART = "only the participant can, on its own data"  # who trains alone in a run whose data are elsewhere


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a run did for one client, and what the client did for the run.

    Attributes:
        run: the name of the run directory.
        mechanism: the mechanism's name.
        seed: the run's seed.
        client: the client's number.
        label: how the client is called: its name, or its number.
        rounds: how many rounds were played.
        planned: how many rounds were planned. It is more than ``rounds`` if the run is not finished.
        num_clients: how many clients the run has.
        names: whether the run allows its clients to be named to one another.
        verdict: whether joining paid, and why.
        short: short answers that are shown below the verdict's headline, by what they are about.
        fit: how good the client's model is, on its own test data.
        contributed: what the client's updates were worth.
        money: the client's books, in units (1 token is 1,000,000 units). None: nobody pays.
        models: where the client's models went, and what it got of others' models.
        told: sentences that the mechanism's parts have for participants, and a sentence on what the experiment makes
            this client do, if anything.
        lost: sentences on files of rounds that are missing or were changed.
        doubts: sentences to show first, if the run's model is no better than chance or its values mean little.
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
    verdict: JoiningVerdict
    short: dict[str, str]
    fit: ModelQuality
    contributed: Contributed
    money: Money | None
    models: Models
    told: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """What a terminal or a notebook shows of it: the verdict, the text below it, and which files are lost."""
        name = "" if self.label == str(self.client) else f"{self.label}: "
        told = [f"{about}: {said}" for about, said in self.short.items()]
        return [f"{name}{self.verdict.headline}.", *told, *self.lost]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def statement(folder: str | Path, client: int, *, alone: str | Path | None = None) -> Statement:
    """Return the statement of one client.

    Other clients are named in it only if the experiment says ``[clients] named = true``.

    Args:
        folder: the run directory. The run may still be going on.
        client: the client's number, from 0.
        alone: the directory of a run of the same experiment with every client by itself (the mechanism ``local``). None
            looks for one in ``folder/alone`` and next to ``folder``.

    Raises:
        UserError: there is no run or no such client, the ledger cannot be read, or ``alone`` is another experiment.

    Example:
        >>> import tempfile
        >>> import hanse
        >>> from hanse.reports.alone import train_alone
        >>> experiment = hanse.Experiment(
        ...     data={"clients": 3, "client_test": 0.2},
        ...     model={"name": "logistic"},
        ...     mechanism={"name": "fedavg", "clients_per_round": 3},
        ...     run={"rounds": 2},
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = hanse.run(experiment, out=f"{folder}/town")
        ...     first = statement(f"{folder}/town", 1)
        ...     _ = train_alone(Path(folder, "town"))
        ...     second = statement(f"{folder}/town", 1)
        >>> first.verdict.headline
        'Whether joining paid is not known'
        >>> second.verdict.headline  # two rounds are too few
        'Not known whether joining paid: the difference may be chance'
        >>> second.models.answered, second.models.reached  # two updates, in models that both others were given
        (2, 2)
    """
    run = load_run(folder)
    if type(client) is not int or not 0 <= client < run.num_clients:
        raise UserError(f"--client {client}: no such client; this run has clients 0 to {run.num_clients - 1}")
    names = table(run.config, "clients").get("named") is True
    fit = fit_of(run, client, None if alone is None else Path(alone))
    given = contributed(run, client)
    money = money_of(run.path, client, kinds=run.about.kinds, names=names)
    models = models_of(run, client, names=names)
    verdict, doubts = verdict_of(fit, money, models), tuple(run.doubts)
    return Statement(
        run=run.name,
        mechanism=run.mechanism,
        seed=run.seeds[0],
        client=client,
        label=run.client_label(client),
        rounds=len(run.metrics),
        planned=run.rounds_planned if run.unfinished else len(run.metrics),
        num_clients=run.num_clients,
        names=names,
        verdict=verdict,
        short=in_short(
            fit,
            given,
            net=0 if money is None else money.net,
            doubts=doubts,
            finished=not run.unfinished,
            privacy=privacy_of(run, client, given),
            alone=APART if (run.path / MEMBERS).exists() else by_python(run),
        ),
        fit=fit,
        contributed=given,
        money=money,
        models=models,
        told=run.about.told_to(client),
        lost=tuple(lost_files(run)),
        doubts=doubts,
    )
