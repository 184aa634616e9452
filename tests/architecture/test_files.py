"""Rules for every source file of the package."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from compiling.program import HOT

PACKAGE = Path(__file__).parents[2] / "llm_guard"
MAX_LINES = 350
MAX_LINES_ON_THE_PATH = 600
"""Of the modules that every call passes through: few files are read to follow one (`benchmarks.call_path`)."""
BANNED = ("manager", "helper", "util", "handle_data")

SOURCES = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(source) for name, source in SOURCES.items()}


def defined_names(name: str) -> list[str]:
    """Returns the names of the module, its classes and functions."""
    named = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [Path(name).stem, *(node.name for node in ast.walk(trees()[name]) if isinstance(node, named))]


def test_the_package_was_found() -> None:
    assert "proxy/attempts/attempt_loop.py" in SOURCES


def test_file_docstring_states_what_it_owns() -> None:
    docstrings = {name: ast.get_docstring(tree) or "" for name, tree in trees().items()}
    assert not [name for name, docstring in docstrings.items() if not docstring]
    no_sentence = [name for name, said in docstrings.items() if said[-1] not in ".:)" and "\n" not in said]
    assert not no_sentence


def test_file_can_be_read_in_one_sitting() -> None:
    on_the_path = {f"{module.replace('.', '/')}.py" for module in HOT}
    limits = {name: MAX_LINES_ON_THE_PATH if name in on_the_path else MAX_LINES for name in SOURCES}
    lines = {name: len(source.splitlines()) for name, source in SOURCES.items()}
    too_long = {name: count for name, count in lines.items() if count > limits[name]}
    assert not too_long, "each owns more than one thing"


def test_names_are_not_vague() -> None:
    vague = [
        f"{name}: {defined}"
        for name in SOURCES
        for defined in defined_names(name)
        if any(word in defined.lower() for word in BANNED)
    ]
    assert not vague, "name what it owns or does"
