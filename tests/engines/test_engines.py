"""Engines as processes, in real containers of Docker and Podman, and as real units of systemd: each comes back as a new
process, while all calls through the gateway succeed."""

from __future__ import annotations

import asyncio
import signal

import pytest

from llm_guard.mock.provider import MockProvider
from tests.engines.program import CANNOT_START, Program
from tests.engines.stand import KINDS, EngineStand, placed, standing

LISTENS = "mock provider listens"

each_kind = pytest.mark.parametrize("kind", KINDS)
each_daemon = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "command"])


def send(program: Program, number: signal.Signals) -> None:
    process = program.process()
    assert process is not None
    process.send_signal(number)


async def restarts(stand: EngineStand) -> tuple[int, int]:
    found = await stand.engine()
    return found["restarts_ok"], found["restarts_failed"]


@each_kind
async def test_engine_that_crashes_is_restarted(kind: str) -> None:
    async with standing(kind) as stand:
        first = await stand.until_serves()
        await stand.until_wrote(LISTENS)
        send(stand.program, signal.SIGKILL)
        await stand.until_called("far/spare")
        await stand.until_serves(first)
        assert await restarts(stand) == (1, 0)


@each_kind
async def test_engine_that_hangs_is_restarted(kind: str) -> None:
    async with standing(kind) as stand:
        first = await stand.until_serves()
        send(stand.program, signal.SIGSTOP)
        await stand.until_called("far/spare")
        await stand.until_serves(first)
        assert await restarts(stand) == (1, 0)


@each_kind
async def test_operator_restarts_stops_and_starts_an_engine(kind: str) -> None:
    async with standing(kind) as stand:
        first = await stand.until_serves()
        await stand.order("restart")
        second = await stand.until_serves(first)
        await stand.order("stop")
        await stand.until_called("far/spare")
        await asyncio.sleep(2)  # ten probes have failed by then
        stopped = await stand.engine()
        assert (stopped["state"], stopped["operation"]) == ("stopped", None)
        assert any(LISTENS in line for line in stopped["output"])
        assert stand.program.run() is None
        await stand.order("start")
        await stand.until_serves(first, second)
        assert await restarts(stand) == (1, 0)


@each_kind
async def test_engine_that_cannot_start_is_given_up_until_it_is_reset(kind: str) -> None:
    async with standing(kind) as stand:
        first = await stand.until_serves()
        stand.program.broken.touch()
        send(stand.program, signal.SIGKILL)
        given_up = await stand.until("failed")
        assert (given_up["attempts"], given_up["next_attempt_s"]) == (2, None)
        assert "3" in given_up["reason"]
        await stand.until_wrote(CANNOT_START)
        await stand.until_called("far/spare")
        assert stand.program.run() is None
        stand.program.broken.unlink()
        await stand.order("reset")
        await stand.until_serves(first)


@each_daemon
async def test_engine_outlives_the_gateway_and_serves_the_next_one(kind: str) -> None:
    async with placed(kind) as place, MockProvider() as far:
        async with place.gateway(far.url) as stand:
            await stand.until("running")
            run = place.program.run()
            stand.served.signal(signal.SIGTERM)
            assert await stand.served.exit_code() == 0
        async with place.gateway(far.url) as stand:
            await stand.until("running")
            assert place.program.run() == run


async def test_process_ends_with_the_gateway() -> None:
    async with placed("command") as place, MockProvider() as far, place.gateway(far.url) as stand:
        await stand.until("running")
        stand.served.signal(signal.SIGTERM)
        assert await stand.served.exit_code() == 0
        assert place.program.run() is None
