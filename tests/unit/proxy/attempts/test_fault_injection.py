"""Injected faults on a manual clock: which attempts they strike, and what these get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from llm_guard.dialects import DialectName
from llm_guard.dialects.translation.canonical import RequestTarget
from llm_guard.dialects.translation.endpoints import CHAT
from llm_guard.outcome import Category, FailureKind
from llm_guard.proxy.attempts.fault_injection import FaultEffect, FaultInjector, InjectedFault
from llm_guard.proxy.call import Attempt, Call, Exchange
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.http_client.interfaces import Dialing
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.proxy.translation.attempt import TranslatedAttempt
from llm_guard.resilience.classification.classify import classify_answer
from llm_guard.routing.route_table import Target
from tests.fakes.clock import SteppedClock, let_run
from tests.fakes.script import OpenExchange, new_call, new_target
from tests.unit.dialects.translation.conversions import from_chat

DEPLOYMENT = "openai/gpt-4"


class Response(OpenExchange):
    """A response that arrives in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__()
        self._pieces = list(pieces)

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


class Provider:
    """Implements `UpstreamOrigin`."""

    def __init__(self, response: Response) -> None:
        self.response = response
        self.requests = 0

    async def send(
        self,
        method: str,
        target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,
    ) -> Exchange:
        self.requests += 1
        return self.response


class World:
    """One deployment, and the faults that attempts on it meet."""

    def __init__(self, *draws: float) -> None:
        self.clock = SteppedClock()
        self.target = new_target(DEPLOYMENT)
        self.provider = Provider(Response(b"hello, ", b"world"))
        self.injector = FaultInjector(self.clock, iter(draws).__next__ if draws else lambda: 0.0)
        self.connected = 0

    def on_dialing(self) -> None:
        """Implements `Dialing`."""

    def on_authorizing(self) -> None:
        """Implements `Dialing`."""

    def on_authorized(self) -> None:
        """Implements `Dialing`."""

    def on_connected(self) -> None:
        """Implements `Dialing`."""
        self.connected += 1

    def fault(self, effect: FaultEffect, share: float = 1.0, until_s: float = 60.0) -> InjectedFault:
        fault = InjectedFault("chaos-1", effect, share, self.clock.now() + until_s, deployment=DEPLOYMENT)
        self.injector.add(fault)
        return fault

    async def send(self, call: Call | None = None, attempt: Attempt | None = None) -> Exchange:
        call = call or new_call(self.target)
        attempt = attempt or Attempt(self.target, self.clock.now())
        origin = self.injector.origin_for(call, attempt, self.provider)
        return await origin.send("POST", "/v1/chat/completions", RequestHeaders([]), b"{}", self, is_repeatable=True)

    def strikes(self, target: Target) -> bool:
        call = new_call(target)
        self.injector.origin_for(call, Attempt(target, self.clock.now()), self.provider)
        return call.disposition is not None


async def body_of(exchange: Exchange) -> bytes:
    body = b""
    while chunk := await exchange.read():
        body += chunk
    return body


async def test_status_is_answered_without_a_request_and_says_that_it_was_injected() -> None:
    world = World()
    world.fault(FaultEffect("status", 429, retry_after_s=7.0))
    exchange = await world.send()
    error = json.loads(await body_of(exchange))["error"]
    assert (exchange.status, dict(exchange.headers)["Retry-After"], error["code"]) == (429, "7", "injected_fault")
    assert "chaos-1" in error["message"]
    assert (world.provider.requests, world.connected) == (0, 1)


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("status", "categories"),
    [
        (408, {"timeout"}),
        (429, {"rate_limit"}),
        (500, {"server_error"}),
        (502, {"server_error"}),
        (503, {"server_error", "overloaded"}),
        (504, {"timeout"}),
        (529, {"overloaded"}),
    ],
)
async def test_injected_status_counts_as_the_providers_own_would(
    dialect: DialectName, status: int, categories: set[Category]
) -> None:
    world = World()
    world.fault(FaultEffect("status", status))
    call = new_call(world.target)
    call.dialect = dialect
    exchange = await world.send(call)
    kind = classify_answer(status, {}, await body_of(exchange), 0.0).kind
    assert kind.category in categories
    assert kind.is_retriable


async def test_injected_status_of_a_translated_attempt_is_the_upstreams() -> None:
    world = World()
    world.fault(FaultEffect("status", 503))
    call, translated = new_call(world.target), from_chat()
    target = RequestTarget("claude-sonnet-4-5")
    translation = TranslatedAttempt(call, CHAT, translated, target, (), 0.0, shows_reasoning=False)
    attempt = Attempt(world.target, world.clock.now(), translation=translation)
    exchange = await world.send(call, attempt)
    assert json.loads(await body_of(exchange))["type"] == "error"


