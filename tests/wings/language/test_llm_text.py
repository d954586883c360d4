"""Tokens, the Alpaca format, windows, files of instructions, published sets by their own fields, the shipped set."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hanse.base.errors import UserError
from hanse.data import DataSpec, build, load
from hanse.data import sources as sources_module
from hanse.data.dataset import IGNORED
from hanse.wings.language import TEXTS, sources
from hanse.wings.language import records as tokens_module
from hanse.wings.language.records import ByteTokenizer, Instruction, build_tokenizer, encode, prompt, read_instructions
from hanse.wings.language.sources import CLIENTS, DEALT, DIALECTS, WORDS, client_reports, reports


@pytest.fixture(autouse=True)
def _no_user_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANSE_DATA", raising=False)
    monkeypatch.setattr(sources_module, "cache_dir", lambda: tmp_path / "cache")
    build_tokenizer.cache_clear()


def test_the_alpaca_format() -> None:
    asked = prompt(Instruction("Add.", "1 and {2}", "3"))
    assert asked.endswith("### Instruction:\nAdd.\n\n### Input:\n1 and {2}\n\n### Response:\n")
    assert asked.startswith("Below is an instruction that describes a task, paired with an input that provides")
    assert prompt(Instruction("Sing.", "", "la")) == (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        "\n\n### Instruction:\nSing.\n\n### Response:\n"
    )


def test_labels_are_the_answer_and_its_end() -> None:
    tokens = ByteTokenizer()
    samples, cut = encode([Instruction("Go", "", "ab"), Instruction("G", "", "c")], tokens, 512)
    x, y = samples.x, samples.y
    assert cut == 0
    assert x.shape == (2, 7)  # two pieces and the response's, two letters, two of the answer; the end is not read
    assert x[0].tolist() == [259, 260, ord("G"), ord("o"), 262, ord("a"), ord("b")]
    assert y[0].tolist() == [IGNORED] * 4 + [ord("a"), ord("b"), tokens.end]
    assert x[1].tolist() == [259, 260, ord("G"), 262, ord("c"), 257, 257]
    assert y[1].tolist() == [IGNORED] * 3 + [ord("c"), tokens.end, IGNORED, IGNORED]


def test_what_is_longer_than_the_window_is_cut_and_counted() -> None:
    tokens = ByteTokenizer()
    items = [Instruction("x" * 50, "", "yes"), Instruction("x", "", "no"), Instruction("x", "", "z" * 40)]
    samples, cut = encode(items, tokens, 12)
    assert cut == 2
    assert samples.x.shape == (3, 11)
    assert samples.x[0].tolist() == [ord("x")] * 7 + [262, *b"yes"]  # the beginning is lost, the answer is whole
    assert [t for t in samples.y[2].tolist() if t != IGNORED] == [ord("z")] * 11


def test_files_of_instructions(tmp_path: Path) -> None:
    records = [
        {"instruction": "Say, it", "input": "a\nb", "output": "1"},
        {"instruction": "Sing", "input": "", "output": "2"},
    ]
    for name, text in (
        ("a.json", json.dumps(records)),
        ("a.jsonl", "\n".join(map(json.dumps, records)) + "\n\n"),
        ("a.csv", 'instruction,input,output\n"Say, it","a\nb",1\nSing,,2\n'),
    ):
        (tmp_path / name).write_text(text)
        assert read_instructions(tmp_path / name) == [Instruction(**record) for record in records]


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '[{"instruction": "x", "answer": "y"}]'), ("a.csv", "question,reply\n1,2\n"), ("a.json", "{}"),
     ("a.json", "["), ("a.jsonl", "\n"), ("a.txt", "x")],
)  # fmt: skip
def test_files_without_the_needed_fields(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=name):
        read_instructions(tmp_path / name)


def test_a_folder_with_a_file_a_client(tmp_path: Path) -> None:
    for client, count in (("anna", 10), ("bert", 5)):
        records = [{"instruction": f"{client} {i}", "output": "x"} for i in range(count)]
        (tmp_path / f"{client}.json").write_text(json.dumps(records))
    found = load("instruction_files", root=tmp_path, length=6)
    assert found.client_names == ("anna", "bert")
    assert Counter(found.client_of.tolist()) == {0: 8, 1: 4}
    assert found.test_client_of.tolist() == [0, 0, 1]
    assert found.note.startswith("15 of 15 ")
    alone = load("instruction_files", root=tmp_path / "anna.json")
    assert (len(alone.train), len(alone.test), alone.client_of) == (8, 2, None)
    (tmp_path / "empty").mkdir()
    for root in (None, tmp_path / "empty"):
        with pytest.raises(UserError, match="instruction_files"):
            load("instruction_files", root=root)


RAW: dict[str, list[dict[str, Any]]] = {
    "fiqa": [
        {"sentence": "Up it goes", "sentiment_score": 0.1, "format": "post"},
        {"sentence": "Well", "sentiment_score": -0.1, "format": "headline"},
        {"sentence": "Down", "sentiment_score": -0.4, "format": "headline"},
    ],
    "tfns": [{"text": "bear", "label": 0}, {"text": "bull", "label": "1"}, {"text": "so so", "label": 2}],
    "nwgi": [
        {"news": "a", "label": "strong negative"},
        {"news": "b", "label": "mildly positive"},
        {"news": "c", "label": "moderately positive"},
    ],
    "code_alpaca": [{"instruction": "add", "input": "", "output": "+"}] * 20,
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, records in RAW.items():
        (folder / f"{name}.train.jsonl").write_text("\n".join(json.dumps(r) for r in records * 4))
        if name != "code_alpaca":
            (folder / f"{name}.test.jsonl").write_text("\n".join(json.dumps(r) for r in records * 2))
    return folder


def test_published_sets_become_instructions(raw: Path) -> None:
    moods = {
        "fiqa": ["positive", "neutral", "negative"],
        "tfns": ["negative", "positive", "neutral"],
        "nwgi": ["negative", "neutral", "positive"],
    }
    for name, expected in moods.items():
        train, test = sources.load_published(name, [raw], False)
        assert [item.output for item in train] == expected * 4
        assert [item.output for item in test] == expected * 2
        assert train[0].instruction.endswith("Please choose an answer from {negative/neutral/positive}.")
    assert sources.load_published("fiqa", [raw], False)[0][0].instruction.startswith("What is the sentiment of this t")
    train, test = sources.load_published("code_alpaca", [raw], False)
    assert (len(train), len(test)) == (72, 8)  # no test split is published: the last tenth
    (raw / "tfns.train.jsonl").write_text(json.dumps({"tweet": "x", "label": 1}))
    (raw / "nwgi.train.jsonl").write_text(json.dumps({"news": "x", "label": "fine"}))
    for name in ("tfns", "nwgi"):  # other fields, another label
        with pytest.raises(UserError, match=name):
            load(name, root=raw)
    with pytest.raises(UserError, match=r"'tfns'.*data\.path"):
        load("tfns", download=False)


def test_clients_of_the_papers_scenarios(raw: Path) -> None:
    spec = DataSpec(
        source="mixed_finance", partition="natural", clients=6, path=str(raw), download=False, validation=0.0
    )
    data = build(spec)
    assert data.names == ("fiqa 0", "fiqa 1", "tfns 0", "tfns 1", "nwgi 0", "nwgi 1")
    assert data.sizes.tolist() == [6] * 6
    code = build(DataSpec(**{**spec.model_dump(), "source": "finance_code", "clients": 8}))
    assert code.names[:5] == tuple(f"code_alpaca {c}" for c in range(5))
    assert code.sizes.tolist() == [14] * 5 + [4] * 3


class _Tokenizer:
    """What the transformers library gives, in short."""

    bos_token_id: int | None = 1
    pad_token_id: int | None = None

    def __init__(self, end: int | None) -> None:
        self.eos_token_id = end

    def __len__(self) -> int:
        return 30

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [3 + len(word) for word in text.split()]}


def _give(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    library = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=make))
    monkeypatch.setattr(tokens_module, "library", lambda name, what: library)


def test_a_tokenizer_pads_with_its_end_which_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    _give(monkeypatch, lambda name, local_files_only, trust_remote_code: _Tokenizer(2))
    found = build_tokenizer("some/model")
    assert (found.size, found.end, found.padding) == (30, 2, 2)
    assert found.encode("aa b", first=True) == [1, 5, 4]
    assert found.encode("aa b") == [5, 4]
    _give(monkeypatch, lambda name, local_files_only, trust_remote_code: _Tokenizer(None))
    with pytest.raises(UserError, match="end token"):
        build_tokenizer("endless")


def test_the_shipped_set() -> None:
    assert set(TEXTS) == {"instructions", "instruction_files", *sources.PUBLISHED, *DEALT}
    told = reports()
    assert len(told) == len({text for _, text in told}) == 1200
    train, test = client_reports()
    assert [len(own) for own in train] == [60] * 6
    assert [len(own) for own in test] == [20] * 6
    assert len({item.input for own in [*train, *test] for item in own}) == 480  # nobody's report is another one's
    assert CLIENTS == (0, 0, 1, 1, 2, 3)

    shared = [[len(set(a) & set(b)) for b in DIALECTS] for a in DIALECTS]
    assert shared == [[4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 2], [0, 0, 2, 4]]
    assert {item.output for item in train[2]} == set(DIALECTS[1])
    assert len(WORDS) == 14
