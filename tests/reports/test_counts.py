"""Behind 1 a noun is in the singular: in every sentence of pages and terminals, whatever branch it takes."""

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, StrictUndefined, nodes
from jinja2.visitor import NodeTransformer

import hanse
from hanse.base.plain_text import quantity
from hanse.reports.words import environment

PLURALS = (
    "accounts", "answers", "bytes", "cases", "characters", "checks", "classes", "clients", "coalitions", "days",
    "drafts", "draws", "experiments", "labels", "lines", "markets", "members", "models", "nodes", "numbers", "others",
    "pages", "pairs", "participants", "postings", "questions", "receipts", "records", "replies", "rounds", "rows",
    "runs", "samples", "seats", "seeds", "splits", "statements", "tensors", "times", "tokens", "trainings",
    "transactions", "units", "updates", "values", "witnesses",
)  # fmt: skip
PLURAL = rf"(?:(?!(?:are|asks|at|have|hold|its|of|the)\b)[a-z]+ ){{0,2}}(?:{'|'.join(PLURALS)})\b"
ROOMS = ("cli", "flower", "lab", "reports", "wings/charter", "wings/operate")


class One(int):
    """Whatever a sentence is said of: 1, and everything in it is, too."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self

    def __getitem__(self, at: Any) -> Any:
        return "1" if isinstance(at, slice) else self

    def __iter__(self) -> Iterator[Any]:
        return iter((self, self))

    def __len__(self) -> int:
        return 1

    def __gt__(self, other: object) -> Any:
        return self


class EveryBranch(NodeTransformer):
    """Makes a template say all that it would say under one condition or another."""

    def visit_If(self, node: nodes.If) -> list[nodes.Node]:  # noqa: N802
        every = [*node.body, *(one for branch in node.elif_ for one in branch.body), *node.else_]
        return [made for one in every for made in self.visit_list(one)]


def every_sentence() -> dict[str, str]:
    """Return each sentence of the templates, said of 1 with all its branches, by its name."""
    template = files("hanse.reports").joinpath("sentences.j2").read_text("utf-8")
    env = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    one = One(1)
    env.filters = dict.fromkeys({*environment().filters, *env.filters}, lambda *given, **named: one)
    env.filters |= {"quantity": quantity, "join": lambda text, *_: "1", "trim": str}
    env.globals |= dict.fromkeys(("say", "sure", "between", "points", "ends"), one)
    env.globals["agreeing"] = lambda *_: (one,) * 3
    module = env.from_string(EveryBranch().visit(env.parse(template))).module
    macros = {name: macro for name, macro in vars(module).items() if hasattr(macro, "arguments")}
    return {name: " ".join(str(macro(*[one] * len(macro.arguments))).split()) for name, macro in macros.items()}


def test_every_sentence_said_of_one_thing_is_in_the_singular() -> None:
    said = every_sentence()
    assert len(said) > 100
    wrong = {name: found for name, text in said.items() if (found := re.findall(rf"(?<![\d.])1 {PLURAL}", text))}
    assert wrong == {}


@pytest.mark.parametrize("room", ROOMS)
def test_no_text_puts_a_plural_behind_a_number_that_may_be_one(room: str) -> None:
    """Then it says ``quantity(number, noun)``."""
    wrong = []
    for path in sorted((Path(hanse.__file__).parent / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for before, after in pairwise(node.values if isinstance(node, ast.JoinedStr) else []):
                fixed = isinstance(before, ast.FormattedValue) and ast.unparse(before.value).isupper()  # a constant
                if isinstance(before, ast.FormattedValue) and isinstance(after, ast.Constant) and not fixed:
                    found = re.match(rf" {PLURAL}", str(after.value))
                    wrong += [f"{path.name}:{node.lineno}:{found[0]}"] if found else []
    assert wrong == []
