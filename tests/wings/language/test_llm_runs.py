"""Whole runs: adapters through training, market, payments, resume and report; every kind of mechanism on texts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from watching import Watch

import hanse
from hanse.reports.report import write_report

ENGINE = {"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"}
MODEL = {
    "name": "lora", "base": "tiny", "base_width": 16, "base_layers": 1, "rank": 2, "alpha": 4.0,
    "candidates": ["dear", "cheap", "same", "none"],
}  # fmt: skip


def adapters(mechanism: dict[str, Any], rounds: int = 2, **data: Any) -> hanse.Experiment:
    return hanse.Experiment(
        data={
            "source": "instructions", "partition": "natural", "clients": 6, "client_test": 0.25,
            "client_test_from": "server", "client_validation": 0.1, "validation": 0.5, **data,
        },
        model=MODEL, mechanism=mechanism, engine=ENGINE, eval={"every": 2}, run={"rounds": rounds},
        train={"steps": 1, "batch_size": 2, "lr": 3e-3, "optimizer": "adamw"},
        clients={"grant": 1e6, "profiles": {"name": "roles", "roles": ROLES, "eagerness": [5e3, 9e3]}},
    )  # fmt: skip


ROLES = ["trader", "buyer", "seller", "trader", "buyer", "seller"]
IPFL = {"name": "ipfl", "lam": 5.0, "eta": 50.0, "adapters": "products"}


@pytest.mark.by_turns(3, 2)
def test_adapters_in_the_market_from_training_to_report(llm: None, tmp_path: Path) -> None:
    straight = hanse.run(adapters(IPFL, 3), out=tmp_path / "run")
    assert straight.metrics[-1]["client/test_perplexity"] == pytest.approx(
        np.exp(np.average(straight.tested["test_loss"], weights=straight.tested["test_samples"]))
    )
    assert set(straight.tested["test_accuracy"] * 10 % 1) <= {0.0}  # ten test samples each: whole tenths
    numbers = straight.table.rows.shape[1]
    assert numbers == 2 * (2 * 16 + 16 * 2)  # q and v of one layer: A and B
    first = straight.metrics[0]
    base = sum(p.numel() for p in straight.problem.module.body.parameters() if not p.requires_grad)
    assert first["bytes/up"] == pytest.approx(6 * 4 * numbers, rel=0.05)
    assert first["bytes/up"] < 6 * 4 * base / 20
    arrays = np.load(tmp_path / "run" / "rounds" / "00000.npz")
    assert arrays["market_graph"].shape == (6, 6)
    assert arrays["market_distance"].max() > 0
    assert arrays["market_units"].sum() > 0  # buyers paid sellers
    assert sum(straight.book.balances.values()) == 0
    assert "market" in write_report([tmp_path / "run"], tmp_path / "report.html").read_text().lower()
    # again to the end from the first round's checkpoint: the same bits
    with pytest.raises(KeyboardInterrupt):
        hanse.run(adapters(IPFL, 3), out=tmp_path / "again", observers=[Watch(0)])
    resumed = hanse.resume(tmp_path / "again")
    assert torch.equal(resumed.table.rows, straight.table.rows)
    assert resumed.book.head == straight.book.head


def test_mechanisms_run_unchanged_on_texts(tmp_path: Path) -> None:
    words = ["to", "be", "or", "not", "a", "ghost", "is", "here", "now", "and", "then", "gone"]
    # each role says them in its own order, enough for 24 windows
    said = [" ".join(words[(i * (role + 2)) % len(words)] for i in range(900))[:1960] for role in range(4)]
    blocks = [f"ROLE {role}:\n{text}" for role, text in enumerate(said)]
    (tmp_path / "shakespeare.txt").write_text("\n\n".join(blocks) + "\n")
    result = hanse.run(
        hanse.Experiment(
            data={
                "source": "shakespeare", "path": str(tmp_path), "partition": "natural", "clients": 4,
                "client_test": 0.2, "client_validation": 0.1, "download": False,
            },
            mechanism={"name": "pifl", "tiers": 2, "by_contribution": 1, "at_random": 1, "score_samples": 4},
            train={"steps": 4, "batch_size": 4, "lr": 2.0, "momentum": 0.9}, run={"rounds": 3},
            model={"name": "lstm", "hidden": 8}, engine=ENGINE, eval={"metrics": ["accuracy", "loss"]},
        )
    )  # fmt: skip
    lines = result.metrics
    assert all(line["answered"] > 0 and line["refused"] == 0 for line in lines)
    assert lines[-1]["test/perplexity"] == pytest.approx(np.exp(lines[-1]["test/loss"]))
    assert 1 < lines[-1]["client/test_perplexity"] < 20  # 20 characters or so
    assert lines[-1]["train/loss"] < lines[0]["train/loss"]
    assert result.tested["test_perplexity"].shape == (4,)
    json.dumps(lines)
