"""Alerts sent to a real Alertmanager."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llm_guard.clock import SystemClock
from llm_guard.config import WebhookConfig
from llm_guard.webhooks.alert_webhook import Webhook
from llm_guard.webhooks.client import WebhookClient
from llm_guard.webhooks.payloads import Notice
from tests.chaos.wire import ask
from tests.fakes.waiting import eventually
from tests.tools import need

SETTINGS = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


@pytest.fixture
async def alertmanager(tmp_path: Path) -> AsyncIterator[str]:
    program = need("prometheus-alertmanager")
    (tmp_path / "am.yml").write_text(SETTINGS)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={tmp_path}/am.yml",
        f"--storage.path={tmp_path}/data",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await wait_ready(f"http://{address}")
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


async def wait_ready(url: str) -> None:
    async with asyncio.timeout(20):
        while not await is_ready(url):  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.02)


async def is_ready(url: str) -> bool:
    try:
        return (await ask(url, "/-/ready", method="GET")).status == 200
    except OSError:
        return False


async def active(url: str) -> list[dict[str, Any]]:
    reply = await ask(url, "/api/v2/alerts?active=true", method="GET")
    found: list[dict[str, Any]] = reply.json
    return found


def notice(state: Any, since: float, at: float) -> Notice:
    return Notice("1-1", state, "success_rate", "critical", "gpt", "gpt: 80 %", 0.8, 0.95, since, at)


async def test_alert_is_active_until_it_is_resolved(alertmanager: str) -> None:
    clock, client = SystemClock(), WebhookClient()
    config = WebhookConfig(url=alertmanager, format="alertmanager")
    webhook = Webhook(config, client.post, "host-1", clock, lambda: 0.5)
    webhook.start()
    since = clock.wall() - 60
    try:
        webhook.offer(notice("firing", since, since))
        await eventually(lambda: webhook.view().delivered == 1)
        (first,) = await active(alertmanager)
        assert first["labels"]["alertname"] == "llm_guard_success_rate"
        assert first["annotations"]["summary"] == "gpt: 80 %"
        await asyncio.sleep(0.005)  # instants are in milliseconds
        webhook.remind(notice("firing", since, since))
        await eventually(lambda: webhook.view().delivered == 2)
        (again,) = await active(alertmanager)
        assert again["fingerprint"] == first["fingerprint"], "it is the same alert"
        assert again["endsAt"] > first["endsAt"]
        webhook.offer(notice("resolved", since, clock.wall()))
        await eventually(lambda: webhook.view().delivered == 3)
        assert await active(alertmanager) == []
    finally:
        await webhook.stop(1.0)
        await client.close()
