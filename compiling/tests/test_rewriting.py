"""The source of a module as rewritten for Cython."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from compiling.program import read_program
from compiling.rewrite import rewritten
from compiling.tests.test_declarations import FUTURE, ROOT, program


def after(folder: Path, text: str) -> str:
    """Returns the rewritten module without its first line."""
    found = program(folder, one=text)
    first, _, rest = rewritten(found.modules["llm_guard.one"], found).partition("\n")
    assert first == FUTURE.strip() + "; import cython"
    return rest


def statements(text: str) -> list[tuple[int, str]]:
    """Returns line and kind of each statement, with annotated assignments as plain ones."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    return sorted((node.lineno, type(node).__name__.replace("Ann", "")) for node in nodes)


def test_every_line_stays_where_it_was() -> None:
    """Tracebacks find the source by line number."""
    found = read_program(ROOT)
    for module in found.modules.values():
        new = statements(rewritten(module, found))
        old = statements(module.text)
        lost = [each for each in old if each not in new]
        assert all((kind == "Assign" and (line, "Pass") in new) or kind == "ImportFrom" for line, kind in lost), lost
        assert len(new) - len(old) in (1, 2), "`import cython`, and perhaps what is exported"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def act(a: int, *, b: float = 1.0) -> bool: ...", "def act(a,  b = 1.0) : ..."),
        ("def act(\n    a: int,\n    *,\n    b: float,\n) -> bool: ...", "def act(\n    a,\n    \n    b,\n) : ..."),
        ("async def act(a: int, b: float, c: C | None, *, d: P) -> C: ...",
         "async def act(a, b: float, c: C | None, *, d) -> C: ..."),
        ("async def act(é: int, b: float | None = None): ...", "async def act(é, b = None): ..."),
        ("def act():\n    a: float | None = None\n    b: float = 1\n    c: P\n    d: C\n",
         "def act():\n    a = None\n    b: float = 1\n    c: object\n    d: C\n"),
        ("seen: dict[str, int] = {}", "seen = {}"),
        ("@dataclass(frozen=True, slots=True)\nclass D:\n    a: int\n",
         "@cython.dataclasses.dataclass(frozen=True)\nclass D:\n    a: int\n"),
        ("@dataclass\nclass D:\n    a: int\n", "@cython.dataclasses.dataclass()\nclass D:\n    a: int\n"),
        ("@dataclass(slots=True)\nclass DSettings:\n    a: int\n",
         "@dataclass(slots=True)\nclass DSettings:\n    a: int\n"),
        ("class D:\n    __slots__ = (\n        'a',\n    )\n    b = 1\n", "class D:\n    pass\n\n\n    b = 1\n"),
        ("class D(C):\n    def act(self): super().act()\n    def __init__(self): super().__init__()\n",
         "class D(C):\n    def act(self): super(D, self).act()\n    def __init__(self): super().__init__()\n"),
    ],
)  # fmt: skip
def test_declarations_are_left_out(tmp_path: Path, old: str, new: str) -> None:
    frame = "class C: ...\nclass P(Protocol): ...\n"
    assert after(tmp_path, frame + old) == frame + new


def test_functions_that_c_calls_are_not_imported(tmp_path: Path) -> None:
    texts = {
        "one": "A = 1\nclass C: ...\ndef act(): ...\n",
        "two": "from llm_guard.one import (\n    A,\n    C,\n    act,\n)\nx = 1\n",
        "three": "from llm_guard.one import act\n",
        "four": "from llm_guard.one import A as B\n",
    }
    found = program(tmp_path, **texts)
    new = {name: rewritten(found.modules[f"llm_guard.{name}"], found).partition("\n")[2] for name in texts}
    assert new["two"] == "from llm_guard.one import A, C\n\n\n\n\nx = 1\n"
    assert new["three"] == "import llm_guard.one\n"
    assert new["four"] == texts["four"]


def test_exported_names_can_be_imported(tmp_path: Path) -> None:
    texts = {
        "one": "class C: ...\ndef act(): ...\n",
        "two": "from llm_guard.one import C, act\n__all__ = ['C', 'act']\n",
    }
    found = program(tmp_path, **texts)
    new = rewritten(found.modules["llm_guard.two"], found)
    assert new.endswith(texts["two"] + "globals().update(C=C)\n")
