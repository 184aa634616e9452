"""A gateway with one process needs nothing of what several need."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.unit.workers.test_merging import CONFIG


def test_gateway_with_one_process_loads_nothing_of_workers() -> None:
    code = (
        "import sys, asyncio; from llm_guard.app import create_app; from llm_guard.config import parse_config; "
        "import llm_guard.cli.main; "
        f"app = create_app(parse_config({json.dumps(CONFIG)!r}, 'test.yaml', {{}})); "
        "run = asyncio.Runner(); run.run(app.start()); run.run(app.stop()); "
        "print(sorted(name for name in sys.modules if name.startswith(('llm_guard.workers', 'llm_guard.fleet'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
