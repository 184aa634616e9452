"""A hedged pair that is cancelled at any moment releases everything, or passes it on with the answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from llm_guard.clock import SystemClock
from llm_guard.outcome import Exhausted, Failure, Signal
from llm_guard.proxy.attempts.admission import settle
from llm_guard.proxy.attempts.attempt_loop import AttemptLoop
from llm_guard.proxy.call import Attempt, Call, Delivered, Opened
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.resilience.retry.hedging import HedgeBudget, HedgeSettings
from llm_guard.routing.route_table import Hedging
from tests.fakes.script import OpenExchange, new_call, new_route, new_target
from tests.fakes.waiting import eventually

TURNS = 16
"""Number of event loop iterations: more than a pair of attempts needs from its answer to its end."""


class Exchange(OpenExchange):
    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Upstreams:
    """Answers each exchange with a stream at its first token, once its event is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = [asyncio.Event(), asyncio.Event()]
        self.exchanges: list[Exchange] = []

    async def open(self, call: Call, attempt: Attempt) -> Opened | Failure:
        may_answer = self.may_answer[self.asked]
        self.asked += 1
        await may_answer.wait()
        exchange = Exchange()
        self.exchanges.append(exchange)
        return Opened(200, "OK", (), b"data: {}\n\n", exchange)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("answering", [(0,), (1,), (0, 1)], ids=["first", "hedge", "both"])
async def test_client_that_disconnects_at_the_end_of_a_hedge_leaks_nothing(
    answering: tuple[int, ...], turn: int
) -> None:
    upstreams, settings = Upstreams(), HedgeSettings(after=0.0005, max_extra=1.0)
    targets = (new_target("a/x"), new_target("b/x"))
    route = new_route(*targets, hedging=Hedging(settings, HedgeBudget(settings)))
    loop = AttemptLoop(upstreams, Cooldowns(), SystemClock(), lambda: 0.0)
    call = new_call(is_stream=True)
    running = asyncio.ensure_future(loop.next_response(loop.begin(call, route)))
    await eventually(lambda: upstreams.asked == 2)

    for number in answering:
        upstreams.may_answer[number].set()
    await turns(turn)
    running.cancel()
    result: Delivered | Exhausted | None = None
    with suppress(asyncio.CancelledError):
        result = await running
    await turns(TURNS)
    if isinstance(result, Delivered):
        kept = result.opened.exchange
        assert kept is not None
        settle(result.attempt, result.lease, Signal.HEALTHY, SystemClock())
    else:
        kept = None
    assert [exchange for exchange in upstreams.exchanges if not exchange.is_aborted] == (
        [kept] if kept is not None else []
    )
    now = SystemClock().now()
    for target in targets:
        assert target.deployment.gates.in_flight == 0
        assert [gate.snapshot(now).in_flight for gate in target.deployment.gates.all()] == [0]
