"""A real Prometheus scrapes a running gateway with the scrape config and the rules of config/."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import yaml

from llm_guard.mock.provider import MockProvider
from tests.chaos.stand import Section, Stand, config_of, standing
from tests.chaos.wire import ask
from tests.tools import need

CONFIG = Path(__file__).parents[2] / "config" / "prometheus"
BODY = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]}).encode()
WITHIN_S = 30.0
"""Prometheus sends no notification of what it has scraped, so tests poll it for at most this many seconds."""
CALLS = 40


class Prometheus:
    """A client of Prometheus's HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def is_ready(self) -> bool:
        try:
            return (await ask(self.url, "/-/ready", method="GET")).status == 200
        except OSError:
            return False

    async def api(self, path: str, **query: str) -> Any:
        reply = await ask(self.url, f"/api/v1/{path}?{urlencode(query)}", method="GET")
        assert reply.status == 200, reply.text
        return json.loads(reply.body)["data"]

    async def value(self, query: str) -> float | None:
        """Returns the value of the one sample that the query yields, None if there is none."""
        found = (await self.api("query", query=query))["result"]
        return float(found[0]["value"][1]) if found else None

    async def firing(self) -> dict[str, dict[str, Any]]:
        alerts = (await self.api("alerts"))["alerts"]
        return {alert["labels"]["alertname"]: alert for alert in alerts if alert["state"] == "firing"}

    async def until(self, is_so: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not await is_so():  # noqa: ASYNC110 - what is waited for knows no event
                await asyncio.sleep(0.05)


@asynccontextmanager
async def watching(
    gateway: str, folder: Path, change: Callable[[str], str] = str, beside: Sequence[str] = ()
) -> AsyncIterator[Prometheus]:
    """Runs Prometheus with our config, scraping this gateway, and those beside it, twice a second. `change` is applied
    to the rules' text."""
    config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [
        url.removeprefix("http://") for url in (gateway, *beside)
    ]
    del config["alerting"]  # there is no Alertmanager here
    (folder / "rules").mkdir()
    for rules in (CONFIG / "rules").glob("*.yml"):
        (folder / "rules" / rules.name).write_text(change(rules.read_text()))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            need("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--enable-feature=exemplar-storage",
            stdout=log,
            stderr=log,
        )
        try:
            prometheus = Prometheus(f"http://127.0.0.1:{await port_of(process, folder)}")
            await prometheus.until(prometheus.is_ready)
            yield prometheus
        finally:
            if process.returncode is None:
                process.kill()  # its stored data is not needed
            await process.wait()


async def port_of(process: Process, folder: Path) -> int:
    """Waits until Prometheus listens and returns the port that the system chose."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            assert process.returncode is None, (folder / "log").read_text()
            listening = [each for each in psutil.Process(process.pid).net_connections() if each.status == "LISTEN"]
            if listening:
                return int(listening[0].laddr.port)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def watched(folder: Path, **sections: Section) -> AsyncIterator[tuple[Prometheus, Stand, MockProvider]]:
    """Runs a mock provider, a gateway with this config and Prometheus."""
    async with (
        MockProvider() as provider,
        standing(config_of(provider.url, **sections)) as stand,
        watching(stand.url, folder) as prometheus,
    ):
        yield prometheus, stand, provider


async def call(stand: Stand) -> int:
    return (await ask(stand.url, "/v1/chat/completions", BODY, {"content-type": "application/json"})).status


async def test_outage_fires_the_rules_of_a_real_prometheus(tmp_path: Path) -> None:
    breaker = {"consecutive_failures": 5, "min_calls": 5, "open_for": "60s"}
    async with watched(tmp_path, breaker=breaker) as (prometheus, stand, provider):
        for _ in range(CALLS):
            assert await call(stand) == 200

        async def has_seen_all() -> bool:
            return await prometheus.value('llm_guard_calls_total{model="gpt",outcome="ok"}') == CALLS

        await prometheus.until(has_seen_all)
        assert await prometheus.value('up{job="llm-guard"}') == 1
        assert await prometheus.firing() == {}

        provider.switch("gpt", "status:500")

        async def is_alerting() -> bool:
            assert await call(stand) in (500, 503)  # the outage must go on, so that its count grows between scrapes
            return {"LlmGuardBreakerOpened", "LlmGuardErrorBudgetBurnsFast"} <= set(await prometheus.firing())

        await prometheus.until(is_alerting)
        alerts = await prometheus.firing()
        assert alerts["LlmGuardBreakerOpened"]["labels"]["deployment"] == "one/gpt"
        assert alerts["LlmGuardBreakerOpened"]["annotations"]["summary"] == "one/gpt: its breaker opened"
        assert alerts["LlmGuardErrorBudgetBurnsFast"]["labels"]["model"] == "gpt"
        assert (await prometheus.value('llm_guard_breaker_state{deployment="one/gpt",state="open"}')) == 1


async def test_slow_bucket_leads_to_the_call_in_the_log(tmp_path: Path) -> None:
    async with watched(tmp_path) as (prometheus, stand, _):
        assert await call(stand) == 200
        [line] = await stand.calls()

        async def examples() -> Any:
            asked = {"query": "llm_guard_call_duration_seconds_bucket", "start": "0", "end": "9999999999"}
            return await prometheus.api("query_exemplars", **asked)

        await prometheus.until(examples)
        [series] = await examples()
        [example] = series["exemplars"]
        assert example["labels"] == {"request_id": line["request_id"]}
        assert float(example["value"]) > 0
