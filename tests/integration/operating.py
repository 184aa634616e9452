"""Admin API requests of an operator to a test's gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from llm_guard.app import App, create_app
from llm_guard.config import load_config
from tests.chaos.lag import measured
from tests.chaos.stand import Stand
from tests.chaos.wire import Reply, ask
from tests.tokens import NAMED, bearer

HERE = {"host": "localhost", **bearer(NAMED["ann"])}


async def get(url: str, path: str) -> Any:
    """Fetches /admin/`path` and decodes it."""
    reply = await ask(url, f"/admin/{path}", headers=HERE, method="GET")
    assert reply.status == 200, reply.text
    return reply.json


async def post(url: str, path: str, **body: object) -> Reply:
    """Posts a change to /admin/`path`, with a reason unless `reason` overrides it."""
    said = {name.rstrip("_"): value for name, value in {"reason": "an outage", **body}.items() if value is not ...}
    return await ask(url, f"/admin/{path}", json.dumps(said).encode(), HERE)


async def change(url: str, path: str, **body: object) -> Any:
    """Posts a change that must succeed and be recorded in the audit trail."""
    reply = await post(url, path, **body)
    assert reply.status == 200, reply.text
    assert reply.json["audited"], reply.text
    return reply.json


async def audit(url: str) -> list[tuple[str, str, str, str]]:
    """Returns the audit trail as (actor, action, target, reason), newest first."""
    return [(each["actor"], each["action"], each["target"], each["reason"]) for each in await get(url, "audit")]


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Stand]:
    """Runs a gateway on this config file, which it watches."""
    with capture_logs() as log:
        app: App = create_app(load_config(path), path=path)
        await app.start()
        try:
            with measured() as lag:
                yield Stand(app, log, lag)
        finally:
            await app.stop()
