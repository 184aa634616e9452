"""A gateway between scripted providers and open-loop clients, run to its end on a virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import structlog

from benchmarks.virtual.clients import ClientCall, Load, body_of, call_until_answered
from benchmarks.virtual.loop import VirtualClock, run_virtual
from benchmarks.virtual.provider import Log, Provider, Request, ScriptedConnections
from llm_guard.config import parse_config
from llm_guard.log import ACCESS_LOGGER, LEVELS
from llm_guard.proxy.attempts.fault_injection import FaultInjector
from llm_guard.proxy.attempts.upstream_attempt import Upstreams
from llm_guard.proxy.handler import Handler
from tests.fakes.gateway import new_gateway


@dataclass(frozen=True)
class Act:
    """A change of the gateway during a run, such as an operator's reset. Time in seconds from the beginning."""

    at: float
    act: Callable[[Handler], None]


@dataclass(frozen=True)
class Played:
    """Calls as their clients saw them and requests as the provider saw them, oldest first."""

    calls: list[ClientCall]
    requests: list[Request]


def play(config: str, provider: Provider, loads: Sequence[Load], *, acts: Sequence[Act] = (), seed: int = 7) -> Played:
    """Runs until every call has ended and every act is done. The same arguments give the same result."""
    with _quiet():
        return run_virtual(lambda clock: _play(config, provider, loads, acts, seed, clock))


async def _play(
    config: str, provider: Provider, loads: Sequence[Load], acts: Sequence[Act], seed: int, clock: VirtualClock
) -> Played:
    loop, began_at = asyncio.get_running_loop(), clock.now()
    log, calls = Log(), list[ClientCall]()
    gateway = _gateway(config, ScriptedConnections(provider, log, lambda: clock.now() - began_at), clock, seed)
    running: set[asyncio.Task[None]] = set()
    errors: list[BaseException] = []

    def done(task: asyncio.Task[None]) -> None:
        running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            errors.append(error)

    def begin(load: Load, body: bytes) -> None:
        call = ClientCall(len(calls), load.model, clock.now() - began_at, caller=load.caller)
        calls.append(call)
        task = loop.create_task(serve(load, body, call))
        running.add(task)
        task.add_done_callback(done)

    async def serve(load: Load, body: bytes, call: ClientCall) -> None:
        try:
            await call_until_answered(gateway, load, body, call, lambda: clock.now() - began_at)
        finally:
            call.ended_at = clock.now() - began_at

    async def arrive(load: Load, place: int) -> None:
        body = body_of(load)
        for at in load.times(Random(f"{seed} {place}")):
            await asyncio.sleep(began_at + at - clock.now())
            begin(load, body)

    async def perform(act: Act) -> None:
        await asyncio.sleep(act.at)
        act.act(gateway)

    await asyncio.gather(*[arrive(load, place) for place, load in enumerate(loads)], *map(perform, acts))
    while running:
        await asyncio.wait(running)
    if errors:
        raise errors[0]
    return Played(calls, log.requests)


def _gateway(config: str, connections: ScriptedConnections, clock: VirtualClock, seed: int) -> Handler:
    """Builds a gateway as `app.App` does, without the operator side, the prober and deferred calls."""
    upstreams = Upstreams(connections, FaultInjector(clock, Random(f"faults {seed}").random), clock)
    return new_gateway(parse_config(config), clock, upstreams=upstreams, random=Random(f"gateway {seed}"))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards log lines; the gateway still builds them."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(processors=[_drop])
    LEVELS.override(ACCESS_LOGGER, "warning")
    try:
        yield
    finally:
        LEVELS.override(ACCESS_LOGGER, None)
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)


def _drop(_logger: object, _name: str, _event: object) -> str:
    raise structlog.DropEvent
