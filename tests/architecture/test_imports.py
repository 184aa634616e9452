"""The import rules hold, and no module depends on another one having been imported before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = 12
"""Number of parts that can run in parallel."""

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
IMPORT_EACH_ALONE = """
import os, sys, types
import aiohttp.web, click, msgspec, prometheus_client, pydantic, structlog, yaml  # what is slow, and not the question
failed, running = 0, 0
for name in sys.argv[1:]:
    if running == os.cpu_count():
        failed += os.wait()[1] != 0
        running -= 1
    running += 1
    child = os.fork()
    if child == 0:
        if name != "llm_guard":  # whose __init__ would import all the others first
            bare = sys.modules["llm_guard"] = types.ModuleType("llm_guard")
            bare.__path__ = ["llm_guard"]
        try:
            __import__(name)
        except BaseException as error:
            print(f"{name}: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
for _ in range(running):
    failed += os.wait()[1] != 0
sys.exit(failed != 0)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: PLW1510 - the exit code is what is asked for
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def modules() -> list[str]:
    """Returns every module of the package except `__main__`, which runs when imported."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "llm_guard").rglob("*.py"))
    names = (".".join(path.parts).removesuffix(".__init__") for path in paths)
    return sorted(name for name in names if not name.endswith("__main__"))


def test_imports_point_down_and_each_library_has_its_door() -> None:
    ended = run("-c", LINT, "--no-cache")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("part", range(PARTS))
def test_every_module_can_be_imported_alone(part: int) -> None:
    names = modules()
    assert "llm_guard.proxy.attempts.attempt_loop" in names
    ended = run("-W", "error", "-c", IMPORT_EACH_ALONE, *names[part::PARTS])
    assert ended.returncode == 0, ended.stdout + ended.stderr
