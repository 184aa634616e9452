"""A gateway with a model for each of its abilities, and clients that call all of them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_guard.mock.provider import MockProvider
from tests.chaos.process import Served, serving
from tests.chaos.wire import ask
from tests.fakes.redis_server import RedisServer
from tests.integration.test_engines import free_port
from tests.integration.worker_processes import Stand as WorkerStand
from tests.integration.worker_processes import gateway as gateway_with_workers
from tests.tokens import OPS

ROOT = Path(__file__).parents[2]
CLIENT, LIMITED = "key-of-the-client-in-tests", "key-of-a-limited-client-in-tests"
_KEY = base64.b64encode(bytes(32)).decode()
_NOT_WAITED = (OSError, asyncio.IncompleteReadError)


@dataclass(slots=True)
class Outage:
    """The gateway and everything that an outage breaks."""

    served: Served
    config: Path
    one: MockProvider
    two: MockProvider
    redis: RedisServer
    workers: WorkerStand
    """Another gateway, with two workers."""
    calling: list[asyncio.Task[None]] = field(default_factory=list)

    def keep_calling(self, model: str, *, each_s: float = 0.1, **more: Any) -> None:
        self.calling.append(asyncio.create_task(self._keep_calling(model, each_s, more), name=model))

    def stop_calling(self, model: str | None = None) -> None:
        """Ends the calls of one model, or everything that goes on."""
        for task in self.calling:
            if model in (None, task.get_name()):
                task.cancel()

    async def _keep_calling(self, model: str, each_s: float, more: dict[str, Any]) -> None:
        while True:
            await self.call(model, **more)
            await asyncio.sleep(each_s)

    async def call(
        self,
        model: str,
        *,
        stream: bool = False,
        key: str = CLIENT,
        text: str = "hi",
        headers: Sequence[str] = (),
        **fields: Any,
    ) -> int:
        """Sends one call and returns its status; 0 if the gateway is gone."""
        said = [{"role": "user", "content": text}]
        body = {"model": model, "messages": said, "stream": stream, "max_tokens": 20, **fields}
        sent = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        sent |= dict(header.split(": ") for header in headers)
        try:
            return (await ask(self.served.url, "/v1/chat/completions", json.dumps(body).encode(), sent)).status
        except _NOT_WAITED:
            return 0


@asynccontextmanager
async def standing(folder: Path) -> AsyncIterator[Outage]:
    """Runs the gateway, its providers, its engine and its Redis."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(MockProvider())
        two = await stack.enter_async_context(MockProvider())
        redis = RedisServer(folder)
        redis.start()
        stack.callback(redis.kill)
        path = folder / "llm_guard.yaml"
        text = json.dumps(_config(one.url, two.url, redis.url, folder))
        served = await stack.enter_async_context(serving(path, text))
        (folder / "workers").mkdir()
        workers = await stack.enter_async_context(gateway_with_workers(folder / "workers"))
        outage = Outage(served, path, one, two, redis, workers)
        try:
            yield outage
        finally:
            outage.stop_calling()
            await asyncio.gather(*outage.calling, return_exceptions=True)


def _config(one: str, two: str, redis: str, folder: Path) -> dict[str, Any]:
    port = free_port()
    probe = {"kind": "health", "interval": "300ms", "timeout": "1s", "max_failures": 2}
    keyed = {"dialect": "openai", "api_key": "sk-of-the-gateway"}
    return {
        "server": {
            "port": 0, "drain": "200ms",
            "client_keys": [
                {"name": "app", "key": CLIENT},
                {"name": "limited", "key": LIMITED, "limits": {"rate": 2, "tokens_per_minute": 100_000}},
            ],
        },
        "ops": {**OPS, "store": str(folder / "state"), "alerts": {"group_wait": "0s"}, "chaos": True},
        "store": {
            "encryption_key": _KEY,
            "cache": {"kind": "redis", "size": "64KiB"},
            "calls": {"kind": "redis"}, "dead_letters": {"bodies": "encrypted"},
            "webhooks": [{"name": "team", "url": f"{two}/v1/chat/completions"}],
        },
        "fleet": {"store": redis},
        "upstreams": {
            "one": {**keyed, "base_url": f"{one}/v1", "probe": probe, "prefill": "plain"},
            "unused": {**keyed, "base_url": f"{one}/v1", "probe": probe},  # a call that succeeds outweighs a probe
            "two": {**keyed, "base_url": f"{two}/v1", "prefill": "plain"},
            "other": {**keyed, "dialect": "anthropic", "base_url": two},
            "paid": {**keyed, "base_url": f"{one}/v1", "api_keys": ["sk-first", "sk-second"], "api_key": None},
            "local": {**keyed, "base_url": f"http://127.0.0.1:{port}/v1", "probe": probe},
        },
        "engines": {"e": _engine(port)},
        "defaults": {
            "timeout": {"connect": "1s", "first_token": "500ms", "idle": "1s", "attempt": "1s", "total": "5s"},
            "retry": {"max_attempts": 3, "base_delay": "20ms", "budget": {"ratio": 1, "min_per_second": 1000}},
            "breaker": {"sensitivity": "literal", "consecutive_failures": 20, "early_probes": False, "open_for": "2s"},
        },
        "models": _models(),
    }  # fmt: skip


def _engine(port: int) -> dict[str, Any]:
    argv = [sys.executable, "-m", "llm_guard", "mock", "--port", str(port)]
    return {
        "upstreams": ["local"],
        "command": {"argv": argv, "env": {"PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}},
        "start_timeout": "20s",
        "restart": {"preset": "demo", "base_delay": "100ms", "max_delay": "200ms", "max_attempts": 10},
    }


def _models() -> dict[str, Any]:
    one, two = {"upstream": "one"}, {"upstream": "two"}
    later = {"static_response": "later", "min_calls": 5, "window": "5s"}
    return {
        "main": {"deployments": [{**one, "probe": {"interval": "1s"}}], "fallbacks": ["spare"]},
        "spare": {"deployments": [two]},
        "alone": {"deployments": [one]},
        "unused": {"deployments": [{"upstream": "unused"}]},
        "streamed": {"deployments": [one, two]},
        "retried": {
            "deployments": [one], "breaker": {"state": "disabled"},
            "retry": {"max_attempts": 8, "base_delay": "5ms", "adaptive": False},
        },
        "buffered": {"deployments": [one, two], "stream": {"prebuffer": {"tokens": 6, "time": "1s"}}},
        "hedged": {"deployments": [one, two], "hedge": {"after": "100ms", "max_extra": 1}},
        "narrow": {"deployments": [two], "capacity": {"concurrency": 1, "queue_timeout": "2s"}},
        "cached": {"deployments": [one], "cache": {"ttl": "1s", "stale_if_error": "1h", "shared": True}},
        "replaced": {"deployments": [one], "degraded": later},
        "replaced-too": {"deployments": [one], "degraded": later},
        "kept": {"deployments": [one], "dead_letter": "always", "retry": {"max_attempts": 1},
                 "breaker": {"state": "disabled"}},
        "deferred": {"deployments": [two], "deferred": {"webhook": "team"}},
        "paid": {"deployments": [{"upstream": "paid"}]},
        "translated": {"deployments": [{"upstream": "other"}]},
        "local": {"deployments": [{"upstream": "local"}]},
    }  # fmt: skip
