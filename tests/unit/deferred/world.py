"""Deferred calls without sockets, disk or real time: the provider answers by script, and the store is in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

from structlog.testing import capture_logs

from llm_guard.config import parse_config
from llm_guard.deferred.intake import CallIntake
from llm_guard.deferred.service import DeferredService
from llm_guard.deferred.state import DeferredState
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.attempts.upstream_attempt import Upstreams
from llm_guard.proxy.cache.response_buffer import ResponseBuffer
from llm_guard.proxy.call import Attempt, Call, Headers, Opened
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.telemetry.recorder import CallCounters
from llm_guard.storage.calls.store import StoredCall
from llm_guard.webhooks.client import WebhookResult
from llm_guard.worker_thread import WorkerThread
from tests.chaos.stand import config_text
from tests.fakes.clock import SteppedClock, let_run
from tests.fakes.gateway import new_gateway
from tests.fakes.in_memory_store import InMemoryCallStore

OK = Opened(200, "OK", (("content-type", "application/json"), ("set-cookie", "a=b")), b'{"id":"good"}', None)
BUSY = Failure(FailureKind.OVERLOADED, "answered 503")
WRONG = Failure(FailureKind.INVALID_REQUEST, "answered 400")
CUT = Failure(FailureKind.NETWORK, "the connection was reset")
NO_KEY = Failure(FailureKind.AUTH, "answered 401")


class Provider:
    """Answers each exchange with the next outcome, and repeats the last one. Does not answer while `is_silent`."""

    def __init__(self, clock: SteppedClock) -> None:
        self.outcomes: list[Opened | Failure | Exception] = [OK]
        self.asked: list[Call] = []
        self.is_silent = False
        self._clock = clock

    async def open(self, call: Call, attempt: Attempt) -> Opened | Failure:
        self.asked.append(call)
        while self.is_silent:
            await self._clock.sleep(1.0)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def headers(self, name: str) -> list[str]:
        """Returns the values of this header in all requests so far."""
        return [value for call in self.asked for key, value in call.headers if key == name]


class AtOnce(WorkerThread):
    """A stand-in for the store's thread. While it `hangs`, one action is in progress and all others wait behind it."""

    def __init__(self) -> None:
        super().__init__("disk")
        self.hangs = False
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, act: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, partial(act, *args, **named)))
        if len(self._waiting) == 1:
            future.set_running_or_notify_cancel()
        if not self.hangs:
            self.go_on()
        return future

    def go_on(self) -> None:
        """Performs the waiting actions, except those that were cancelled while they waited."""
        self.hangs = False
        while self._waiting:
            future, act = self._waiting.pop(0)
            if not future.running() and not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(act())
            except Exception as error:  # noqa: BLE001  # raised at the caller
                future.set_exception(error)


class Hook:
    """A stand-in for a webhook's receiver."""

    def __init__(self) -> None:
        self.sent = WebhookResult(True)
        self.got: list[tuple[str, dict[str, str], bytes]] = []

    async def post(self, url: str, headers: Any, content: bytes, wall: float) -> WebhookResult:
        self.got.append((url, dict(headers), content))
        return self.sent

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(content) for _, _, content in self.got]


class World:
    """A gateway with deferred calls, its provider and its store."""

    def __init__(self, kept: InMemoryCallStore, **sections: Any) -> None:
        self.config = parse_config(self._text(sections), "test", {})
        self.clock = SteppedClock()
        self.provider = Provider(self.clock)
        self.counters = CallCounters()
        self.store = kept
        self.disk = AtOnce()
        self.hook = Hook()
        self.told: list[tuple[str, dict[str, Any]]] = []

        async def post(*request: Any) -> WebhookResult:
            return await self.hook.post(*request)  # a test may replace it

        state = DeferredState(kept, self._hear, self.clock)
        state.call_store._worker = self.disk
        self.running = state.running
        self.intake = CallIntake(self.config, state, self.clock, lambda: 0.5)
        self.gateway = new_gateway(
            self.config,
            self.clock,
            upstreams=cast("Upstreams", self.provider),
            counters=self.counters,
            deferred_store=self.intake,
        )
        self.deferred = DeferredService(self.config, state, self.intake, self.gateway, post, self.clock, lambda: 0.5)

    def _hear(self, kind: str, /, **facts: object) -> None:
        self.told.append((kind, facts))

    def _text(self, sections: dict[str, Any]) -> str:
        text = json.loads(config_text("http://127.0.0.1:1", **{k: v for k, v in sections.items() if k == "models"}))
        text["upstreams"]["one"] |= sections.get("one", {"api_key": "sk-own"})
        text["defaults"] |= sections.get("rules", {})
        text["store"] = sections.get("store", {})
        text["server"] |= sections.get("server", {})
        return json.dumps(text)

    def call(self, path: str = "/v1/chat/completions", model: str = "gpt", **facts: Any) -> Call:
        """Returns a call as the gateway has received and identified it."""
        headers: Headers = facts.pop("headers", (("content-type", "application/json"),))
        call = Call(
            "lg-1", "openai", facts.pop("method", "POST"), path, facts.pop("query", ""), headers, self.clock.now()
        )
        call.body = facts.pop("body", json.dumps({"model": model}).encode())
        call.model = model
        call.route = self.gateway.table.find(model)
        call.key_digest = "ab" * 32
        for name, value in facts.items():
            setattr(call, name, value)
        return call

    async def new_deferred(self, **facts: Any) -> StoredCall:
        """Stores a call that is deferred at once."""
        kept_id = await self.intake.defer(self.call(**facts), is_at_once=True)
        assert isinstance(kept_id, str), kept_id
        return self.store.rows[kept_id]

    async def new_dead_letter(self, failure: Failure = BUSY, **facts: Any) -> StoredCall:
        kept_id = await self.intake.dead_letter(self.call(failure=failure, **facts))
        assert kept_id is not None
        return self.store.rows[kept_id]

    def now(self, kept: StoredCall) -> StoredCall:
        """Returns the call's current row."""
        return self.store.rows[kept.id]

    async def pass_s(self, seconds: float) -> None:
        await self.clock.pass_s(seconds)
        await let_run()

    async def shown(
        self, kept_id: str, method: str = "GET", path: str = "/v1/llm-guard/calls/", **facts: Any
    ) -> ResponseBuffer:
        """Returns the status API's response to a client."""
        recording = ResponseBuffer()
        call = self.call(path + kept_id, method=method, body=b"", route=None, **facts)
        reply = recording.reply(method)
        assert isinstance(reply.request, Request)
        await self.intake.serve_status_api(call, reply)
        return recording


@asynccontextmanager
async def world(
    kept: InMemoryCallStore | None = None,
    outcomes: Sequence[Opened | Failure | Exception] = (OK,),
    late_s: float = 0.0,
    **sections: Any,
) -> AsyncIterator[World]:
    """Runs a world and stops it at the end. `late_s` advances the clock before the start."""
    it = World(kept or InMemoryCallStore(), **sections)
    with capture_logs():
        it.provider.outcomes = list(outcomes)
        it.clock.advance(late_s)
        it.deferred.start()
        await let_run()
        try:
            yield it
        finally:
            for task in it.deferred._tasks:
                task.cancel()
            await it.deferred._notifier.stop()
            for begun in list(it.running):
                if begun.task is not None:
                    begun.task.cancel()
            await let_run()
