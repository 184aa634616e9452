"""Rules for every source file of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "llm_guard"
MAX_LINES = 350
BANNED = ("manager", "helper", "util", "handle_data")

SOURCES = sorted(PACKAGE.rglob("*.py"))
each_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))


def defined_names(path: Path) -> list[str]:
    """Returns the names of the module, its classes and functions."""
    named = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text())
    return [path.stem, *(node.name for node in ast.walk(tree) if isinstance(node, named))]


def test_the_package_was_found() -> None:
    assert PACKAGE / "proxy" / "attempts" / "attempt_loop.py" in SOURCES


@each_source
def test_file_docstring_states_what_it_owns(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said, f"{path.name} has no docstring"
    assert said[-1] in ".:)" or "\n" in said, f"the docstring of {path.name} is no sentence"


@each_source
def test_file_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{path.name} has {lines} lines: it owns more than one thing"


@each_source
def test_names_are_not_vague(path: Path) -> None:
    vague = [name for name in defined_names(path) if any(word in name.lower() for word in BANNED)]
    assert not vague, f"{vague}: name what it owns or does"
