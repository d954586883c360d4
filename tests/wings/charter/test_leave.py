"""Leaving a run: which models hold a client's updates, the receipt, and what happens when the process is killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run_hanse
from experiments import digits
from forging import history_of, rewritten
from hypothesis import given, settings
from hypothesis import strategies as st
from watching import After

import hanse
from hanse.base.errors import MachineError
from hanse.base.lock import Hold
from hanse.core.entry import LEAVE, left_behind
from hanse.core.table import SERVER
from hanse.flower.leave import place_of, sign_leave
from hanse.flower.members import Orders
from hanse.flower.operator_key import make_operator_key, signing_key
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.witness import Witness
from hanse.reports.harm import harms_of
from hanse.reports.invoice import invoice
from hanse.runs import experiment as playing
from hanse.runs.checkpoint import load
from hanse.runs.recompute import recompute
from hanse.runs.replay import wrong_books
from hanse.runs.round_record import HASH, file_hash, round_file
from hanse.runs.run_record import load_run
from hanse.runs.setup import build
from hanse.wings.charter import lineage as reading
from hanse.wings.charter.leave_receipt import LeaveReceipt
from hanse.wings.charter.leaving import leave_run
from hanse.wings.charter.lineage import lineage, ranges

CLIENTS, PAYS = 5, {"name": "fedavg", "clients_per_round": 3, "value": "path", "settle": "by_value"}
SCRIPT = Path(__file__).with_name("check_leave_receipt.py")


def experiment(mechanism=PAYS, rounds=5, **more):
    train = {"steps": 2, "batch_size": 16, "lr": 0.1}
    return digits(mechanism, CLIENTS, rounds, data={"validation": 0.1, "client_test": 0.2}, train=train, **more)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that was stopped after three of its five rounds."""
    out = tmp_path_factory.mktemp("leave") / "half"
    hanse.run(experiment(), out=out, observers=[After(2)])
    return out


def offline(run, client, *more):
    """The exit code of the script that does not import hanse."""
    place = run / "leaving"
    files = [place / f"client-{client}.json", more[0] if more else "", place / f"client-{client}-lineage.jsonl"]
    return subprocess.run([sys.executable, SCRIPT, *map(str, files)], capture_output=True, check=False).returncode


# ---- lineage


class Nan:
    """The model table of one number a row, with NaN in place of a client's updates; nothing of hanse mixes it."""

    def __init__(self, client):
        self.client, self.table = client, np.zeros(0)

    def on(self, W, clients, starts, then=None, made=(), stay=(), drawn=None):
        """Go on by a round: ``then`` is the model that each update started from, ``drawn`` says who pulled it."""
        count = W.shape[1] - len(clients)
        before = np.concatenate([self.table, np.ones(count - len(self.table))])
        updates = before[starts] + (0 if then is None else then) + (0 if drawn is None else drawn @ before)
        updates[np.asarray(clients) == self.client] = np.nan
        after = np.array([row[row != 0] @ np.append(updates, before)[row != 0] for row in W])
        for row, of in made:
            after[row] = updates[of].sum() + (before[row] if row < count else 0)
        if len(stay):
            kept = np.where(np.isin(np.arange(len(after)), stay), np.resize(before, len(after)), after)
            after = before if max(stay) >= count else kept
        self.table = after


@st.composite
def recorded(draw):
    """Rounds as they are recorded, with the models that late updates were trained from."""
    rounds, K, rng = [], draw(st.integers(1, 4)), np.random.default_rng(draw(st.integers(0, 2**32)))
    late = draw(st.booleans())
    under_way = {}
    for number in range(draw(st.integers(1, 6))):
        free = [c for c in range(4) if c not in under_way]
        asked = [(c, int(rng.integers(K))) for c in free for _ in range(rng.integers(0, 3))]
        away = {c for c in {c for c, _ in asked} if late and rng.random() < 0.3}
        came = [(c, start, number) for c, start in asked if c not in away]
        back = [c for c in under_way if rng.random() < 0.5]
        for c in back:
            came += [(c, start, at) for _, start, at in under_way.pop(c)]
        under_way |= {c: [(c, s, number) for d, s in asked if d == c] for c in away}
        more = int(rng.integers(0, 2))
        W = rng.normal(size=(K + more, len(came) + K)) * (rng.random((K + more, len(came) + K)) < 0.3)
        made = [(row, np.flatnonzero(rng.random(len(came)) < 0.5)) for row in range(K) if rng.random() < 0.15]
        made = [(row, of) for row, of in made if len(of)]
        for row, _ in made:
            W[row] = 0
        stay = np.flatnonzero(rng.random(K + more) < 0.1)
        rounds.append((asked, came, W, made, stay, late))
        K = K if len(stay) and stay.max() >= K else K + more
    return rounds


