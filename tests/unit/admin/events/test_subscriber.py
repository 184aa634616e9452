from __future__ import annotations

import asyncio
import json

from llm_guard.admin.events.event_log import OperatorEvent
from llm_guard.admin.events.subscriber import MAX_BYTES, MAX_EVENTS, ServerSentEvents, Subscriber, Texts, as_json
from llm_guard.admin.http import websocket
from llm_guard.admin.schemas.history import Hello, Missed

EVENT = OperatorEvent(7, "2026-01-31T23:59:59.500Z", "breaker", {"deployment": "a/x", "why": "two\nlines"})


def new_reader() -> tuple[Subscriber, list[str]]:
    said: list[str] = []
    return Subscriber(ServerSentEvents(), lambda: said.append("dropped")), said


async def test_reader_takes_all_that_waits_at_once() -> None:
    reader, _ = new_reader()
    reader.put(b"a")
    reader.put(b"b")
    assert await reader.take() == b"ab"


async def test_waiting_reader_is_woken() -> None:
    reader, _ = new_reader()
    taking = asyncio.ensure_future(reader.take())
    await asyncio.sleep(0)
    assert not taking.done()
    reader.put(b"a")
    assert await taking == b"a"


async def test_reader_gets_pending_events_before_the_end() -> None:
    reader, said = new_reader()
    reader.put(b"a")
    reader.end()
    reader.put(b"too late")
    assert await reader.take() == b"a"
    assert await reader.take() == b""
    assert said == []


async def test_waiting_reader_is_notified_of_the_end() -> None:
    reader, _ = new_reader()
    taking = asyncio.ensure_future(reader.take())
    await asyncio.sleep(0)
    reader.end()
    assert await taking == b""


async def test_reader_with_too_many_events_waiting_is_dropped_once() -> None:
    reader, said = new_reader()
    for _ in range(MAX_EVENTS):
        reader.put(b"a")
    assert said == []
    for _ in range(5):
        reader.put(b"a")
    assert said == ["dropped"]
    assert await reader.take() == b""


async def test_reader_with_too_many_bytes_waiting_is_dropped() -> None:
    reader, said = new_reader()
    reader.put(b"a" * MAX_BYTES)
    assert said == []
    reader.put(b"a")
    assert said == ["dropped"]


async def test_delivered_events_are_no_longer_pending() -> None:
    reader, said = new_reader()
    for _ in range(3):
        for _ in range(MAX_EVENTS):
            reader.put(b"a")
        await reader.take()
        reader.put(b"a" * (MAX_BYTES - 1))
        await reader.take()
    assert said == []


async def test_reader_that_was_cancelled_while_it_waited_can_wait_again() -> None:
    reader, _ = new_reader()
    taking = asyncio.ensure_future(reader.take())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])
    reader.put(b"a")
    assert await reader.take() == b"a"


# formats


def test_event_is_one_block_of_lines() -> None:
    block = ServerSentEvents().of(EVENT, "b007-7").decode()
    head, data = block.split("\ndata: ")
    assert head == "id: b007-7\nevent: breaker"
    assert data.endswith("\n\n")
    assert data.count("\n") == 2
    assert json.loads(data) == {
        "id": 7, "at": EVENT.at, "kind": "breaker", "facts": {"deployment": "a/x", "why": "two\nlines"},
    }  # fmt: skip


def test_first_event_names_its_kind() -> None:
    block = ServerSentEvents().of(Hello("1.0", "b007", 3), "b007-3")
    assert block.startswith(b"id: b007-3\nevent: hello\ndata: ")
    assert json.loads(block.split(b"data: ")[1]) == {"kind": "hello", "version": "1.0", "boot": "b007", "last_id": 3}
    block = ServerSentEvents().of(Missed("x-1", "other_process"), "b007-3")
    assert block.startswith(b"id: b007-3\nevent: missed\n")


def test_text_is_the_same_json() -> None:
    assert Texts().of(EVENT, "b007-7") == websocket.text_frame(as_json(EVENT))


def test_half_a_surrogate_pair_can_be_sent() -> None:
    told = json.loads(as_json(OperatorEvent(1, "1970-01-01T00:00:00.000Z", "breaker", {"deployment": "a/\ud800"})))
    assert told["facts"] == {"deployment": "a/\ud800"}
