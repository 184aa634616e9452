"""A response buffer with several readers while it is written: each gets all of it, within bounded memory, and a slow
reader does not delay one that keeps pace."""

from __future__ import annotations

import asyncio

import pytest

from llm_guard.proxy.coalescing.broadcast_buffer import WINDOW_BYTES, BroadcastBuffer, BroadcastReader
from tests.fakes.clock import let_run

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-A: b: c\r\n\r\n"
WHOLE = 1000
PIECE = b"x" * (1 << 16)


def tape_of(*, whole_bytes: int = WHOLE, has_failed: bool = False) -> BroadcastBuffer:
    return BroadcastBuffer(whole_bytes, lambda: has_failed)


async def all_of(reader: BroadcastReader) -> bytes:
    read = b""
    while piece := await reader.next():
        read += piece
    return read


async def test_head_is_read_once_and_the_remainder_is_body() -> None:
    tape = tape_of()
    assert not tape.status
    tape.push(HEAD + b"a")
    tape.push(b"b")
    assert (tape.status, tape.reason, bytes(tape.body)) == (200, "OK", b"ab")
    assert tape.headers == (("Content-Type", "text/plain"), ("X-A", "b: c"))


async def test_each_reads_all_of_it_from_its_beginning() -> None:
    tape = tape_of()
    early = asyncio.create_task(all_of(tape.join()))
    await let_run()
    tape.push(HEAD + b"ab")
    await let_run()
    late = asyncio.create_task(all_of(tape.join()))
    tape.push(b"cd")
    tape.end()
    assert (await early, await late, await all_of(tape.join())) == (b"abcd",) * 3


async def test_reader_that_waits_for_a_beginning_gets_an_end_without_one() -> None:
    tape = tape_of()
    waiting = asyncio.create_task(tape.join().wait_begun())
    await let_run()
    assert not waiting.done()
    tape.end()
    await waiting


async def test_reader_that_waits_for_the_end_gets_it() -> None:
    tape = tape_of()
    waiting = asyncio.create_task(tape.join().wait_over())
    tape.push(HEAD)
    await let_run()
    assert not waiting.done()
    tape.end()
    await waiting


async def test_trailing_bytes_are_no_part_of_the_response() -> None:
    tape = tape_of(has_failed=True)
    tape.push(HEAD + b"event: error")
    tape.close()
    tape.end()
    assert (await all_of(tape.join()), bytes(tape.last_words), tape.is_broken) == (b"", b"event: error", True)


async def test_reader_that_was_cancelled_can_read_on() -> None:
    tape = tape_of()
    reader = tape.join()
    waiting = asyncio.create_task(reader.next())
    await let_run()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    tape.push(HEAD + b"a")
    assert await reader.next() == b"a"


# responses larger than the buffer


async def test_small_answer_is_held_as_a_whole_however_slow_its_readers_are() -> None:
    tape = tape_of()
    tape.join()
    assert tape.push(HEAD + b"x" * WHOLE)
    assert tape.is_whole


async def test_writer_waits_for_the_only_reader() -> None:
    tape = tape_of()
    reader = tape.join()
    written = 0
    while tape.push(HEAD + PIECE if not written else PIECE):
        written += 1
    assert written * len(PIECE) <= WINDOW_BYTES
    waiting = asyncio.create_task(tape.wait_room())
    await let_run()
    assert not waiting.done()
    assert len(await reader.next()) == len(PIECE)
    await let_run()
    assert waiting.done()
    assert not tape.is_whole
    tape.end()
    assert len(await all_of(reader)) == written * len(PIECE)
    assert not reader.is_left_behind


async def test_waiting_writer_continues_when_the_slow_reader_leaves() -> None:
    tape = tape_of()
    slow, other = tape.join(), tape.join()
    tape.push(HEAD)
    while tape.push(PIECE):
        pass
    for _ in range(3):
        await other.next()
    waiting = asyncio.create_task(tape.wait_room())
    await let_run()
    assert not waiting.done()
    tape.leave(slow)
    await let_run()
    assert waiting.done()


async def test_slow_reader_is_dropped_when_another_is_fast_enough() -> None:
    tape = tape_of()
    tape.push(HEAD)
    slow, quick = tape.join(), tape.join()
    read = 0
    for _ in range(64):
        tape.push(PIECE)
        read += len(await quick.next())
        assert len(tape.body) <= WINDOW_BYTES + 2 * len(PIECE)
        await asyncio.wait_for(tape.wait_room(), 1)
    assert read == 64 * len(PIECE)
    assert slow.is_left_behind
    assert not quick.is_left_behind
    assert await slow.next() == b""


async def test_no_reader_is_dropped_when_none_is_fast_enough() -> None:
    tape = tape_of()
    tape.push(HEAD)
    first, second = tape.join(), tape.join()
    while tape.push(PIECE):
        pass
    await first.next()
    assert not any(reader.is_left_behind for reader in (first, second))


async def test_response_without_readers_is_released() -> None:
    tape = tape_of()
    tape.push(HEAD)
    assert all(tape.push(PIECE) for _ in range(64))
    assert len(tape.body) <= len(PIECE)
    assert not tape.is_whole
