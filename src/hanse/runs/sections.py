"""The sections ``[clients]`` and ``[run]`` of an experiment, which reports read too, without torch. The others are in
:mod:`hanse.runs.config`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanse.base.errors import UserError
from hanse.base.factories import Count, Positive
from hanse.base.files import table
from hanse.base.plain_text import quantity


class Section(BaseModel):
    """One section of the file: unknown keys are mistakes, and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ExitSection(Section):
    """``exit`` in ``[clients]``: what becomes of what a client has when it leaves the run (``hanse leave``).

    Attributes:
        balance: "kept", or "lost" to the mint.
        bond: "audited": a bond of a size that is not proved yet is decided as if the client were silent. "returned": it
            gets the bond back once its leave is in the book, or when the run ends; an audit waits for members that are
            not there, so that whoever was expelled gets its bond back, too.
        receipts: on a network, whether it is "sent" its last receipts and its statement when the run ends, or these are
            "withheld".
        models: "stay": the others train on. "anew": nobody trains on from models that may hold its updates, so that the
            run ends there.
    """

    balance: Literal["kept", "lost"] = "kept"
    bond: Literal["audited", "returned"] = "audited"
    receipts: Literal["sent", "withheld"] = "sent"
    models: Literal["stay", "anew"] = "stay"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return that of a run's settings, as its ``config.toml`` has them. Raises UserError where it was edited.

        Examples:
            >>> ExitSection.of({"clients": {"exit": {"models": "anew"}}}).models
            'anew'
            >>> ExitSection.of({"clients": {"exit": {"balance": 3}}})
            Traceback (most recent call last):
            hanse.base.errors.UserError: config.toml: clients.exit.balance: 3: was edited; put back what it was
        """
        given = table(table(config, "clients"), "exit")
        try:
            return cls(**given)
        except ValidationError as wrong:
            key = wrong.errors()[0]["loc"][0]
            what = f"{key}: {given[str(key)]!r}" if key in cls.model_fields else f"{key}: no such key"
            raise UserError(f"config.toml: clients.exit.{what}: was edited; put back what it was") from None


class ClientsSection(Section):
    """``[clients]``: the clients' decisions, and what they learn about their values.

    Attributes:
        policy: the policy that decides on bids, prices and leaving, by its name or import path, or as a table with
            options.
        told: whether each client learns its value after every round in which it trained. Its policy may decide to leave
            because of that value.
        profiles: each client's role, costs and eagerness in a market, by name or as a table with options.
        grant: a new client's grant from the mint, in tokens, if the mechanism pays.
        vests: in how many parts the grant is paid. The first is paid when a client joins, and one more after each round
            in which its update counted. So leaving and coming back under another key gains nothing.
        members: the member of each client, by the client's key or name. Clients of one member are one for payment by
            values ("by_value", "pot") and for caps ("capped"). A client that is not named is a member by itself.
        named: whether a client's statement names the clients that got its models and those with which it traded.
        exit: what becomes of what a client has when it leaves, :class:`ExitSection`; left out: its defaults.
    """

    policy: str | dict[str, Any] = "loyal"
    told: bool = False
    profiles: str | dict[str, Any] | None = None
    grant: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 100.0
    vests: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    named: bool = False
    members: dict[str, str] = Field(default={})
    exit: ExitSection | None = None

    @property
    def leaving(self) -> ExitSection:
        """What becomes of what a client has when it leaves."""
        return self.exit or ExitSection()


class RunSection(Section):
    """``[run]``: the length of a run, its seed, and its checkpoints.

    Attributes:
        rounds: how many rounds are played, unless a limit below ends the run earlier. With 0, there is only the first
            model, and no run directory.
        seed: the seed of everything but the split of the data (``data.seed``).
        checkpoint_every: write a checkpoint after every this many rounds.
        target_accuracy: the run ends once the server's test accuracy reaches this share, in (0, 1].
        max_seconds: the run ends once its rounds took this long (wall clock).
        max_megabytes: the run ends after this much traffic in both directions, in 10^6 bytes.
        recomputable: whether to commit to the server's validation set, the configuration and hanse's code before the
            first round, and to keep all answers of clients. An auditor can then recompute every value and payment
            (``hanse audit recompute``).
    """

    rounds: Count = 60
    seed: int = 0
    checkpoint_every: Positive = 1
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    max_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_megabytes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    recomputable: bool = False

    def over(self, lines: Sequence[Mapping[str, Any]]) -> str | None:
        """Return why a run ends after the rounds of these lines of ``metrics.jsonl``, whatever ``rounds`` says.

        None: no limit is reached.
        """
        after = f"after {quantity(len(lines), 'round')}"
        if (wanted := self.target_accuracy) is not None:
            best = max((line.get("test/accuracy") or 0.0 for line in lines), default=0.0)
            if best >= wanted:
                return f"target accuracy {wanted:g} reached {after} ({best:.4f})"
        if (most := self.max_seconds) is not None and (spent := sum(line["time/round_s"] for line in lines)) >= most:
            return f"max_seconds {most:g} used up {after} ({spent:.1f} s)"
        if (most := self.max_megabytes) is not None:
            moved = sum((line["bytes/down"] + line["bytes/up"]) / 1e6 for line in lines)
            if moved >= most:
                return f"max_megabytes {most:g} used up {after} ({moved:.1f} MB)"
        return None


def config_hash(config: dict[str, Any]) -> str:
    """Return the hash of a ``config.toml`` without its number of rounds, which may be raised later."""
    run = {name: value for name, value in table(config, "run").items() if name != "rounds"}
    return hashlib.sha256(json.dumps({**config, "run": run}, sort_keys=True, default=str).encode()).hexdigest()
