"""The table of attacks is complete, and the tests it names exist."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.security.coverage import GROUPS, Absent, addresses_in_pages

ROOT = Path(__file__).parents[2]
ATTACKS = json.loads((ROOT / "tests/data/attacks.json").read_text())["attacks"]
TABLE = {attack: where for group in GROUPS for attack, where in group.items()}


@cache
def sources_of(path: Path) -> dict[str, str]:
    """Returns a file's tests by name, each with its decorators and the module-level definitions that it uses."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    pieces = {}
    for node in ast.parse(text).body:
        source = _source(lines, node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = (_source(lines, each) for each in node.decorator_list)
            pieces[node.name] = "\n".join((source, *decorators))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            pieces[ast.unparse(target)] = source
    return {
        name: source + "".join(pieces[word] for word in set(re.findall(r"\w+", source)) & pieces.keys() - {name})
        for name, source in pieces.items()
        if name.startswith("test_")
    }


def _source(lines: list[str], node: ast.stmt | ast.expr) -> str:
    """Returns the lines of a node. `ast.get_source_segment` would split the whole text for each."""
    return "".join(lines[node.lineno - 1 : node.end_lineno])


def attacks_in(text: str) -> set[str]:
    """Finds the attacks that a text names, singly or in a range."""
    ranges = re.findall(r"\bC(\d\d) to C(\d\d)\b", text)
    within = {f"C{number:02}" for first, last in ranges for number in range(int(first), int(last) + 1)}
    return within | set(re.findall(r"\bC\d\d\b", text))


def test_list_of_attacks_is_whole() -> None:
    assert [attack["id"] for attack in ATTACKS] == [f"C{number:02}" for number in range(1, 100)]
    assert all(attack["title"] for attack in ATTACKS)


def test_every_attack_is_in_exactly_one_group() -> None:
    assert sorted(attack for group in GROUPS for attack in group) == [each["id"] for each in ATTACKS]


@pytest.mark.parametrize(
    ("path", "words"), [("README.md", "each of {} attacks is tested"), ("SECURITY.md", "plays {} of 99 known attacks")]
)
def test_attacks_listed_as_tested_have_tests(path: str, words: str) -> None:
    tested = sum(not isinstance(where, Absent) for where in TABLE.values())
    assert words.format(tested) in " ".join((ROOT / path).read_text().split())


def test_excuse_that_names_something_that_exists_is_found() -> None:
    class AnyChange(msgspec.Struct):
        reason: str

    class AddUpstream(AnyChange):
        base_url: str

    assert addresses_in_pages(AnyChange) == ["AddUpstream.base_url"]


@pytest.mark.parametrize("attack", sorted(TABLE))
def test_attack_has_tests_that_name_it_or_a_reason_for_having_none(attack: str) -> None:
    where = TABLE[attack]
    if isinstance(where, Absent):
        assert where.why
        assert not where.found(), f"{attack} is excused ({where.why}), and can be played"
        return
    assert where
    assert len(set(where)) == len(where)
    for each in where:
        path, _, name = each.partition("::")
        tests = sources_of(ROOT / path)
        assert name in tests, f"{each} does not exist"
        # Tests outside this folder may cover an attack without naming it.
        if path.startswith("tests/security/"):
            assert attack in attacks_in(tests[name]), f"{each} does not say that it is about {attack}"
