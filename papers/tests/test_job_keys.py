"""What names a run of PI-FL in the folder of results, since the default of who judges contributions changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hanse.lab.job import folder_of, key_of, play_kept, seeded
from hanse_papers.catalogue import find_table
from hanse_papers.runner import expand

SMALL: dict[str, Any] = {
    "data": {"clients": 4, "partition": {"samples_per_client": 30}},
    "model": {"name": "logistic"},
    "mechanism": {"name": "pifl"},
    "engine": {"train": "stacked", "threads": 1},
    "run": {"rounds": 2},
}


def test_the_paper_s_values_keep_the_key_that_they_had_as_the_default() -> None:
    then = "a1b62c9372f1d48cb95b"  # of the table {"name": "pifl"}, made by the version that had "all" as its default
    paper = {"name": "pifl", "invited": "earn", "value": {"judges": "all"}}
    assert key_of({"mechanism": paper}) == then
    default = [{"name": "pifl"}, {"name": "pifl", "value": {"judges": "auto"}}, {"name": "pifl", "value": {}}, "pifl"]
    assert len({key_of({"mechanism": table}) for table in default}) == 1
    assert key_of({"mechanism": {"name": "pifl"}}) != then
    tables: list[Any] = [
        {"name": "pifl", "value": "first_order_clients"},
        {"name": "pifl", "value": {"name": "first_order_clients", "judges": "all"}},
        {"name": "pifl", "value": "first_order"},
        {"name": "pifl", "value": {"judges": "others"}},
        {"name": "pifl", "value": {"judges": "all"}},  # with today's "unpaid"
        {"name": "fedavg", "value": "first_order_clients"},
        {"name": "fedavg"},
    ]
    assert len({key_of({"mechanism": table}) for table in tables} | {then}) == len(tables) + 1


def test_the_paper_s_tables_name_the_paper_s_values_and_their_keys_are_those_that_were_planned() -> None:
    planned = json.loads((Path(__file__).parents[2] / "benchmarks/results/pifl/planned.json").read_text())
    judged = 0
    for words, keys in planned.items():
        name, recipe, scale = words.split()
        jobs = {job.key: job for job in expand(find_table("pifl", name, scale, recipe), 5, checked=False)[0]}
        assert set(keys) <= jobs.keys()
        for job in jobs.values():
            mechanism = job.sections["mechanism"]
            if mechanism["name"] == "pifl":
                assert mechanism["value"] in ({"judges": "all"}, "first_order")
                judged += 1
    assert judged > 400


def test_a_run_whose_judges_were_left_open_goes_on_in_its_directory(tmp_path: Path) -> None:
    job, rounds = seeded(SMALL, 0, "open"), list[int]()
    first = play_kept(job, rounds.append, runs=tmp_path)
    again = play_kept(job, rounds.append, runs=tmp_path)
    assert first["status"] == again["status"] == "done"
    assert rounds == [1, 1, 2]  # nothing was played twice
    assert 'name = "first_order"' in (folder_of(tmp_path, job) / "config.toml").read_text()
