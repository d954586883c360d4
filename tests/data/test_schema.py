"""A schema: drafted from tables, read, and what a table becomes by it; what does not fit is told to its owner."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hanse.base.errors import UserError
from hanse.data import DataSpec, as_dataset, build, parse_spec
from hanse.data.build import with_own
from hanse.data.drafting import draft, merged, reviewed
from hanse.data.encoding import TableColumn
from hanse.data.fingerprint import fingerprint
from hanse.data.schema import CsvTable, Schema, SiteTable, UnfitTableError, digest, doubts, fitted, joined, read_sites

SITES = ("Basel", "Kiel", "Visby")


def visits(seed: int = 0, rows: int = 240) -> pd.DataFrame:
    """Visits of 60 patients at three sites, with dates, gaps, a unit with a space, and a word with a comma."""
    draw = np.random.default_rng(seed)
    patient = draw.integers(0, 60, rows)
    age = draw.normal(50, 10, rows).round(1)
    frame = pd.DataFrame(
        {
            "site": np.array(SITES)[patient % 3],
            "patient": [f"P{k:03}" for k in patient],
            "admitted": (np.datetime64("2024-01-01") + draw.integers(0, 500, rows)).astype(str),
            "age": age.astype(str),
            "pressure": [f"{one} mm Hg" for one in draw.integers(90, 180, rows)],
            "since": (np.datetime64("2019-01-01") + draw.integers(0, 900, rows)).astype(str),
            "ward": draw.choice(["a", "b, upper", "c"], rows),
            "outcome": np.where(age + draw.normal(0, 5, rows) > 50, "ill", "well"),
        }
    )
    frame.loc[frame.index[::11], "age"] = "NA"
    frame.loc[frame.index[::13], "ward"] = ""
    return frame


SAID = {"target": "outcome", "group": "patient", "time": "admitted", "test": 0.25, "validation": 0.2}


def written(folder: Path, frame: pd.DataFrame | None = None, **read: Any) -> list[Path]:
    """The files of the three sites."""
    frame = visits() if frame is None else frame
    for site, own in frame.groupby("site"):
        own.drop(columns="site").to_csv(folder / f"{site}.csv", index=False, **read)
    return [folder / f"{site}.csv" for site in SITES]


def drafted(folder: Path, **options: Any) -> Schema:
    return draft(read_sites(written(folder)), SAID, **options)


def test_a_draft_is_what_the_columns_are_and_its_file_reads_as_it(tmp_path: Path) -> None:
    made = drafted(tmp_path)
    assert {name: (one.kind, one.unit, one.words, one.gaps) for name, one in made.columns.items()} == {
        "age": ("numbers", "", [], True),
        "pressure": ("numbers", "mm Hg", [], False),
        "since": ("dates", "", [], False),
        "ward": ("words", "", ["a", "b, upper", "c"], True),
    }
    assert (made.labels, made.gaps) == (["ill", "well"], ["", "NA"])
    (tmp_path / "schema.toml").write_text(made.text)
    assert Schema.read(tmp_path / "schema.toml") == made
    visits().to_csv(tmp_path / "all.csv", index=False)
    by_column = draft(read_sites([tmp_path / "all.csv"], "site"), {**SAID, "client_column": "site"})
    assert (by_column.columns, by_column.labels) == (made.columns, made.labels)


def test_a_sites_features_are_those_of_the_preparation_of_a_frame(tmp_path: Path) -> None:
    said = {"target": "outcome", "group": "none", "test": 0.0}
    files = written(tmp_path, visits().drop(columns=["patient", "admitted"]))
    frame = visits().drop(columns=["patient", "admitted"]).replace({"NA": None, "": None})
    frame["age"], frame["since"] = frame.age.astype(float), pd.to_datetime(frame.since)
    frame["pressure"] = frame.pressure.str.removesuffix(" mm Hg").astype(float)
    other = as_dataset(frame, "outcome", "site", prepare="auto", test=0.0, group="none")
    made = joined(fitted(read_sites(files), draft(read_sites(files), said, statistics="own")), "tables")
    assert made.client_names == other.client_names
    for client in range(3):
        rows = [np.flatnonzero(one.client_of == client) for one in (made, other)]
        np.testing.assert_array_equal(made.train.x[rows[0]], other.train.x[rows[1]])
        np.testing.assert_array_equal(made.train.y[rows[0]], other.train.y[rows[1]])
    # agreed: of all train rows, to three digits
    [age] = [one for name, one in draft(read_sites(files), said).columns.items() if name == "age"]
    assert (age.mean, age.deviation) == (float(f"{frame.age.mean():.3g}"), float(f"{frame.age.std(ddof=0):.3g}"))


def test_no_share_knows_other_sites_or_divides_a_patient_or_trains_on_later_rows(tmp_path: Path) -> None:
    schema, files = drafted(tmp_path), [str(path) for path in written(tmp_path)]
    (tmp_path / "schema.toml").write_text(schema.text)
    spec, dataset = with_own(DataSpec(source={"schema": str(tmp_path / "schema.toml"), "files": files}))
    assert (spec.clients, spec.client_test, spec.client_validation) == (3, 0.25, 0.2)
    data = build(spec, dataset)
    for client, table in enumerate(read_sites(files)):
        alone = SiteTable.of(table, schema)
        for share in ("train", "validation", "test"):
            pool, [index] = data.pool([client], share)
            own = alone.share(share)
            np.testing.assert_array_equal(pool.x[index], own.x)
            np.testing.assert_array_equal(pool.y[index], own.y)
        for earlier, later in combinations([alone.shares == share for share in range(3)], 2):
            assert not np.intersect1d(alone.units[earlier], alone.units[later]).size
            assert alone.time[earlier].max() < alone.time[later].min()
    assert not dataset.notes
    both, words, decimal = visits(), visits(), visits()
    both.loc[both.patient == "P001", "patient"] = "P000"  # a patient whom two sites have, which neither knows
    told = joined(fitted(read_sites(written(tmp_path, both)), schema), "tables").notes
    assert [line for line in told if line.startswith("data: 1 of ")]
    here = words.site == "Kiel"  # the words of one site alone are mapped; the others' data stay as they were
    words.loc[here, "outcome"] = words.outcome[here].map({"ill": "krank", "well": "gesund"})
    mapped = replace(schema, sites={"Kiel": {"outcome": {"krank": "ill", "gesund": "well"}}})
    again = joined(fitted(read_sites(written(tmp_path, words)), mapped), "tables")
    np.testing.assert_array_equal(again.train.y, dataset.train.y)
    decimal["age"] = decimal.age.str.replace(".", ",")  # the same table as the rest of Europe writes it
    comma = joined(fitted(read_sites(written(tmp_path, decimal, sep=";")), schema), "tables")
    np.testing.assert_array_equal(comma.train.x, dataset.train.x)


def changed(column: str, row: int, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[frame.index[row], column] = value
        return frame

    return change


UNFIT: list[tuple[Callable[[pd.DataFrame], pd.DataFrame], str, tuple[str, ...]]] = [
    (lambda frame: frame.drop(columns="ward"), "column", ("'ward'", "not there")),
    (changed("ward", 3, "A"), "value", ("'ward'", "row 5", "'A'", "a, b, upper, c", '{ ward = { A = "a" } }')),
    (changed("outcome", 3, "Ill"), "value", ("'Ill'", '[sites] mine = { outcome = { Ill = "ill" } }')),
    (changed("admitted", 3, "13.01.2023"), "value", ("'13.01.2023'", "2024-03-31")),
    (changed("pressure", 0, "120 mmHg"), "value", ("'pressure'", "row 2", "'120 mmHg'", "mm Hg")),
    (changed("age", 1, "0,5"), "value", ("'age'", "row 3", "'0,5'", "'NA'")),
    (changed("age", 1, "1e999"), "value", ("'age'", "'1e999'")),
    (changed("since", 2, "03.04.2024"), "value", ("'since'", "row 4", "2024-03-31")),
    (changed("since", 2, ""), "value", ("'since'", "gaps = true")),
    (changed("outcome", 2, ""), "value", ("'outcome'", "ill, well")),
    (changed("patient", 4, "NA"), "value", ("'patient'", "row 6")),
    (lambda frame: frame.iloc[:0], "empty", ("no rows",)),
    (lambda frame: frame.assign(admitted="2024-01-01"), "rows", ("train on",)),
]


@pytest.mark.parametrize("unfit", UNFIT, ids=[code + "".join(said[:1]) for _, code, said in UNFIT])
def test_what_does_not_fit_is_told_with_column_row_value_and_what_is_allowed(unfit: Any, tmp_path: Path) -> None:
    change, code, said = unfit
    schema = drafted(tmp_path)
    frame = visits()
    mine = change(frame[frame.site == "Kiel"].drop(columns="site").reset_index(drop=True))
    mine.to_csv(tmp_path / "mine.csv", index=False)
    with pytest.raises(UnfitTableError) as wrong:
        _ = SiteTable.of(CsvTable.read(tmp_path / "mine.csv"), schema).samples
    assert (wrong.value.code, len(wrong.value.lines)) == (code, 1)
    assert all(one in wrong.value.lines[0] for one in said)


def test_a_schema_of_another_version_or_with_mistakes_is_refused(tmp_path: Path) -> None:
    text, file = drafted(tmp_path).text, tmp_path / "schema.toml"
    for old, new, said in (
        ("version = 1", "version = 2", "version"),
        ('kind = "dates"', 'kind = "days"', "columns.since.kind"),
        ("test = 0.25", "test = 1.5", "test"),
        ('target = "outcome"', 'target = "age"', "columns.age"),
        ("deviation = ", "deviatoin = ", "deviatoin"),
        ("[sites]", '[sites]\nKiel = { ward = { x = "d" } }', "sites.Kiel.ward"),
        ("[schema]", "[schema", "is no schema"),
    ):
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(UnfitTableError) as wrong:
            Schema.read(file)
        assert (wrong.value.code, said in wrong.value.lines[0]) == ("schema", True)
    file.write_text(text)
    source = {"schema": str(file), "files": [str(path) for path in written(tmp_path)]}
    agreed = {**source, "sha256": digest(file)}
    assert fingerprint(build(DataSpec(source=agreed))) == fingerprint(build(DataSpec(source=agreed)))
    file.write_text(text.replace("seed = 0", "seed = 1"))
    for of, more, key in (
        (agreed, {}, "source.sha256"),
        (source, {"partition": "iid"}, "partition"),
        (source, {"client_test_from": "equal"}, "client_test_from"),
        (source, {"client_test": 0.1}, "client_test"),
        (source, {"validation": 0.3}, "validation"),
    ):
        with pytest.raises(UserError, match=f"data.{key}"):
            build(parse_spec({"source": of, **more}))


def test_drafts_of_members_who_see_no_other_s_table_make_one(tmp_path: Path) -> None:
    tables = read_sites(written(tmp_path))
    whole = drafted(tmp_path)
    made = merged([draft([one], SAID) for one in tables])
    for name, column in whole.columns.items():
        mine = made.columns[name]
        assert (mine.kind, mine.unit, mine.words, mine.gaps) == (column.kind, column.unit, column.words, column.gaps)
    assert (made.labels, made.gaps, made.group) == (whole.labels, whole.gaps, whole.group)
    ages = [SiteTable.of(one, whole) for one in tables]
    each = [one.columns["age"][(one.shares == 0) & ~np.isnan(one.columns["age"])] for one in ages]
    middle = np.mean([one.mean() for one in each])
    spread = np.mean([np.mean((one - middle) ** 2) for one in each]) ** 0.5
    assert made.columns["age"].mean == pytest.approx(middle, rel=0.01)
    assert made.columns["age"].deviation == pytest.approx(spread, rel=0.01)
    for other in ({**SAID, "target": "ward"}, {**SAID, "test": 0.1}):
        with pytest.raises(UnfitTableError):
            merged([whole, draft(tables, other)])
    with pytest.raises(UnfitTableError):
        merged([whole, draft(tables, SAID, ["age"])])
    rest = {name: column for name, column in tables[0].columns.items() if name != SAID["target"]}
    with pytest.raises(UnfitTableError, match=f"'{SAID['target']}'") as wrong:
        draft([replace(tables[0], columns=rest), *tables[1:]], SAID)
    assert "leave-out" not in str(wrong.value)  # what all need cannot be left out


@pytest.mark.parametrize("others", [("Kiel",), ("Kiel", "Visby")])
def test_classes_that_sites_call_otherwise_are_told_in_drafts_and_in_a_run(
    others: tuple[str, ...], tmp_path: Path
) -> None:
    frame, german = visits(), {"ill": "ja", "well": "nein"}
    here = frame.site.isin(others)
    frame.loc[here, "outcome"] = frame.outcome[here].map(german)
    files = written(tmp_path, frame)
    tables = read_sites(files)
    made = draft(tables, SAID)
    (tmp_path / "schema.toml").write_text(made.text)
    source = {"schema": str(tmp_path / "schema.toml"), "files": [str(one) for one in files]}
    dataset = with_own(DataSpec(source=source))[1]
    for notes in (made.warnings, merged([draft([one], SAID) for one in tables], SITES).warnings, dataset.notes):
        [note] = notes
        assert all(repr(word) in note for word in (*SITES, "ja", "nein", "ill", "well"))
        assert "[sites]" in note
    words = {"outcome": {"ja": "ill", "nein": "well"}}
    mapped = replace(made, labels=["ill", "well"], sites=dict.fromkeys(others, words))
    assert not reviewed(mapped, tables).warnings  # what is settled


@pytest.mark.parametrize("different", [25, 90])
def test_numbers_with_a_few_other_spellings_are_told_with_file_and_remedy(different: int, tmp_path: Path) -> None:
    frame = visits()
    frame["pressure"] = [f"{90 + k % different} mm Hg" for k in range(len(frame))]
    frame["weight"] = [f"{60 + k % 25}" for k in range(len(frame))]
    frame.loc[frame.index[frame.site == "Visby"][::7], ["pressure", "weight"]] = "n/d"
    files = written(tmp_path, frame)
    tables = read_sites(files)
    if different > 50:
        with pytest.raises(UnfitTableError) as wrong:
            draft(tables, SAID)
        [line] = wrong.value.lines
    else:
        [line] = draft(tables, SAID).warnings
        drafts = [draft([one], SAID) for one in tables]
        (tmp_path / "Visby.toml").write_text(drafts[2].text)  # where people read the warning again
        assert len(Schema.read(tmp_path / "Visby.toml").warnings) == 1
    assert all(one in line for one in ("'pressure'", "'weight'", "'n/d'", str(files[2]), "--gap"))
    assert str(files[0]) not in line
    made = draft(tables, SAID, gaps=["n/d"])
    assert (made.columns["pressure"].kind, made.columns["pressure"].gaps, made.warnings) == ("numbers", True, [])


@pytest.mark.parametrize("role", ["target", "client_column", "group", "time"])
def test_a_column_that_is_said_to_be_two_things_is_named(tmp_path: Path, role: str) -> None:
    tables, said = read_sites(written(tmp_path)), {**SAID, "client_column": "ward", "time": "admitted"}
    for given, out in ((said, [said[role]]), *[({**said, role: "outcome"}, [])] * (role != "target")):
        with pytest.raises(UnfitTableError, match=rf"^column '{given[role]}': is both \w+ and \w+") as wrong:
            draft(tables, given, leave_out=out)
        assert role in str(wrong.value)


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_what_stands_between_columns_may_stand_in_a_quoted_name(tmp_path: Path, between: str) -> None:
    names = ["age, in years; at first; at last", "height\nin\tcm", "y"]
    pd.DataFrame([[1, 2, 3]], columns=names).to_csv(tmp_path / "a.csv", index=False, sep=between, quoting=1)
    assert [*CsvTable.read(tmp_path / "a.csv").columns] == names


def test_a_draft_says_what_it_cannot_tell(tmp_path: Path) -> None:
    files = written(tmp_path)
    with pytest.raises(UnfitTableError) as wrong:
        draft(read_sites(files), {"target": "outcome"})  # with patients as words
    assert wrong.value.code == "value"
    pd.read_csv(files[0]).drop(columns="ward").to_csv(files[0], index=False)
    for target, said in (("outcom", "'outcom'"), ("outcome", "'ward'")):
        with pytest.raises(UnfitTableError) as wrong:
            draft(read_sites(files), {**SAID, "target": target})
        assert (wrong.value.code, said in wrong.value.lines[0]) == ("column", True)
    assert "ward" not in draft(read_sites(files), SAID, leave_out=["ward"]).columns


@pytest.mark.parametrize("how", ["months", "another column"])
def test_a_site_whose_mean_is_far_from_the_others_or_from_the_agreed_one_is_told(how: str, tmp_path: Path) -> None:
    frame, agreed = visits(), drafted(tmp_path)
    here = (frame.site == "Kiel") & (frame.age != "NA")
    months = (12 * frame.age[here].astype(float)).astype(str)
    frame.loc[here, "age"] = months if how == "months" else frame.pressure[here].str.removesuffix(" mm Hg")
    tables = read_sites(written(tmp_path, frame))
    each = merged([draft([one], SAID) for one in tables], SITES)
    for notes in (draft(tables, SAID).warnings, each.warnings, doubts(tables[1:2], agreed)[0]):
        [note] = notes
        assert all(one in note for one in ("'age'", "'Kiel'"))
    assert not [note for one in tables[::2] for note in doubts([one], agreed)[0]]


def test_names_that_differ_in_case_blanks_or_underscores_alone_are_told_in_a_line_each(tmp_path: Path) -> None:
    files = written(tmp_path)
    drafts = [draft([one], SAID) for one in read_sites(files)]
    other = {"age": "AGE", "pressure": "Pres sure", "outcome": "out_come"}
    pd.read_csv(files[0], dtype=str).rename(columns=other).to_csv(files[0], index=False)
    for tables in (read_sites(files), read_sites(files[:2])):
        with pytest.raises(UnfitTableError) as wrong:
            draft(tables, SAID)
        assert all(  # of two, one is as good as the other, but for the target
            repr(one) in line and repr(two) in line
            for (one, two), line in zip(other.items(), wrong.value.lines, strict=True)
        )
        assert all("leave-out" not in line for line in wrong.value.lines)
        assert f"calls it '{SAID['target']}'" in wrong.value.lines[2]
    drafts[0] = replace(drafts[0], columns={other.get(name, name): one for name, one in drafts[0].columns.items()})
    with pytest.raises(UnfitTableError) as wrong:
        merged(drafts)
    assert [line.split(":")[0] for line in wrong.value.lines] == ["columns.AGE", "columns.Pres sure"]


def of_column(file: Path, values: Sequence[object], heads: str = "x,y") -> list[CsvTable]:
    file.write_text("\n".join([heads, *(f"{one},{'ab'[k % 2]}" for k, one in enumerate(values))]))
    return [CsvTable.read(file)]


def test_numbers_are_drafted_as_they_are_wherever_they_lie_and_however_they_are_written(tmp_path: Path) -> None:
    steps = np.arange(60) % 9
    for values in (1e9 + steps, 101325 + 3 * steps, 1e-9 * steps, -2012 - steps / 4):
        tables = of_column(tmp_path / "a.csv", values.tolist())
        schema = draft(tables, {"target": "y", "group": "none", "test": 0.0})
        x = SiteTable.of(tables[0], schema).samples.x[:, 0].numpy()
        assert x == pytest.approx((values - values.mean()) / values.std(), abs=0.02)  # not cut at 5 deviations
    for value in ("1e-05", "-1.5e30"):
        tables = of_column(tmp_path / "a.csv", [value, "2.5", "3"] * 5)
        made = SiteTable.of(tables[0], draft(tables, {"target": "y", "group": "none"}, statistics="own"))
        assert made.columns["x"][:3].tolist() == [float(value), 2.5, 3]  # "e-05" is no unit


@pytest.mark.parametrize(
    "date", ["{}.3.2024", "3/{}/24", "2024/03/{}", "0000-01-{}", "{}-12-2024 10:30", "{} 000", "0,{}"]
)
def test_numbers_and_dates_written_otherwise_are_refused_and_a_column_without_a_name_is_told(
    date: str, tmp_path: Path
) -> None:
    tables = of_column(tmp_path / "a.csv", [f'"{date.format(10 + k % 9)}"' for k in range(60)])
    with pytest.raises(UnfitTableError) as wrong:
        draft(tables, {"target": "y", "group": "none"})
    assert "'x'" in wrong.value.lines[0]
    (tmp_path / "b.csv").write_text("".join([",x,y\n", *(f"{k},{k % 7}.5,{'ab'[k % 2]}\n" for k in range(60))]))
    made = draft([CsvTable.read(tmp_path / "b.csv")], {"target": "y", "group": "none"})
    assert ([*made.columns], len(made.warnings)) == (["x"], 1)
    assert str(tmp_path / "b.csv") in made.warnings[0]


def test_what_would_be_taken_for_something_else_is_refused(tmp_path: Path) -> None:
    number = TableColumn("numbers")
    made = Schema(1, "y", {"x": number}, ["a", "b"], time="t")
    for wrong in (
        {"columns": {"x": replace(number, unit="e5")}},
        {"columns": {"x": replace(number, mean=1e300, deviation=1.0)}},
        {"gaps": ["a"]},
        {"columns": {"x": TableColumn("words", words=["m", "-"])}, "gaps": ["-"]},
    ):
        with pytest.raises(UserError):
            replace(made, **wrong)
    sites = [replace(made, sites={"Kiel": {"y": {one: "a"}}}) for one in "mn"]
    for drafts in ([made, replace(made, labels=[])], [made, replace(made, client_column="h")], sites):
        with pytest.raises(UnfitTableError):
            merged(drafts)
    file = tmp_path / "t.csv"
    file.write_text("x,t,y\n1,2023-05-01,a\n\n2,2024,b\n")  # a number is no date
    with pytest.raises(UnfitTableError, match="row 4"):  # as a spreadsheet counts
        SiteTable.of(CsvTable.read(file), made)
    for odd in ("", "NA", "kiel "):
        file.write_text(f"x,h,y\n1,Kiel,a\n2,{odd},b\n")
        with pytest.raises(UnfitTableError):
            read_sites([file], "h")


def test_words_that_may_be_gaps_or_one_another_and_two_decimal_signs(tmp_path: Path) -> None:
    file, said = tmp_path / "a.csv", {"target": "y", "group": "none"}
    file.write_text("x,s,y\n" + "1.5,m,none\n3,M,mild\n2.5,f,none\n" * 5)
    made = draft([CsvTable.read(file)], said)
    assert (made.labels, made.gaps) == (["mild", "none"], [""])  # a class, since no number is called so
    drafts = [
        replace(made, columns={"s": TableColumn("words", words=list(own))}, labels=[label, "none"])
        for own, label in (("mf", "mild"), ("MF", "Mild"))
    ]
    words, labels = "'F' and 'f', 'M' and 'm'", "'Mild' and 'mild'"  # all that may be one, not the first alone
    for one, both in ((made, "'M' and 'm'"), (merged(drafts), words), (merged(drafts), labels)):
        assert any(both in line for line in one.warnings)
    file.write_text("x,y\n" + "none,none\n3,mild\n2.5,severe\n" * 5)
    with pytest.raises(UnfitTableError, match="'none' is a gap"):  # which it is in x, where it is no class
        draft([CsvTable.read(file)], said)
    file.write_text("x;y\n" + "1.000;Ill\n2,5;ill\n2;Ill\n" * 5)
    odd, twins = draft([CsvTable.read(file)], said).warnings
    assert "'2,5'" in odd
    assert "'Ill' and 'ill'" in twins


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x,y\n1,\xe4\n2,b\n".encode("latin-1"), "row 2: "),
        ("x,y\n1,a\n2,b\n".encode("utf-16"), "encoding='utf-8'"),
        ("x,y\n1,a\n2,b\n".encode("utf-16-le"), "row 1: 'x\\x00'"),
        (b'x,y\n1,"a\n2,b\n', "left open"),
        (b"sep=;\nx;y\n1;a\n2;b\n", "row 1: 'sep=;'"),
        (b"x,y\n,\n , \n", "has no rows"),
        (b"", "has no rows"),
        (b"x,x,y\n1,1,a\n2,2,b\n", "called 'x'"),
        (b"x,y\n1,ill\n2,ill\n", "all rows say 'ill'"),
        (b"x,y\n1,\n2,NA\n", "'y': has no value"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UnfitTableError) as wrong:
        draft([CsvTable.read(tmp_path / "a.csv")], {"target": "y", "group": "none"})
    [line] = wrong.value.lines
    assert said in line


def test_a_table_is_the_same_with_a_mark_of_its_encoding_tabs_blanks_and_rows_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf x \ty\r\n1.5\ta \r\n\t\r\n2\tb\r\n\r\n")
    read = CsvTable.read(tmp_path / "a.csv")
    assert {name: column.tolist() for name, column in read.columns.items()} == {"x": ["1.5", "2"], "y": ["a", "b"]}
    assert read.rows.tolist() == [2, 4]
