"""No call leaves garbage that only the garbage collector frees: it costs the collector time in proportion to the calls,
and keeps the memory of each call until then."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from tests.chaos.forms import CHAT, MESSAGES
from tests.chaos.stand import Stand, config_of, standing
from tests.fakes.provider import Close, Hold, ScriptedProvider, Step, whole
from tests.fakes.waiting import eventually

CALLS = 5
MESSAGE = [{"role": "user", "content": "hello"}]
CONNECTION = {"ClientConnection", "RequestParser", "Wakeup", "RequestFields", "CallerDigests", "RequestHeaders"}
"""What each connection of a client leaves: it and its parser refer to each other."""
TRANSLATED = {"models": {"gpt": {"deployments": [{"upstream": "three"}]}}}


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Counts the gateway's own objects that became unreachable inside and were not freed at once."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("llm_guard"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


CASES: dict[str, tuple[Sequence[Sequence[Step]], dict[str, Any], bool, int]] = {
    "whole": ([CHAT.ok], {}, False, 200),
    "stream": ([CHAT.good_stream], {}, True, 200),
    "translated whole": ([MESSAGES.ok], TRANSLATED, False, 200),
    "translated stream": ([MESSAGES.good_stream], TRANSLATED, True, 200),
    "retried": ([[whole(503)], CHAT.ok], {"retry": {"max_attempts": 2}}, False, 200),
    "failed": ([[whole(503)]], {}, False, 503),
    "not JSON": ([[whole(200, b"oops")]], {}, False, 502),
    "connection lost": ([[Close()]], {}, False, 502),
    "timed out": ([[Hold()]], {"timeout": {"first_token": "20ms", "attempt": "20ms"}}, False, 504),
    "stream cut": ([[*CHAT.good_stream[:3], Close()]], {}, True, 200),
    "stream that could be resumed": ([CHAT.good_stream], {"stream": {"recover": "continue"}}, True, 200),
    "stream resumed": (
        [[*CHAT.good_stream[:3], Close()], CHAT.good_stream], {"stream": {"recover": "continue"}}, True, 200,
    ),
    "translated, connection lost": ([[Close()]], TRANSLATED, False, 502),
    "translated stream cut": ([[*MESSAGES.good_stream[:5], Close()]], TRANSLATED, True, 200),
    "hedged": (
        [[Hold()], CHAT.ok],
        {"retry": {"max_attempts": 2}, "defaults": {"hedge": {"after": "20ms"}}},
        False,
        200,
    ),
    "cached": ([CHAT.ok], {"defaults": {"cache": {"ttl": "1m"}}}, False, 200),
}  # fmt: skip
"""What the provider answers, one after the other, the gateway's config, whether the client wants a stream, and the
status it gets."""


@pytest.mark.parametrize("name", CASES)
async def test_calls_leave_no_garbage(name: str) -> None:
    scripts, sections, is_stream, status = CASES[name]
    async with _standing(*(list(scripts) * (CALLS + 2)), **sections) as stand:
        await _calls(stand, is_stream, status, 2)
        with garbage() as found:
            await _calls(stand, is_stream, status, CALLS)
    assert not found.keys() - CONNECTION, found


async def test_calls_of_clients_that_disconnect_leave_no_garbage() -> None:
    async with _standing([Hold()], **TRANSLATED) as stand:
        await _disconnect(stand)
        with garbage() as found:
            await _disconnect(stand)
    assert not found.keys() - CONNECTION, found


@asynccontextmanager
async def _standing(*scripts: Sequence[Step], **sections: Any) -> AsyncIterator[Stand]:
    """Runs a gateway that has a key of its own for the upstream of the other dialect."""
    async with ScriptedProvider(*scripts) as provider:
        three = {"dialect": "anthropic", "base_url": provider.url, "api_key": "sk-of-anthropic"}
        async with standing(config_of(provider.url, upstreams={"three": three}, **sections)) as stand:
            yield stand


async def _calls(stand: Stand, is_stream: bool, status: int, count: int) -> None:
    for _ in range(count):
        reply = await CHAT.ask(stand.url, stream=is_stream, messages=MESSAGE)
        assert reply.status == status, reply.text
    await stand.idle()


async def _disconnect(stand: Stand) -> None:
    for is_stream in (False, True):
        _, writer = await asyncio.open_connection(*stand.url.removeprefix("http://").split(":"))
        writer.write(CHAT.request(stream=is_stream, messages=MESSAGE))
        await eventually(lambda: stand.app.gateway.running == 1)
        writer.close()
        await stand.idle()
