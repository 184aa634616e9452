"""The operator's side as a whole: its parts, built once, and their pages.

Owns what is put together here, and its life: start, reload, stop. Does not own any of the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.gateway.counters import CallCounters
from llm_guard.gateway.listener import Listener
from llm_guard.gateway.reply import Reply
from llm_guard.gateway.request import Request
from llm_guard.gateway.server import Gateway
from llm_guard.ops.guard import Guard
from llm_guard.ops.journal import Journal
from llm_guard.ops.metrics import CONTENT_TYPE, StateCollector, new_registry, render
from llm_guard.ops.pages import TEXT, Answer, Asked, Page
from llm_guard.ops.site import Site
from llm_guard.ops.watch import Watch


@dataclass(frozen=True, slots=True)
class Running:
    """The gateway, as far as operators see it and act on it."""

    gateway: Gateway
    counters: CallCounters
    listeners: Callable[[], list[Listener]]
    """The one for calls first."""
    clock: Clock


class OperatorSide:
    """`start()` when the listeners accept; `adopt` at a reload; `await stop()`."""

    def __init__(self, config: Config, running: Running) -> None:
        self._running = running
        self.journal = Journal(running.clock)
        self.state = StateCollector(running.gateway.deployments, running.clock)
        self._registry = self._new_registry()
        self._watch = Watch([], running.clock)
        self._site = Site(self._pages(), self._guard(config))

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answers one request for one of the operator's paths."""
        await self._site.serve(request, reply)

    def start(self) -> None:
        self._watch.start()

    def adopt(self, config: Config) -> None:
        """From now on these settings hold."""
        self._site.guard = self._guard(config)

    async def stop(self) -> None:
        self._watch.stop()

    def _new_registry(self) -> CollectorRegistry:
        registry = new_registry()
        registry.register(self._running.counters)
        registry.register(self.state)
        return registry

    def _guard(self, config: Config) -> Guard:
        return Guard(config.ops, (config.server.host, config.ops.host))

    def _pages(self) -> list[Page]:
        return [
            Page("GET", "/healthz", "Liveness: depends on nothing but the event loop.", _alive, is_open=True),
            Page("GET", "/readyz", "Readiness: whether new calls are welcome.", self._ready, is_open=True),
            Page("GET", "/metrics", "For Prometheus.", self._metrics, is_open=True),
        ]

    async def _ready(self, _asked: Asked) -> Answer:
        if self._running.gateway.is_leaving:
            return Answer(b"draining\n", TEXT, 503)
        return Answer(b"ready\n", TEXT)

    async def _metrics(self, _asked: Asked) -> Answer:
        return Answer(render(self._registry), CONTENT_TYPE)


async def _alive(_asked: Asked) -> Answer:
    return Answer(b"ok\n", TEXT)
