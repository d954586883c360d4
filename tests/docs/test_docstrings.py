"""Where a function's text has a section on its arguments, it names all of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "src" / "hanse", ROOT / "papers" / "src" / "hanse_papers")


def public(body: list[ast.stmt], name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the public functions and methods below a module or class, with their dotted names."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{name}.{node.name}")
            else:
                yield f"{name}.{node.name}", node


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            name = ".".join(path.relative_to(package).with_suffix("").parts)
            yield from public(ast.parse(path.read_text()).body, name)


def lacking(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the arguments that the section on arguments leaves out; none, if there is no such section."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", ast.get_docstring(function) or "", re.S | re.M)
    if section is None:
        return []
    said = {name for line in re.findall(r"^    (\S[^:\n]*):", section[1], re.M) for name in re.findall(r"\w+", line)}
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in said | {"self", "cls"}]


def test_a_section_on_arguments_names_all_of_them() -> None:
    found = {name: missing for name, function in functions() if (missing := lacking(function))}
    assert found == {}
