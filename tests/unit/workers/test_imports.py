"""A gateway with one process needs nothing of what several need, nor of the other commands."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.unit.workers.test_merging import CONFIG

UNUSED = ("llm_guard.workers", "llm_guard.fleet", "llm_guard.mock", "llm_guard.cli.bench", "llm_guard.cli.chaos")


def test_gateway_with_one_process_loads_nothing_of_workers_and_other_commands() -> None:
    code = (
        "import sys, asyncio; from llm_guard.app import create_app; from llm_guard.config import parse_config; "
        "import llm_guard.cli.main; "
        f"app = create_app(parse_config({json.dumps(CONFIG)!r}, 'test.yaml', {{}})); "
        "run = asyncio.Runner(); run.run(app.start()); run.run(app.stop()); "
        f"print(sorted(name for name in sys.modules if name.startswith({UNUSED})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
