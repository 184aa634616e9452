"""The list of metrics: name, type, labels and help text of each, as a running gateway declares them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from llm_guard import create_app
from llm_guard.admin.metrics.declaration import bound
from llm_guard.admin.metrics.exposition import Family, Histogram
from llm_guard.config import parse_config
from llm_guard.workers.worker_metrics import WORKER_METRICS, WorkerCounts

_CONFIG = """
server: {{port: 0}}
ops: {{store: {folder}, token: only-for-the-list-of-metrics}}
upstreams: {{openai: {{dialect: openai, base_url: "http://127.0.0.1:9"}}}}
models: {{"*": {{deployments: [{{upstream: openai}}]}}}}
"""


def families() -> list[Family | Histogram]:
    """Returns all metrics except those of the process, in the order of a call's life. Starts a gateway on a free port
    of this machine."""
    return asyncio.run(_families())


async def _families() -> list[Family | Histogram]:
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(parse_config(_CONFIG.format(folder=Path(folder)), "metrics.yaml", {}))
        await app.start()
        try:
            return [*app.ops.metrics.all, *bound(WORKER_METRICS, WorkerCounts(0, int, {}))]
        finally:
            await app.stop()


def page() -> str:
    """Returns a table of all metrics as Markdown."""
    rows = (f"| `{name_of(each)}` | {each.kind} | {', '.join(each.labels)} | {each.text} |" for each in families())
    return "\n".join(("| metric | type | labels | meaning |", "|---|---|---|---|", *rows))


def name_of(metric: Family | Histogram) -> str:
    """Returns the name as Prometheus shows it."""
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name
