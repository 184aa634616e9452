"""Prose is plain English, and the modules that it names exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture import prose

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "llm_guard"
FOLDERS = ("llm_guard", "tests", "benchmarks", "compiling", "documenting")
PAGES = (
    "README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))),
)  # fmt: skip

MARKER = re.compile(
    r"\b(?:who|whoever|whom|nobody|somebody|everybody|anew|by and by|what has come|told|asked)\b", re.IGNORECASE
)
FRAGMENT = re.compile(r"(?:Of|As|What|Who|Whether|By)\b")
"""The first word of a passage that is often no sentence."""
MOST_PER_1000_WORDS = 2.0
FEWEST_WORDS = 300
"""Smaller files are judged together with the others of their folder."""

MESSAGE_MARKER = re.compile(
    rf"{MARKER.pattern}|\b(?:anybody|say|said|heard|patience|promises?|promised|errands?|letters?|lesser|looks?|looked|"
    r"benched|beside|stands? (?:for|in|by)|goes on|gone on|going away|taken back)\b",
    re.IGNORECASE,
)
"""None of these is in a text that users, operators or clients read."""
FEWEST_WORDS_OF_A_MESSAGE = 3
NOT_MESSAGES = {
    "llm_guard/resilience/classification/vocabulary": "quotes providers' errors",
    "llm_guard/mock": "imitates providers' errors",
    "llm_guard/dialects/resume": "has instructions for models",
}
_TERM = re.compile(r"[Dd]ead.letters?|letters, digits|\b[a-z_]+\.[a-z_.]+\b")
"""Terms that contain a marker: dead letters, characters of a name, keys of the config."""
_SQL = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|EXISTS|[a-z_]+ (?:=|<=|>=|IN) )")

_WORD = re.compile(r"[A-Za-z']+")
_CODE = re.compile(r"`[^`]*`")
_KEYS = frozenset({"upstreams.X.api_key_file", "upstreams.X.api_keys", "upstreams.X.errors", "upstreams.X.tls"})
"""Keys of the config that look like modules."""
_NAME = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`")


@cache
def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@cache
def passages(path: Path) -> list[tuple[int, str]]:
    return list(prose.passages(path))


@cache
def found_in(path: Path) -> tuple[int, list[str]]:
    """Returns the number of words in a file's prose, and its markers with their lines."""
    words, markers = 0, list[str]()
    for line, passage in passages(path):
        text = _CODE.sub("", passage).strip()
        words += len(_WORD.findall(text))
        begins = [] if path.suffix == ".md" else FRAGMENT.findall(text[:10])
        markers += [f"{path.relative_to(ROOT)}:{line}: {marker}" for marker in (*MARKER.findall(text), *begins)]
    return words, markers


def judge(paths: list[Path]) -> list[str]:
    """Returns the markers of files, if there are too many per 1,000 words."""
    words, markers = 0, list[str]()
    for path in paths:
        more_words, more_markers = found_in(path)
        words, markers = words + more_words, markers + more_markers
    return markers if 1000 * len(markers) > MOST_PER_1000_WORDS * words else []


def test_long_files_are_written_in_plain_sentences() -> None:
    long = [path for path in sources() if found_in(path)[0] > FEWEST_WORDS]
    assert len(long) > 20
    assert [marker for path in long for marker in judge([path])] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_written_in_plain_sentences(folder: str) -> None:
    assert judge([path for path in sources() if path.is_relative_to(ROOT / folder)]) == []


@pytest.mark.parametrize("page", PAGES)
def test_page_is_written_in_plain_sentences(page: str) -> None:
    assert judge([ROOT / page]) == []


def test_marker_is_found_in_each_kind_of_passage(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text('"""Of nobody."""\n\n# Whoever\n# was told.\n\nLIMIT = 1  # `who`\n"""Limit."""\n')
    texts = [passage for _line, passage in passages(source)]
    assert texts == ["Of nobody.", "Limit.", "Whoever was told.", "`who`"]
    assert [len(MARKER.findall(_CODE.sub("", text))) for text in texts] == [1, 0, 2, 0]
    page = tmp_path / "page.md"
    page.write_text("# Who\n\n```\nnobody\n```\nPlain text.\n")
    assert [(line, text) for line, text in passages(page) if text] == [(6, "Plain text.")]


# messages


def messages_of(path: Path) -> list[tuple[int, str]]:
    """Returns the sentences and phrases among the string literals of a module."""
    return [
        (line, text)
        for line, text in prose.messages(path)
        if len(_WORD.findall(text)) >= FEWEST_WORDS_OF_A_MESSAGE and not _SQL.match(text)
    ]


def markers_of(text: str) -> list[str]:
    return MESSAGE_MARKER.findall(_TERM.sub("", _CODE.sub("", text)))


def test_messages_are_written_in_plain_english() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if not any(path.is_relative_to(ROOT / at) for at in NOT_MESSAGES)]
    found = {path: messages_of(path) for path in paths}
    assert sum(map(len, found.values())) > 800
    assert [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, texts in found.items()
        for line, text in texts
        if markers_of(text)
    ] == []


def test_texts_that_are_no_messages_exist() -> None:
    assert [place for place in NOT_MESSAGES if not (ROOT / place).exists()] == []


def test_marker_is_found_in_each_kind_of_message(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        '"""Of nobody at all."""\nA = "nobody could answer"\nB = f"{A} was told of {1}"\nC = ("a dead letter", A)\n'
    )
    assert [markers_of(text) for _line, text in sorted(messages_of(source))] == [["nobody"], ["told"], []]


# names


def named_modules() -> dict[str, str]:
    """Maps each dotted name in backticks that begins like a module of the package to a place where it stands. README
    and SECURITY.md name many keys of the config."""
    found = {}
    for path in [*sources(), ROOT / "CONTRIBUTING.md"]:
        for line, passage in passages(path):
            for name in _NAME.findall(passage):
                if (PACKAGE / name.split(".")[0]).is_dir():
                    found[name] = f"{path.relative_to(ROOT)}:{line}"
    return found


def resolves(name: str) -> bool:
    """Checks that a dotted name is a module of the package, or a name that a module defines, or one of its members."""
    parts = name.split(".")
    place = PACKAGE
    for depth, part in enumerate(parts):
        if (place / part).is_dir():
            place = place / part
            continue
        module = (place / part).with_suffix(".py")
        if module.exists():
            return not parts[depth + 1 :] or parts[depth + 1] in defined(module)
        return part in defined(place / "__init__.py")
    return True


def defined(module: Path) -> set[str]:
    """Returns the names that a module defines or imports at its top level."""
    names = set()
    for statement in ast.parse(module.read_text()).body:
        match statement:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(statement.name)
            case ast.ImportFrom() | ast.Import():
                names |= {alias.asname or alias.name for alias in statement.names}
            case ast.Assign():
                names |= {
                    name.id for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)
                }
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case _:
                pass
    return names


def test_module_that_prose_names_exists() -> None:
    names = named_modules()
    assert len(names) > 100
    assert {name: place for name, place in names.items() if name not in _KEYS and not resolves(name)} == {}
