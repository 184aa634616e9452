"""A gateway in the test's own loop, its config as a mapping, and what it has counted and logged.

Owns how it is started, looked into and stopped. Does not own providers (`tests.fakes.provider`), nor a single
expectation.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from llm_guard.app import App, create_app
from llm_guard.config import Config, parse_config
from llm_guard.deployment import Deployment
from llm_guard.policy.breaker import BreakerSnapshot
from tests.chaos.lag import Lag
from tests.chaos.wire import fetch
from tests.fakes.provider import ScriptedProvider, Step
from tests.fakes.waiting import eventually
from tests.tokens import OPS

Section = Mapping[str, Any]

CLOSE_S = 0.1
"""Within this a provider sees that an exchange was given up."""
ANSWER_S = 0.25
"""Within this after a limit the client has its answer."""


def config_text(
    url: str,
    *,
    timeout: Section | None = None,
    retry: Section | None = None,
    breaker: Section | None = None,
    stream: Section | None = None,
    models: Section | None = None,
    upstreams: Section | None = None,
    server: Section | None = None,
    ops: Section | None = None,
    engines: Section | None = None,
    defaults: Section | None = None,
    answers: str = "strict",
) -> str:
    """A config (JSON is YAML) with the models `gpt` and `claude`, both served at `url`.

    Without a word to the contrary nothing is retried, no breaker opens, every limit is 5 s, and the tokens are those of
    `tests.tokens`.
    """
    limits = {"connect": "5s", "first_token": "5s", "idle": "5s", "attempt": "5s", "total": "5s"}
    config = {
        "server": {"port": 0, "drain": "200ms", **(server or {})},
        "ops": dict(ops or {}) if {"token", "tokens"} & set(ops or ()) else {**OPS, **(ops or {})},
        "upstreams": {
            "one": {"dialect": "openai", "base_url": f"{url}/v1", "answers": answers},
            "two": {"dialect": "anthropic", "base_url": url, "answers": answers},
            **(upstreams or {}),
        },
        "engines": dict(engines or {}),
        "defaults": {
            "timeout": {**limits, **(timeout or {})},
            "retry": {
                "max_attempts": 1, "base_delay": "5ms", "budget": {"ratio": 1, "min_per_second": 1000}, **(retry or {}),
            },
            "breaker": {"consecutive_failures": 1000, "min_calls": 10_000, **(breaker or {})},
            "stream": dict(stream or {}),
            **(defaults or {}),
        },
        "models": {
            "gpt": {"deployments": [{"upstream": "one"}]},
            "claude": {"deployments": [{"upstream": "two"}]},
            **(models or {}),
        },
    }  # fmt: skip
    return json.dumps(config)


def config_of(url: str, **sections: Any) -> Config:
    """`config_text`, read."""
    return parse_config(config_text(url, **sections), "test.yaml", {})


@dataclass(slots=True)
class Stand:
    """A running gateway."""

    app: App
    log: list[MutableMapping[str, Any]]
    """Every log line since the start."""
    lag: Lag = field(default_factory=Lag)

    @property
    def lag_s(self) -> float:
        """How late the loop was in all: what is measured cannot be finer. A test that uses it fails where the process
        has blocked the loop for longer than `LONGEST_BLOCK_S` at once."""
        return self.lag.total_s

    @property
    def url(self) -> str:
        return self.app.addresses[0]

    @property
    def held_bytes(self) -> int:
        """What the gateway itself holds of answers: received from upstreams and not read, or written and not yet
        taken by the kernel."""
        clients = [each for _, listener in self.app._listeners for each in listener._connections]
        unread = sum(each.unread for each in self.app._connections._living)
        return unread + sum(each.unsent_bytes for each in clients)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples with these labels, among others, once every call has been recorded."""
        await self.idle()
        return total((await fetch(f"{self.url}/metrics")).text, name, **labels)

    async def idle(self) -> None:
        """Returns when no call is in flight."""
        await eventually(lambda: self.app.gateway.running == 0)

    async def calls(self) -> list[MutableMapping[str, Any]]:
        """The log lines of all calls, once there is one and none is in flight."""
        await eventually(lambda: any(line["event"] == "call" for line in self.log))
        await self.idle()
        return [line for line in self.log if line["event"] == "call"]

    def deployment(self, label: str) -> Deployment:
        return next(each for each in self.app.gateway.deployments() if each.label == label)

    def breaker(self, label: str) -> BreakerSnapshot:
        return self.deployment(label).breaker.snapshot(time.monotonic())


def total(metrics: str, name: str, **labels: str) -> float:
    """The sum over the samples of a Prometheus text that have these labels, among others."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def connections_to(url: str) -> int:
    """How many living connections this process has to a provider."""
    port = int(url.rsplit(":", 1)[1])
    return sum(_peer_port(int(fd)) == port for fd in os.listdir("/dev/fd"))


def _peer_port(fd: int) -> int | None:
    """Asked of the socket itself: the system's table of connections is long after a test of thousands of them."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        with socket.socket(fileno=os.dup(fd)) as one:
            peer = one.getpeername()
    except OSError:
        return None
    return int(peer[1]) if isinstance(peer, tuple) else None


@asynccontextmanager
async def standing(config: Config) -> AsyncIterator[Stand]:
    """A gateway of this config."""
    with capture_logs() as log:
        app = create_app(config)
        await app.start()
        stand = Stand(app, log)
        stand.lag.start()
        try:
            yield stand
            stand.lag.check()
        finally:
            stand.lag.stop()
            await app.stop()


@asynccontextmanager
async def facing(*scripts: Sequence[Step], **sections: Any) -> AsyncIterator[tuple[Stand, ScriptedProvider]]:
    """A gateway before a provider that plays these scripts, one for each request."""
    async with ScriptedProvider(*scripts) as provider, standing(config_of(provider.url, **sections)) as stand:
        yield stand, provider
