"""A gateway without calls, with everything switched on, waits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.chaos.forms import CHAT
from tests.chaos.stand import facing
from tests.integration.test_engines import free_port

IDLE_S = 0.5
MOST_PROCESSOR_S = 0.25


async def test_idle_gateway_hardly_uses_the_processor(tmp_path: Path) -> None:
    """Processor time, so that a busy machine does not matter."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    ops = {
        "store": str(tmp_path),
        "webhooks": [{"name": "team", "url": f"{nowhere}/alerts", "secret": "0123456789abcdef"}],
    }
    probed = {"one": {"dialect": "openai", "base_url": f"{nowhere}/v1", "probe": {"interval": "1s"}}}
    rules = {"cache": {"ttl": "1m"}, "dead_letter": "always", "deferred": {"mode": "on_failure"}}
    async with facing(CHAT.ok, ops=ops, upstreams=probed, defaults=rules) as (stand, _):
        await CHAT.ask(stand.url)  # fails: the alerts and the deferred call have something to do
        before_s = time.process_time()
        await asyncio.sleep(IDLE_S)
        assert time.process_time() - before_s < MOST_PROCESSOR_S
