"""The import rules hold, and no module depends on another one having been imported before it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.effort import some

ROOT = Path(__file__).parents[2]

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
IMPORT_EACH_ALONE = """
import gc, json, os, sys, types
gc.disable()
import aiohttp.web, click, msgspec, prometheus_client, pydantic, structlog, yaml  # what is slow, and not the question
following = json.load(sys.stdin)
def is_sound(name):
    child = os.fork()
    if child != 0:
        return os.waitpid(child, 0)[1] == 0
    if name != "llm_guard" and "llm_guard" not in sys.modules:  # its __init__ imports all the others
        bare = sys.modules["llm_guard"] = types.ModuleType("llm_guard")
        bare.__path__ = ["llm_guard"]
    try:
        assert name not in sys.modules, "loaded by a module that does not import it at its top level"
        __import__(name)
    except BaseException as error:
        print(f"{name}: {error!r}", flush=True)
        os._exit(1)
    os._exit(not all([is_sound(each) for each in following.get(name, [])]))
sys.exit(not all([is_sound(name) for name in following[""]]))
"""


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: PLW1510 - the exit code is what is asked for
        [sys.executable, *arguments], cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=100
    )


@cache
def modules() -> dict[str, Path]:
    """Returns every module of the package except `__main__`, which runs when imported."""
    paths = {path.relative_to(ROOT).with_suffix(""): path for path in sorted((ROOT / "llm_guard").rglob("*.py"))}
    names = {".".join(relative.parts).removesuffix(".__init__"): path for relative, path in paths.items()}
    return {name: path for name, path in names.items() if not name.endswith("__main__")}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that run whenever the module is imported, without those of branches."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With | ast.ClassDef):
            yield from statements(statement.body)


@cache
def imported(name: str) -> frozenset[str]:
    """Returns the modules that `name` imports directly, its packages included."""
    parts = name.split(".")
    found = {".".join(parts[:count]) for count in range(2, len(parts))}
    for statement in statements(ast.parse(modules()[name].read_text()).body):
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            found |= {statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)}
        elif isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
    return frozenset(found & modules().keys() - {name, "llm_guard"})


@cache
def loaded_with(name: str) -> frozenset[str]:
    """Returns the modules that are loaded once `name` is, without `name` unless it is in a cycle."""
    found, todo = set[str](), [name]
    while todo:
        new = imported(todo.pop()) - found
        found |= new
        todo += new
    return frozenset(found)


def following() -> dict[str, list[str]]:
    """Orders the modules: each follows the module that it imports and that loads most, or "" if there is none.

    A module that is imported after such a one finds nothing that it would not load itself. What it would miss without
    it, that one misses too. A module in a cycle follows none of the cycle, which would have loaded it already.
    """
    order = defaultdict[str, list[str]](list)
    for name in modules():
        if name == "llm_guard":
            order[""].append(name)
            continue
        before = [each for each in imported(name) if name not in loaded_with(each)]
        order[max(before, key=lambda each: (len(loaded_with(each)), each), default="")].append(name)
    return dict(order)


def test_imports_point_down_and_each_library_has_its_door() -> None:
    ended = run("-c", LINT, "--no-cache")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_module_can_be_imported_alone() -> None:
    order = following()
    assert sorted(name for names in order.values() for name in names) == sorted(modules())
    assert len(order[""]) < len(modules()) / 4
    chosen = {**order, "": list(some(order[""]))}
    ended = run("-W", "error", "-c", IMPORT_EACH_ALONE, stdin=json.dumps(chosen))
    assert ended.returncode == 0, ended.stdout + ended.stderr
