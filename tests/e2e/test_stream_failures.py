"""Streams that break after their first token raise in the official SDKs, in every way to read a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anthropic
import openai
import pytest

from tests.chaos.stand import Stand
from tests.e2e.stream_breaks import BREAKS, IDLE_S, LISTENERS, TEXT, TOTAL_S, BreakingProvider, Listener, breaking
from tests.fakes.waiting import eventually

SLACK_S = 1.5
"""Slack in seconds for a slow machine, in addition to the second that detection may take."""
WHY = {
    "stall": f"silent for {IDLE_S:g} s",
    "cut": "was cut",
    "cut-in-an-event": "was cut",
    "reset": "was cut",
    "truncated": "without its terminal event",
    "done": "without its terminal event",
    "total": "total timeout",
}
"""The gateway's description of each break."""
THEIRS = ("The server had an error", "Overloaded", "slot lost")
"""Error messages that the provider sends in an event of its own."""
SPEECHLESS = ("cut-gzip", "cut-in-a-long-event")
"""Breaks after which no error event can be sent: the connection is aborted instead."""


@dataclass(frozen=True, slots=True)
class Case:
    """One break, read in one way."""

    kind: str
    listener: Listener
    is_sync: bool

    def __str__(self) -> str:
        return f"{self.kind}-{self.listener}-{'sync' if self.is_sync else 'async'}"

    @property
    def deployment(self) -> str:
        upstream = "two" if self.listener.family == "claude" else "one"
        return f"{upstream}/{self.listener.family}-{self.kind if self.kind in ('stall', 'total') else '*'}"

    def check(self, raised: Exception) -> None:
        """Expects an SDK exception that says what happened and, if the gateway wrote it, names the deployment."""
        if self.kind in SPEECHLESS:
            # The anthropic SDK passes on the exception of its HTTP library.
            kinds = (openai.APIConnectionError, anthropic.APIConnectionError)
            assert isinstance(raised, kinds) or type(raised).__name__ == "RemoteProtocolError"
            return
        if self.listener.family == "claude":
            assert type(raised) is anthropic.APIStatusError
            assert raised.status_code == 200
        else:
            assert type(raised) is openai.APIError
        if self.kind in WHY:
            assert f"{self.deployment}: " in str(raised)
            assert WHY[self.kind] in str(raised)
        else:
            assert any(words in str(raised) for words in (*THEIRS, f"{self.deployment}: "))


CASES = [
    Case(kind, listener, is_sync)
    for kind in BREAKS
    for listener in LISTENERS
    for is_sync in (True, False)
    if listener.may_see(kind)
]
cases = pytest.mark.parametrize("case", [case for case in CASES if case.kind != "drain"], ids=str)
finals = pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case.listener.final and case.kind in ("cut", "reset", "truncated", "done", "error", "error-without-name")
    ],
    ids=str,
)
drains = pytest.mark.parametrize("case", [case for case in CASES if case.kind == "drain"], ids=str)


@pytest.fixture
async def stand() -> AsyncIterator[tuple[Stand, BreakingProvider]]:
    async with breaking() as both:
        yield both


@cases
async def test_stream_that_breaks_raises_in_the_sdk(stand: tuple[Stand, BreakingProvider], case: Case) -> None:
    gateway, provider = stand
    heard: list[str] = []
    began_at = time.monotonic()
    with pytest.raises(Exception) as caught:  # noqa: PT011  # `check` knows which
        await case.listener.listen(gateway.url, case.kind, heard, is_sync=case.is_sync)
    took_s = time.monotonic() - began_at
    case.check(caught.value)
    text = "".join(heard)
    assert text.startswith(TEXT) if case.kind == "total" else text == TEXT
    assert took_s <= (TOTAL_S if case.kind == "total" else IDLE_S) + 1 + SLACK_S
    # Another test's probe may meet the port that its own provider has left.
    assert sum(request.startswith(b"POST") for request in provider.requests) == 1


@finals
async def test_helper_that_waits_for_the_whole_answer_raises(stand: tuple[Stand, BreakingProvider], case: Case) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        await case.listener.listen(stand[0].url, case.kind, [], is_sync=case.is_sync, final=case.listener.final)
    case.check(caught.value)


@drains
async def test_stream_that_a_drain_ends_raises_in_the_sdk(case: Case) -> None:
    async with breaking(server={"drain": "50ms"}) as (gateway, _):
        heard: list[str] = []
        hearing = asyncio.create_task(case.listener.listen(gateway.url, case.kind, heard, is_sync=case.is_sync))
        await eventually(lambda: "".join(heard) == TEXT)
        await gateway.app.stop()
        with pytest.raises((openai.OpenAIError, anthropic.AnthropicError), match="shutting down"):
            await hearing
        assert "".join(heard) == TEXT