def written(folder, rounds):
    """Write a run's records as hanse does, and return the run directory."""
    (folder / "rounds").mkdir(parents=True)
    lines = []
    for number, (asked, came, W, made, stay, late) in enumerate(rounds):
        row, column = np.nonzero(W)
        arrays = {
            "client": [c for c, _ in asked], "start": [s for _, s in asked], "answered": [c for c, _, _ in came],
            "W_row": row, "W_column": column, "W_weight": W[row, column], "W_shape": W.shape, "withheld": stay,
            "made_row": [row for row, _ in made],
            "made_of": np.concatenate([of for _, of in made]) if made else [],
            "made_at": np.repeat(np.arange(len(made)), [len(of) for _, of in made]),
            **({"staleness": [number - at for _, _, at in came]} if late else {}),
            **({"home": np.zeros(4)} if number == 0 else {}),
        }  # fmt: skip
        kept = {n: np.asarray(a, np.float64 if n == "W_weight" else np.int64) for n, a in arrays.items()}
        np.savez(round_file(folder, number), **kept)
        with round_file(folder, number).open("rb") as file:
            lines.append(json.dumps({"round": number, HASH: file_hash(file)}) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@settings(max_examples=60, deadline=None)
@given(recorded())
def test_lineage_is_what_becomes_nan(tmp_path_factory, rounds):
    run = written(tmp_path_factory.mktemp("random") / "run", rounds)
    for client in range(4):
        truth, before = Nan(client), []
        expected = []
        for _, came, W, made, stay, _ in rounds:
            count = W.shape[1] - len(came)
            now = np.concatenate([truth.table, np.ones(count - len(truth.table))])
            before.append(now)
            then = np.array([before[at][start] for _, start, at in came])
            truth.on(W, [c for c, _, _ in came], [s for _, s, _ in came], then, made, stay)
            expected.append(ranges(np.isnan(truth.table)))
        found = lineage(run, client, np.full(20, SERVER), len(rounds), steered=False)
        assert [json.loads(line)["rows"] for line in found.lines] == expected
        assert found.holds.tolist() == np.isnan(truth.table).tolist()
        assert not found.may.any()


class Watches:
    """Holds every round of a run against NaN, for each client; by weights and starts alone, and with pulls."""

    def __init__(self):
        self.plain, self.drawn = ([Nan(c) for c in range(CLIENTS)] for _ in range(2))

    def on_round(self, metrics, played):
        view, seats = played.view, played.view.trained.seats
        stay = () if view.settlement is None else sorted(view.settlement.withheld)
        size = view.table.size
        pulls = np.zeros((len(seats), size))
        if seats.R is not None:
            pulls += np.abs(seats.R) * (np.asarray(seats.mu) > 0)[:, None]
        if seats.L is not None:
            pulls += np.abs(seats.L)
        made = [(row, one.of) for row, one in view.mixed.made.items()]
        for one in (*self.plain, *self.drawn):
            table = np.concatenate([one.table, np.ones(size - len(one.table))])
            drawn = np.zeros((len(seats), size)) if one in self.plain else pulls
            seen = np.array([table[row != 0].sum() for row in drawn]) if len(drawn) else np.zeros(0)
            one.on(view.mixed.W, seats.client, seats.start, seen, made, stay)


MECHANISMS = {
    "averages": PAYS, "ipfl": "ipfl", "pifl": "pifl", "scaffold": "scaffold", "ditto": "ditto", "cfl": "cfl",
    "median": {"name": "fedavg", "clients_per_round": 2, "weigh": "median"},
}  # fmt: skip


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_lineage_of_real_runs(tmp_path, mechanism):
    watching = Watches()
    hanse.run(experiment(mechanism, rounds=4), out=tmp_path / "run", observers=[watching])
    some = 0
    for client in range(CLIENTS):
        code, out, _ = run_hanse("leave", tmp_path / "run", "--client", client, "--dry-run", "--json")
        said = json.loads(out)
        holds, reached = (np.isnan(of[client].table) for of in (watching.plain, watching.drawn))
        assert code == 0
        assert (said["rows"], said["of"]) == (holds.sum(), len(holds))
        assert said["rows"] + said["may"] >= (holds | reached).sum()
        some += said["rows"]
    assert some > 0


def test_each_round_is_read_once(tmp_path, monkeypatch):
    nothing = ([(0, 0)], [(0, 0, 0)], np.array([[0.5, 0.5]]), [], np.zeros(0, int), False)
    run, read = written(tmp_path / "run", [nothing] * 30), Counter()
    real = reading.read_arrays
    monkeypatch.setattr(reading, "read_arrays", lambda file, only: read.update([file.name]) or real(file, only))
    assert lineage(run, 0, np.zeros(1, int), 30, steered=True).holds.all()
    assert (len(read), set(read.values())) == (30, {1})


# ---- leaving


def test_a_run_goes_on_as_if_the_client_had_left_by_itself(tmp_path, half):
    run = shutil.copytree(half, tmp_path / "run")
    assert run_hanse("leave", run, "--client", 1)[0] == 0
    receipt = LeaveReceipt.read(run / "leaving" / "client-1.json")
    assert (receipt.wrong(), receipt.said["round"], receipt.said["open"]) == ("", 3, True)
    newest = max((run / "checkpoints").glob("*"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])  # the one before would ask the client again
    with pytest.raises(MachineError):
        hanse.resume(run)
    newest.write_bytes(whole)
    assert (leaves(run), wrong_books(run)) == (["leave/1"], None)
    on = hanse.resume(run)
    alone = hanse.run(experiment(behaviour={"leaver": {"clients": [1], "at": 3}}), out=tmp_path / "alone")
    assert (on.table.rows.equal(alone.table.rows), on.book.balances) == (True, alone.book.balances)
    assert all(seat["client"] != 1 for seat in on.clients if seat["round"] >= 3)
    # another one leaves when all is settled
    assert run_hanse("leave", run, "--client", 2)[0] == 0
    assert (wrong_books(run), [offline(run, c) for c in (1, 2)]) == (None, [0, 0])
    said = LeaveReceipt.read(run / "leaving" / "client-2.json").said
    found = hanse.facts(run)
    assert [(c.status, c.since) for c in found.clients[1:3]] == [("left", 3), ("left", said["round"])]
    for notes in (found.notes, invoice(run, "10", "EUR").notes):
        assert [n.fields["since"] for n in notes if n.code == "left"] == [3, 5]
    assert [1 in load_run(run).own_tests(number).clients for number in (2, 3, 4)] == [True, False, False]
    assert (said["open"], said["balance"]) == (False, on.book.balances["client/2"])
    assert hanse.resume(run).book.balances == on.book.balances
    (run / "leaving" / "client-2-lineage.jsonl").write_text("{}\n")
    assert run_hanse("audit", "leave", run / "leaving" / "client-2.json")[0] == 1


def test_what_the_others_lose_is_measured_before_it_leaves(tmp_path, half):
    run = shutil.copytree(half, tmp_path / "run")
    assert run_hanse("report", run, "--retrain", "--without", 1)[0] == 0
    assert run_hanse("leave", run, "--client", 1)[0] == 0
    said = LeaveReceipt.read(run / "leaving" / "client-1.json").said["retrained"]
    kept = harms_of(load_run(run))[1]
    assert (said["mean"], said["low"], said["high"], said["starts"]) == (kept.mean, kept.low, kept.high, 5)
    assert offline(run, 1) == 0


def test_nothing_of_a_receipt_can_be_changed(tmp_path, half):
    run = shutil.copytree(half, tmp_path / "run")
    assert run_hanse("leave", run, "--client", 1)[0] == 0
    file = run / "leaving" / "client-1.json"
    whole = json.loads(file.read_text())
    said = json.loads(whole["statement"])
    forged = [{**whole, "statement": json.dumps({**said, name: not said[name]} if said[name] in (True, False) else
                                                {**said, name: said[name] + said[name]}, separators=(",", ":"))}
              for name in said if said[name] not in (0, False) or said[name] is True]  # fmt: skip
    forged += [{**whole, "proof": ""}, {**whole, "head": whole["head"].replace("\nround 3", "\nround 4")}]
    for one in forged:
        file.write_text(json.dumps(one))
        assert run_hanse("audit", "leave", file)[0] in (1, 2)
        assert offline(run, 1) == 1


def leaves(run):
    return [record.transaction.step for record in open_ledger(run).history() if record.transaction.kind == LEAVE]


def killed(run, at):
    """Make client 1 leave in a child that is killed before its step ``at`` that reaches the disk."""
    child = os.fork()
    if not child:
        steps = []

        def dies(real):
            def step(*given):
                steps.append(real)
                if len(steps) > at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given)

            return step

        for name in ("fsync", "replace", "ftruncate"):
            setattr(os, name, dies(getattr(os, name)))
        leave_run(load_run(run), 1, None)
        os._exit(0)
    os.waitpid(child, 0)