async def test_retry_after_does_not_outlast_the_fault() -> None:
    world = World()
    world.fault(FaultEffect("status", 429, retry_after_s=3000.0), until_s=20.0)
    assert dict((await world.send()).headers)["Retry-After"] == "20"


async def test_attempt_hangs_until_the_fault_ends() -> None:
    world = World()
    fault = world.fault(FaultEffect("hang"))
    attempt = asyncio.ensure_future(world.send())
    await world.clock.pass_s(3000.0)
    assert not attempt.done()
    world.injector.remove(fault)
    with pytest.raises(UpstreamError, match="chaos-1") as raised:
        await attempt
    assert raised.value.kind is FailureKind.NETWORK
    assert (world.provider.requests, world.connected) == (0, 1)


async def test_hanging_attempt_that_is_cancelled_leaves_nothing_behind() -> None:
    world = World()
    fault = world.fault(FaultEffect("hang"))
    attempt = asyncio.ensure_future(world.send())
    await let_run()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert fault._waiting == set()


async def test_response_is_delayed_after_the_request() -> None:
    world = World()
    world.fault(FaultEffect("delay", delay_s=3.0))
    attempt = asyncio.ensure_future(world.send())
    await world.clock.pass_s(2.9)
    assert (world.provider.requests, attempt.done()) == (1, False)
    await world.clock.pass_s(0.2)
    assert await body_of(attempt.result()) == b"hello, world"


async def test_delay_ends_with_the_fault() -> None:
    world = World()
    fault = world.fault(FaultEffect("delay", delay_s=30.0))
    attempt = asyncio.ensure_future(world.send())
    await let_run()
    world.injector.remove(fault)
    assert await body_of(await attempt) == b"hello, world"


async def test_delayed_attempt_that_is_cancelled_closes_its_connection() -> None:
    world = World()
    world.fault(FaultEffect("delay", delay_s=30.0))
    attempt = asyncio.ensure_future(world.send())
    await let_run()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert world.provider.response.is_aborted


@pytest.mark.parametrize(("after_bytes", "passed"), [(0, b""), (5, b"hello"), (9, b"hello, wo")])
async def test_response_is_cut_after_so_many_bytes(after_bytes: int, passed: bytes) -> None:
    world = World()
    world.fault(FaultEffect("cut", after_bytes=after_bytes))
    exchange, body = await world.send(), b""
    while len(body) < after_bytes:
        body += await exchange.read()
    with pytest.raises(UpstreamError, match="chaos-1") as raised:
        await exchange.read()
    assert (body, raised.value.kind) == (passed, FailureKind.TRUNCATED)
    assert world.provider.response.is_aborted


async def test_shorter_response_passes_whole() -> None:
    world = World()
    world.fault(FaultEffect("cut", after_bytes=100))
    assert await body_of(await world.send()) == b"hello, world"


def struck(world: World, attempts: int) -> list[bool]:
    return [world.strikes(world.target) for _ in range(attempts)]


def test_share_is_drawn_for_each_attempt() -> None:
    world = World(0.29, 0.3, 0.99, 0.0)
    fault = world.fault(FaultEffect("hang"), share=0.3)
    assert struck(world, 4) == [True, False, False, True]
    assert (fault.struck, dict(world.injector.counts)) == (2, {(DEPLOYMENT, "hang"): 2})


def test_fault_ends_at_its_instant_even_if_nothing_has_removed_it() -> None:
    world = World()
    world.fault(FaultEffect("hang"), until_s=60.0)
    world.clock.advance(59.9)
    assert struck(world, 1) == [True]
    world.clock.advance(0.1)
    assert struck(world, 1) == [False]


def test_one_fault_strikes_an_attempt_and_the_others_may_strike_the_rest() -> None:
    world = World(0.9, 0.1)
    world.fault(FaultEffect("hang"), share=0.5)
    world.fault(FaultEffect("cut"), share=0.5)
    assert struck(world, 1) == [True]
    assert dict(world.injector.counts) == {(DEPLOYMENT, "cut"): 1}


def concerned(targets: Iterable[Target], **aim: str) -> list[bool]:
    fault = InjectedFault("chaos-1", FaultEffect("hang"), 1.0, 2000.0, **aim)
    return [fault.concerns(target) for target in targets]


def test_fault_strikes_one_deployment_or_those_of_a_model() -> None:
    targets = [new_target("a/x", alias="x"), new_target("b/x", alias="x"), new_target("a/x", alias="y")]
    assert concerned(targets, deployment="a/x") == [True, False, True]
    assert concerned(targets, model="x") == [True, True, False]


def test_call_lists_every_fault_that_has_struck_it() -> None:
    world = World()
    world.fault(FaultEffect("status"))
    call = new_call(world.target)
    for _ in range(2):
        world.injector.origin_for(call, Attempt(world.target, 1000.0), world.provider)
    assert call.disposition is not None
    assert call.disposition.injected_faults == (f"chaos-1: status on {DEPLOYMENT}",) * 2
