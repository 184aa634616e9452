"""Runs a gateway in the test's own event loop, from a config given as a mapping, with access to its metrics and
logs."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from llm_guard.app import App, create_app
from llm_guard.config import Config, parse_config
from llm_guard.resilience.circuit_breaker.breaker import BreakerSnapshot
from llm_guard.routing.deployment import Deployment
from tests.chaos.lag import Lag, measured
from tests.chaos.wire import fetch
from tests.fakes.provider import ScriptedProvider, Step
from tests.fakes.waiting import eventually
from tests.tokens import OPS

Section = Mapping[str, Any]

CLOSE_S = 0.1
"""Seconds within which a provider sees that an exchange was aborted."""
_ALERTS = {"loop_lag": "off", "group_wait": "0s"}

ANSWER_S = 0.25
"""Seconds after a limit within which the client has its response."""


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
    """Builds a config (JSON is YAML) with the models `gpt` and `claude`, both served at `url`.

    Defaults: no retries, no breaker opens, every limit is 5 s, the admin tokens are those of `tests.tokens`, and no
    alert depends on how busy the machine is or waits for others.
    """
    limits = {"connect": "5s", "first_token": "5s", "idle": "5s", "attempt": "5s", "total": "5s"}
    config = {
        "server": {"port": 0, "drain": "200ms", **(server or {})},
        "ops": {**_operators(ops or {}), "alerts": {**_ALERTS, **(ops or {}).get("alerts", {})}},
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


def _operators(ops: Section) -> Section:
    return ops if ops.keys() & {"token", "tokens"} else {**OPS, **ops}


def config_of(url: str, **sections: Any) -> Config:
    """Parses the result of `config_text`."""
    return parse_config(config_text(url, **sections), "test.yaml", {})


@dataclass(slots=True)
class Stand:
    """A running gateway."""

    app: App
    log: list[MutableMapping[str, Any]]
    """Every log line since the start."""
    lag: Lag

    @property
    def lag_s(self) -> float:
        """How late the loop was in total, which bounds the precision of any measurement. A test that uses it fails if
        the process has blocked the loop for longer than `LONGEST_BLOCK_S` at once."""
        return self.lag.total_s

    @property
    def url(self) -> str:
        return self.app.addresses[0]

    @property
    def held_bytes(self) -> int:
        """Bytes of responses that the gateway itself holds: received from upstreams and not read, or written and not
        yet accepted by the kernel."""
        clients = [connection for _, listener in self.app._listeners for connection in listener._connections]
        unread = sum(connection.unread for connection in self.app._connections._living)
        return unread + sum(client.unsent_bytes for client in clients)

    async def metric(self, name: str, **labels: str) -> float:
        """Sums all samples that have at least these labels, once every call has been recorded."""
        await self.idle()
        return total((await fetch(f"{self.url}/metrics")).text, name, **labels)

    async def idle(self) -> None:
        """Returns once no call is in flight."""
        await eventually(lambda: self.app.gateway.running == 0)

    async def calls(self) -> list[MutableMapping[str, Any]]:
        """Returns the log lines of all calls, once there is one and none is in flight."""
        await eventually(lambda: any(line["event"] == "call" for line in self.log))
        await self.idle()
        return [line for line in self.log if line["event"] == "call"]

    def deployment(self, label: str) -> Deployment:
        return next(each for each in self.app.gateway.deployments() if each.label == label)

    def breaker(self, label: str) -> BreakerSnapshot:
        return self.deployment(label).breaker.snapshot(time.monotonic())


def total(metrics: str, name: str, **labels: str) -> float:
    """Sums the samples of a Prometheus text that have at least these labels. Parses their lines alone: the whole page
    would take longer than most tests."""
    lines = [line for line in metrics.splitlines(keepends=True) if line.startswith(name)]
    return sum(
        sample.value
        for family in text_string_to_metric_families("".join(lines))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def connections_to(url: str) -> int:
    """Counts this process's open connections to a provider."""
    port = int(url.rsplit(":", 1)[1])
    return sum(_peer_port(int(fd)) == port for fd in os.listdir("/dev/fd"))


def _peer_port(fd: int) -> int | None:
    """Returns the port of a socket's peer. Queries the socket itself: after thousands of connections the system's table
    is long."""
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
    """Runs a gateway with this config."""
    with capture_logs() as log:
        app = create_app(config)
        await app.start()
        try:
            with measured() as lag:
                yield Stand(app, log, lag)
        finally:
            if not app.gateway.is_closed:  # a second stop takes two seconds
                await app.stop()


@asynccontextmanager
async def facing(*scripts: Sequence[Step], **sections: Any) -> AsyncIterator[tuple[Stand, ScriptedProvider]]:
    """Runs a gateway in front of a provider that plays these scripts, one per request."""
    async with ScriptedProvider(*scripts) as provider, standing(config_of(provider.url, **sections)) as stand:
        yield stand, provider