def test_a_leave_that_is_killed_happens_once(tmp_path, half):
    seen, ended = list[int](), False
    while not ended:
        run, on = tmp_path / f"{len(seen)}", tmp_path / f"{len(seen)}-on"
        killed(shutil.copytree(half, run), len(seen))
        ended = (run / "leaving" / "client-1.json").exists()
        if len(seen) % 2 == 0 and not ended:  # the run may also go on first
            there = 1 in load(max((run / "checkpoints").glob("*")), torch.device("cpu")).state.left
            played = hanse.resume(shutil.copytree(run, on))
            asked = any(seat["client"] == 1 for seat in played.clients if seat["round"] >= 3)
            assert (asked, leaves(on), wrong_books(on)) == (not there, ["leave/1"] * there, None)
            assert run_hanse("leave", on, "--client", 1)[0] == 0
            assert (leaves(on), offline(on, 1)) == (["leave/1"], 0)
        seen.append(len(leaves(run)))
        assert run_hanse("leave", run, "--client", 1)[0] == (2 if ended else 0)
        assert (leaves(run), offline(run, 1), wrong_books(run)) == (["leave/1"], 0, None)
    assert set(seen[:-1]) == {0, 1}


def test_the_operator_signs_the_receipt(tmp_path):
    mine, other = (make_operator_key(tmp_path / name) for name in ("mine", "other"))
    run = tmp_path / "run"
    with Hold(run) as hold:
        playing.play(build(experiment(rounds=2)), [], hold, key=signing_key(mine.with_suffix(".key")))
    code, _, wrong = run_hanse("leave", run, "--client", 0)
    assert (code, "certs/operator.key" in wrong, "--key" in wrong) == (2, True, True)
    assert run_hanse("leave", run, "--client", 0, "--key", other.with_suffix(".key"))[0] == 2
    assert leaves(run) == []
    assert run_hanse("leave", run, "--client", 0, "--key", mine.with_suffix(".key"))[0] == 0
    file = run / "leaving" / "client-0.json"
    assert file.stat().st_size <= 2000
    assert run_hanse("audit", "leave", file, "--operator", mine)[0] == 0
    assert run_hanse("audit", "leave", file, "--operator", other)[0] == 1
    assert [offline(run, 0, public) for public in (mine, other)] == [0, 1]


