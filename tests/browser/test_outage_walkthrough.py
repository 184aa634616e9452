"""An outage from the operator's point of view: seen, alerted, explained, acted upon, and still on record after a
restart.

Everything is a process of its own, as users run it: the provider, the gateway, the browser, the command line.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.admin_client import look
from tests.browser.conftest import Opens
from tests.chaos.lag import measured
from tests.chaos.process import serving
from tests.chaos.stand import config_text
from tests.chaos.wire import ask
from tests.fakes.provider import ScriptedProvider, whole
from tests.fakes.waiting import eventually
from tests.tokens import SHARED

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
CALL = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}).encode()
SEEN_WITHIN_S = 2.0
COMMAND = (sys.executable, "-m", "llm_guard")
PATHS = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)), "LLM_GUARD_OPS_TOKEN": SHARED}


@asynccontextmanager
async def mock() -> AsyncIterator[str]:
    """Runs `llm-guard mock` and yields its URL."""
    process = await asyncio.create_subprocess_exec(*COMMAND, "mock", "--port", "0", stderr=PIPE, env=PATHS)
    assert process.stderr is not None
    try:
        yield (await process.stderr.readline()).decode().split()[-1]
    finally:
        process.terminate()  # SIGINT is ignored by processes of a background job
        await process.wait()


@asynccontextmanager
async def traffic(url: str) -> AsyncIterator[None]:
    """Makes thirty calls a second."""

    async def flow() -> None:
        while True:
            await ask(url, "/v1/chat/completions", CALL)
            await asyncio.sleep(0.03)

    flowing = asyncio.create_task(flow())
    try:
        yield
    finally:
        flowing.cancel()
        await asyncio.gather(flowing, return_exceptions=True)


async def explained(url: str, call_id: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "explain", call_id, "--url", url, "--plain", stdout=PIPE, env=PATHS
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()


async def test_operator_sees_an_outage_is_alerted_finds_the_cause_acts_and_finds_it_in_the_audit_log(
    opens: Opens, tmp_path: Path
) -> None:
    taken = [whole(200)] * 20
    async with mock() as provider, ScriptedProvider(*([step] for step in taken)) as team:
        config = config_text(
            provider,
            breaker={"consecutive_failures": 5, "open_for": "60s", "min_calls": 20},
            ops={"store": str(tmp_path), "webhooks": [{"url": team.url, "name": "team"}]},
        )
        async with serving(tmp_path / "config.yaml", config) as gateway, opens() as window:
            page = await window.open(gateway.url)
            tile = page.locator(".tile", has=page.locator("h3", has_text=re.compile("^one/gpt$")))
            async with traffic(gateway.url):
                await expect(page.locator("#models")).to_contain_text("100 %")

                # The outage begins and is visible.
                await ask(provider, "/mock/faults", b'{"model": "gpt", "faults": "status:503"}')
                with measured() as lag:
                    began_at = time.monotonic()
                    await expect(tile.locator(".state")).to_contain_text("Open")
                    await expect(page.locator("#status-state")).not_to_have_text("Healthy")
                    assert time.monotonic() - began_at < SEEN_WITHIN_S + lag.total_s

                # One alert is sent.
                await eventually(lambda: any(b"success_rate" in each for each in team.requests), within_s=20)
                await asyncio.sleep(2)
                told = [
                    alert["state"]
                    for request in team.requests
                    for alert in json.loads(request.split(b"\r\n\r\n", 1)[1])["alerts"]
                    if alert["alert"] == "success_rate"
                ]
                assert told == ["firing"]

            # The cause is one click or one command away.
            await page.locator("#calls button", has_text="one/gpt").first.click()
            dialog = page.locator("dialog#call")
            await expect(dialog).to_contain_text("503")
            call_id = re.search("lg-[0-9a-f]{20}", await dialog.inner_text())
            assert call_id is not None
            assert "503" in await explained(gateway.url, call_id[0])
            await dialog.get_by_role("button", name="Close").click()

            # The operator acts.
            await tile.get_by_role("button", name="Force open").click()
            await page.get_by_label("Reason").fill("the provider is down")
            await page.get_by_label("Your name").fill("ada")
            await page.locator("#act-do").click()
            await expect(tile.locator(".state")).to_contain_text("Forced open")
            window.expected = ("Failed to load resource", "ERR_CONNECTION_REFUSED", "net::")

        async with serving(tmp_path / "config.yaml", config) as gateway:
            (entry,) = json.loads((await look(gateway.url, "/admin/audit")).text)
            assert (entry["action"], entry["target"], entry["reason"]) == (
                "breakers.force-open",
                "one/gpt",
                "the provider is down",
            )
            assert entry["actor"].startswith("operator (ada) from 127.0.0.1")
