"""What names a run in the folder of results: the same for ever, wherever parts are."""

import json
from pathlib import Path

from hanse_papers import authors, twins
from hanse_papers.catalogue import find_table
from hanse_papers.ids import IDS
from hanse_papers.runner import expand

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_the_paper_s_tables_name_the_paper_s_values_and_their_keys_are_those_that_were_planned() -> None:
    planned = json.loads((RESULTS / "pifl" / "planned.json").read_text())
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


def test_every_part_of_the_papers_has_an_id_and_is_where_its_path_says() -> None:
    """A part that was made after the move may have its first path as its id."""
    modules = {module.__name__: module for module in (authors, twins)}
    for path in IDS:
        module, name = path.split(":")
        assert callable(getattr(modules[module], name))
    files = (Path(authors.__file__).parent).glob("*/*.toml")
    named = {word for file in files for word in file.read_text().split('"') if word.startswith("hanse_papers.")}
    assert named <= IDS.keys()
    assert len(set(IDS.values())) == len(IDS)