@pytest.mark.parametrize(("mechanism", "models", "at"), [(PAYS, "stay", 1), ("pifl", "anew", 0)])
def test_an_auditor_plays_a_run_again_that_clients_have_left(tmp_path, mechanism, models, at):
    run, clients = tmp_path / "run", {"exit": {"models": models}}
    hanse.run(experiment(mechanism, clients=clients, run={"recomputable": True}), out=run, observers=[After(at)])
    assert run_hanse("leave", run, "--client", 1)[0] == 0
    hanse.resume(run)
    assert run_hanse("leave", run, "--client", 2)[0] == 0
    assert (wrong_books(run), recompute(run).unlike) == (None, None)
    earlier = [(0 if one.step == "leave/1" else number, one) for number, one in history_of(run)]
    rewritten(run, sorted(earlier, key=lambda one: one[0]))
    assert "client 1 had left, and was asked" in wrong_books(run)


def registered(run, count, witness=""):
    """Write the register of members of a run on a network."""
    members = [{"num_samples": 9, "input_shape": [64], "num_classes": 10, "name": f"c{c}", "id": c, "key": f"k{c}",
                "witness": witness} for c in range(count)]  # fmt: skip
    (run / "members.json").write_text(json.dumps(members))


def test_no_model_was_given_to_a_place_that_no_member_took(tmp_path):
    run = tmp_path / "run"
    hanse.run(experiment({**PAYS, "clients_per_round": 2}, rounds=1, run={"seed": 1}), out=run)  # of 0 and 1
    assert given_to(run, 0) == [1, 2, 3, 4]
    registered(run, 3)
    assert given_to(run, 0) == [1, 2]


def given_to(run, client):
    """Who else was given a model with a client's updates, as ``hanse leave`` says."""
    said = json.loads(run_hanse("leave", run, "--client", client, "--dry-run", "--json")[1])
    assert said["given"] == len(said["given_to"])
    return said["given_to"]


