"""libyaml must read a config as PyYAML's own parser does, which reads it where libyaml is absent."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from llm_guard.config import yaml_source
from llm_guard.config.yaml_source import ConfigError, Document, read_document

CONFIGS = Path(__file__).parents[2] / "config"
PIECES = [
    "a", "b: ", "- ", "\n", "\n  ", "\n    ", ": ", ":", ", ", ",", "[", "]", "{", "}", "'", '"', "#", " #", "&x ",
    "*x", "!t ", "! ", "!!str ", "!<x> ", "? ", "?", "\t", "|\n", "> \n", "|+2\n", "|-\n", "%YAML 1.1\n", "\n---\n",
    "\n...\n", "~", "null", "true", "1", "1.5", "<<", "\r\n", "\r", "\x85", "\u2028", "\ufeff", "é", "😀", "\\", "\\\n",
    "${X}", "@", "`", "=", "'x'", '"y"', ": |\n", "\x7f", "\ud800", "\x00", "\\ud800", "\\U00110000", '"a\n b # c"',
    "\n    a\n\n    b\n",
]  # fmt: skip
starts = st.sampled_from(["", "a: ", "a: {b: ", "a: [", "a:\n  b: ", "a:\n- "])
ends = st.sampled_from(["", "\n", "}", "]", '"'])
texts = st.tuples(starts, st.lists(st.sampled_from(PIECES), max_size=12).map("".join), ends).map("".join)


def read(text: str) -> Document | str:
    try:
        return read_document(text, "f.yaml", {"X": "x"})
    except ConfigError as error:
        return str(error)


def by_both(text: str) -> tuple[Document | str, Document | str]:
    assert yaml.__with_libyaml__, "PyYAML's wheels have it: without it nothing is compared"
    found = read(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_source, "_LibyamlLoader", None)
        return found, read(text)


@given(texts)
@example("a: {b?c: d}")
@example("a: [?b]")
@example('a: {b: "x #y",\tc: d}')
@example('a: {b: "x\n # y",\tc: d}')
@example("a:\tb")
@example("a: [1,\t2]")
@example("a: b\t# c")
@example("a: !*x=!t ")
@example("{!x:y, a: b}")
@example("a: ! ")
@example("%YAML 1.1\n---\na: 1")
@example("a: |\n\ufeff")
@example("---\n\ufeffa: b")
@example("---\n# nothing")
@example("a: 1\na: 2\n<<: 3\n'<<': 4\nb c:\nb c: ''")
def test_text_is_the_same_config_or_the_same_error(text: str) -> None:
    libyaml, pyyaml = by_both(text)
    assert libyaml == pyyaml


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.name)
def test_config_of_the_project_is_read_by_libyaml_and_is_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file.read_text()
    libyaml, pyyaml = by_both(text)
    assert libyaml == pyyaml
    monkeypatch.setattr(yaml_source, "_Loader", None)
    assert read(text) == pyyaml


@pytest.mark.parametrize("opening", ["m: [", "m: {a: "])
def test_depth_is_bounded(opening: str) -> None:
    """PyYAML's composer in C recurses until a signal kills the process."""
    assert read(opening + opening[3:] * 100_000) == "f.yaml:1: nested deeper than 20 levels"
