"""A dialect owns its facts: no module outside `llm_guard.dialects` names one in a string."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from llm_guard.dialects import DIALECTS, DialectName

PACKAGE = Path(__file__).parents[2] / "llm_guard"
EXEMPT = {
    "dialects": "defines them",
    "mock": "imitates providers from the outside, and shares no code with the gateway",
    "resilience/classification/vocabulary": "names families of providers, two of which are called like dialects",
}
"""Folders that may name a dialect, with the reason."""


def is_exempt(path: Path) -> bool:
    return any((PACKAGE / folder) in path.parents for folder in EXEMPT)


def literals(path: Path) -> Iterator[str]:
    """Yields the place of every string that is the name of a dialect, also in `Literal[...]`, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and node.value in DIALECTS:
            yield f"{path}:{node.lineno}: {node.value!r}"


def test_dialects_are_named_in_their_own_folder_alone() -> None:
    judged = [path for path in sorted(PACKAGE.rglob("*.py")) if not is_exempt(path)]
    assert PACKAGE / "proxy" / "attempts" / "upstream_attempt.py" in judged
    assert [found for path in judged for found in literals(path)] == []


@pytest.mark.parametrize("folder", EXEMPT)
def test_exemption_is_needed(folder: str) -> None:
    assert any(found for path in (PACKAGE / folder).rglob("*.py") for found in literals(path))


@pytest.mark.parametrize(
    "code",
    [
        'is_same = dialect == "openai"',
        'dialect: Literal["anthropic"]',
        '_PATHS = {"openai": "/v1/chat/completions"}',
        "f\"{'/v1' if dialect == 'anthropic' else ''}\"",
        'match dialect:\n    case "openai": pass',
    ],
)
def test_name_of_a_dialect_is_found_in_each_form(code: str, tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(f'"""Speaks openai and anthropic."""\nheader = "openai-organization"\n{code}\n')
    assert len(list(literals(path))) == 1


def test_registry_has_every_dialect() -> None:
    assert tuple(DIALECTS) == get_args(DialectName)