@pytest.mark.parametrize("models", ["stay", "anew"])
def test_on_a_network_the_server_is_told_first(tmp_path, half, models):
    run = shutil.copytree(half, tmp_path / "run")
    word = sign_leave(tmp_path / "home", "town")
    registered(run, CLIENTS, Witness(tmp_path / "home").public.hex())
    (run / "federation.json").write_text('{"run": "town"}')
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("[clients]\n", f'[clients]\nexit = {{ models = "{models}" }}\n'))
    with Hold(run) as hold:  # its server plays it
        hold.take()
        given = ([], ["--signed", word], [])
        assert [run_hanse("leave", run, "--client", "c1", *signed)[0] for signed in given] == [2, 0, 0]
    orders, ends = Orders.read(run), models == "anew"
    assert (list(orders.expelled), orders.paused is not None) == ([1], ends)
    assert run_hanse("network", "go-on", run, "--reason", "on")[0] == (2 if ends else 0)
    assert (leaves(run), place_of(run, 1).exists()) == ([], False)
    assert run_hanse("leave", run, "--client", "c1")[0] == 0
    assert (leaves(run), place_of(run, 1).exists()) == (["leave/1"] * ends, ends)
    assert Orders.read(run).paused is None  # so that the server can settle the run


def test_a_leaver_loses_what_was_agreed_and_nobody_trains_on(tmp_path):
    run, exit = tmp_path / "run", {"balance": "lost", "models": "anew"}
    hanse.run(experiment(clients={"exit": exit}, run={"recomputable": True}), out=run, observers=[After(0)])
    looked = load_run(run)
    assert looked.wrong_in_books is None
    hanse.resume(run, observers=[After(2)])
    had = open_ledger(run).as_book().balance("client/1")
    assert run_hanse("leave", run, "--client", 1)[0] == 0
    said = LeaveReceipt.read(run / "leaving" / "client-1.json").said
    assert (said["lost"], said["balance"], said["since"], said["round"]) == (had, 0, 2, 3)
    ended = hanse.resume(run)
    assert (len(ended.metrics), ended.over is None) == (3, False)
    leave_run(looked, 2, None)  # by the book as it is now
    assert [offline(run, client) for client in (1, 2)] == [0, 0]
    assert [open_ledger(run).as_book().balance(f"client/{c}") for c in range(4)] == [
        ended.book.balance("client/0"), 0, 0, ended.book.balance("client/3")
    ]  # fmt: skip
    assert (wrong_books(run), recompute(run).unlike) == (None, None)
    row = hanse.facts(run).clients[1]  # what went back of its grant is no payment
    assert (row.granted + row.net, row.net) == (0, min(0, had - 100 * 10**6))
    history = history_of(run)
    [(at, left)] = [(i, one) for i, (_, one) in enumerate(history) if one.step == "leave/1"]
    other = [[*history[:at], (3, replace(left, postings=left_behind(1, 0, lost))), *history[at + 1 :]]
             for lost in (0, had - 1)]  # fmt: skip
    more = [[*history, (4, replace(left, step=step, postings=()))] for step in ("leave/1", "leave/9")]
    for at, forged in enumerate((*other, *more)):
        rewritten(shutil.copytree(run, tmp_path / f"{at}"), forged)
        assert "'leave/" in wrong_books(tmp_path / f"{at}")


def test_what_cannot_be_left_is_refused_in_a_line(tmp_path, half):
    plain, gone, old = (tmp_path / name for name in ("plain", "gone", "old"))
    hanse.run(experiment("fedavg", rounds=2), out=plain)
    shutil.copytree(Path("tests/golden/run-0.1"), old)
    shutil.copytree(half, gone)
    assert run_hanse("leave", gone, "--client", 1)[0] == 0
    before = {path: path.read_bytes() for path in gone.rglob("*") if path.is_file() and path.name != "lock"}
    lost = shutil.copytree(half, tmp_path / "lost")
    round_file(lost, 1).unlink()
    edited = shutil.copytree(half, tmp_path / "edited")
    (edited / "clients.jsonl").write_text((edited / "clients.jsonl").read_text().replace('"client": 1', '"client": 2'))
    cases = [(half, 7), (half, "nobody")]
    cases += [(run, 1) for run in (plain, old, gone, tmp_path / "none", lost, edited)]
    for run, client in cases:
        code, out, wrong = run_hanse("leave", run, "--client", client)
        assert (code, out, len(wrong.splitlines())) == (2, "", 1), (run, wrong)
    with Hold(half) as hold:
        hold.take()
        assert run_hanse("leave", half, "--client", 1)[0] == 2
    assert {path: path.read_bytes() for path in before} == before
    assert not any((run / "leaving").exists() for run in (half, plain, old, lost, edited))
    assert run_hanse("leave", plain, "--client", 1, "--dry-run")[0] == 0
