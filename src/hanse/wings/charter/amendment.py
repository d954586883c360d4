"""Amendments: another charter from a round on, which holds once a quorum of the members has signed it.

The file is a note (:mod:`hanse.ledger.note`): the charter and its amendment as canonical JSON, a blank line, and the
members' signatures, each under the member's key in the charter that is amended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.files import going_on, read_text, write_whole
from hanse.base.lock import Hold
from hanse.ledger.note import DASH, PrivateKey, is_signed, public_of, sign
from hanse.ledger.run_ledger import BooksAtCheckpoint, latest_claim
from hanse.runs.config import Experiment, read_file
from hanse.wings.charter.charter import Charter, charter_of

SIGNER = "hanse/charter"  # the name under which members sign


def drafted(old: Charter, new: Charter, first_round: int) -> str:
    """Return the text of an amendment, which members sign.

    Args:
        old: the charter that is amended.
        new: the charter that it becomes.
        first_round: the first round under it.
    """
    agreed = {client: old.answered_by(member) for client, member in old.by_client.items()}
    before = {client: answers for client, answers in agreed.items() if answers is not None}
    said = {"amends": old.hash, "first_round": first_round, "before": before, "signed": ()}
    amended = new.model_copy(update=said)
    both = {"charter": old.model_dump(mode="json"), "amendment": amended.model_dump(mode="json")}
    return json.dumps(both, indent=1, sort_keys=True) + "\n"


def read_note(path: Path) -> tuple[str, list[str]]:
    """Return the text of an amendment and its signatures. Raises UserError if the file is none."""
    text, _, rest = read_text(path).partition("\n\n")
    return text + "\n" * (not text.endswith("\n")), [line for line in rest.splitlines() if line.startswith(DASH)]


def both_in(text: str, where: str) -> tuple[Charter, Charter]:
    """Return the charter and its amendment in a text. Raises UserError."""
    try:
        said = json.loads(text)
        old, new = (Charter.of(said[name], f"{where}: ") for name in ("charter", "amendment"))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{where}: is not an amendment; 'hanse charter amend' writes one") from None
    if new.amends != old.hash or drafted(old, new, new.first_round) != text:
        raise UserError(f"{where}: does not say what it amends; 'hanse charter amend' writes it anew")
    return old, new


def signed(text: str, lines: Sequence[str], old: Charter, keys: Sequence[PrivateKey]) -> list[str]:
    """Return the lines with the signatures of these keys added. Raises UserError for a key that is no member's."""
    members = {member.key for member in old.members.values() if member.key}
    for key in keys:
        if public_of(key).hex() not in members:
            raise UserError(f"--sign: {public_of(key).hex()}: is no member's 'key' in the charter '{old.title}'")
    return [*dict.fromkeys([*lines, *(sign(text, SIGNER, key).rstrip("\n") for key in keys)])]


def signers(text: str, lines: Sequence[str], old: Charter, where: str) -> tuple[str, ...]:
    """Return the members that signed an amendment. Raises UserError for a signature that is no member's."""
    keys = {name: bytes.fromhex(member.key) for name, member in old.members.items() if member.key}
    by = [next((name for name, key in keys.items() if is_signed(text, line, SIGNER, key)), "") for line in lines]
    if "" in by:
        raise UserError(f"{where}: a signature is that of no member of '{old.title}': take the line out")
    return tuple(sorted({*by}))


def read(path: Path) -> Charter:
    """Return the charter in a file, which is a charter or an amendment that a quorum has signed. Raises UserError."""
    text, lines = read_note(path)
    if not text.startswith("{"):
        charter = Charter.read(path)
        if charter.amends or charter.signed:
            raise UserError(f"{path}: amends: only an amendment says so; 'hanse charter amend' writes one")
        return charter
    old, new = both_in(text, str(path))
    by = signers(text, lines, old, str(path))
    if lack := old.lacks({*by}):
        raise UserError(f"{path}: is signed by {lack}")
    unsigned = {client: kinds for client, kinds in new.before.items() if old.by_client[client] not in by}
    return new.model_copy(update={"signed": by, "before": unsigned})


def kept_at(run: Path, played: int) -> Path:
    """Return the file of the amendment under which a run goes on after so many rounds."""
    return run / f"amendment-{played}.txt"


def go_on(run: Path, amendment: Path) -> str:
    """Let a run go on under an amendment: its ``config.toml`` says so from now on. Return the command that goes on.

    Raises:
        UserError: no quorum has signed it, it amends another charter, its first round is not the next one of the run,
            it changes what a run cannot change, or somebody plays the run.
    """
    new, config = read(amendment), run / "config.toml"
    if not config.is_file():
        raise UserError(f"--run {run}: is not a run directory (it has no config.toml)")
    with Hold(run) as hold:
        hold.take()
        claim = latest_claim(run) or BooksAtCheckpoint()
        # what was played, and not config.toml: so another amendment may replace one that cannot be played
        before, played = Experiment(**toml.loads(claim.settings or read_text(config))), claim.round or 0
        old = charter_of(before)
        if new.amends != old.hash:
            raise UserError(f"{amendment}: amends {new.amends[:16]}, and the charter of {run} is {old.hash[:16]}")
        if claim.finished or before.run.recomputable:
            why = "its last round is settled" if claim.finished else "it is to be recomputed by its settings"
            raise UserError(f"--run {run}: {why}, and it cannot change: play a new run under {amendment}")
        if new.first_round != played:
            raise UserError(f"{amendment}: begins at round {new.first_round}: must be {played}, where {run} goes on")
        fixed = {name: (getattr(old, name), getattr(new, name)) for name in ("floor", "vests", "exit", "sees")}
        if apart := [name for name, (one, other) in fixed.items() if one != other]:
            raise UserError(f"{amendment}: {apart[0]}: cannot change within a run: must stay {fixed[apart[0]][0]!r}")
        sections = read_file(config)
        sections["mechanism"]["weigh"] = sections["mechanism"]["weigh"]["of"]
        del sections["clients"]["members"]
        sections["charter"] = new.model_dump(mode="json")
        changed = Experiment(**sections)
        write_whole(kept_at(run, played), read_text(amendment))
        write_whole(config, changed.to_toml())
    return going_on(run) + f" --rounds {played + 1}" * (changed.run.rounds <= played)


def amended(before: Experiment, after: Experiment, run: Path, played: int) -> tuple[str, ...]:
    """Return the settings that a run may change after so many rounds since an amendment says so, which it keeps.

    Raises:
        UserError: the amendment is not there, says something else, or no quorum has signed it; or a quorum has signed
            one, and the experiment is without it.
    """
    one, other = (experiment.of_wing("charter") for experiment in (before, after))
    if one is None or other is None:
        return ()
    old, new = Charter.of(one), Charter.of(other)
    kept = kept_at(run, played)
    if (new.amends, new.first_round) != (old.hash, played):
        if kept.exists():
            raise UserError(
                f"charter: {new.hash[:16]}: a quorum has amended it for round {played}: must be that of {kept}"
            )
        return ()
    if not kept.exists() or read(kept) != new:
        raise UserError(f"{kept}: must have the charter's amendment: 'hanse charter amend ... --run {run}' puts it in")
    return ("charter", "clients.members", "mechanism.weigh")
