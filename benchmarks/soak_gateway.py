"""`python -m benchmarks.soak_gateway CONFIG`: a gateway as `llm-guard serve` runs it, which also reports its tasks.

For each line on standard input it writes one JSON object of counts to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from llm_guard.app import App, create_app
from llm_guard.clock import SystemClock
from llm_guard.config import load_config
from llm_guard.event_loop import run
from llm_guard.log import configure_logging


def counts(app: App, now: float) -> dict[str, int]:
    """Counts of what the process holds: tasks of any kind, calls, attempts, their slots, and calls that wait
    for one."""
    deployments = app.gateway.deployments()
    gates = [gate.snapshot(now) for deployment in deployments for gate in deployment.gates.all()]
    return {
        "tasks": len(asyncio.all_tasks()),
        "calls": app.gateway.running,
        "attempts": sum(deployment.gates.in_flight for deployment in deployments),
        "slots": sum(gate.in_flight for gate in gates),
        "waiting": sum(sum(gate.waiting.values()) for gate in gates),
    }


async def serve(path: Path) -> None:
    """Serves until a stop signal, and responds to standard input."""
    app = create_app(load_config(path), path=path)
    await app.start()
    app.handle_signals()
    clock = SystemClock()

    def on_line() -> None:
        if os.read(sys.stdin.fileno(), 1 << 12):
            print(json.dumps(counts(app, clock.now())), file=sys.stderr, flush=True)
        else:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), on_line)
    print(f"serves on {app.addresses[0]}", file=sys.stderr, flush=True)
    await app.run()


if __name__ == "__main__":
    log = configure_logging()
    try:
        run(serve(Path(sys.argv[1])))
    finally:
        log.close()
