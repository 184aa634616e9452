"""A body that is forwarded while it arrives: where its bytes are, its progress, and its time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from llm_guard.proxy.request_body.body_buffer import MEMORY_BYTES, BodyStore
from llm_guard.proxy.request_body.forwarding import ForwardedBody
from llm_guard.proxy.request_body.interfaces import Block
from llm_guard.proxy.request_body.spool import Spool
from llm_guard.proxy.request_body.spooled_body import PatchedBody

PIECE = bytes(range(256)) * 1024
MANY = 2 * MEMORY_BYTES // len(PIECE)


class Body:
    """A store with the interface of `FileBody`."""

    def __init__(self, store: BodyStore, size: int | None) -> None:
        self.size = size
        self._store = store

    def blocks(self) -> Iterator[Block]:
        return self._store.blocks()


class Notes:
    """Limits that only record their notifications."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_block(self) -> None:
        self.heard.append("block")

    def on_client_awaited(self) -> None:
        self.heard.append("client")


def follow(blocks: Iterator[Block], into: bytearray) -> asyncio.Future[None] | None:
    """Takes the available blocks; returns a future to await for more, or None at the end."""
    for block in blocks:
        if not isinstance(block, bytes):
            return block
        into += block
    return None


def take(blocks: Iterator[Block]) -> list[bytes]:
    """Returns the available blocks."""
    there: list[bytes] = []
    for block in blocks:
        if not isinstance(block, bytes):
            break
        there.append(block)
    return there


async def test_readers_follow_a_body_from_memory_into_its_file_each_from_the_first_byte() -> None:
    store = BodyStore(Spool(1 << 30))
    early, late = bytearray(), bytearray()
    first = store.blocks()
    for count in range(MANY):
        waiting = follow(first, early)
        assert waiting is not None
        assert not waiting.done()
        store.add(PIECE)
        assert waiting.done()
        if count == MANY // 2:
            follow(store.blocks(), late)
            assert late == PIECE * (count + 1)
    store.complete()
    assert follow(first, early) is None
    again = bytearray()
    assert follow(store.blocks(), again) is None
    assert early == again == PIECE * MANY
    store.close()


async def test_reader_of_a_closed_body_is_not_left_waiting() -> None:
    for pieces in (1, MANY):
        spool = Spool(1 << 30)
        store = BodyStore(spool)
        for _ in range(pieces):
            store.add(PIECE)
        blocks = store.blocks()
        waiting = follow(blocks, bytearray())
        assert waiting is not None
        store.close()
        store.close()
        assert waiting.done()
        assert spool.used_bytes == 0
        with pytest.raises(OSError, match="closed"):
            next(blocks)


async def test_time_is_the_clients_only_while_there_is_nothing_to_send() -> None:
    store, notes = BodyStore(Spool(1 << 30)), Notes()
    sending = ForwardedBody(Body(store, 2 * len(PIECE)), notes)
    blocks = sending.blocks()
    follow(blocks, bytearray())
    store.add(PIECE)
    follow(blocks, bytearray())
    store.add(PIECE)
    store.complete()
    follow(blocks, bytearray())
    assert notes.heard == ["client", "block", "client", "block", "block"]


@pytest.mark.parametrize("has_length", [True, False], ids=["length", "chunked"])
async def test_request_counts_as_whole_before_its_last_byte_is_out(has_length: bool) -> None:
    store = BodyStore(Spool(1 << 30))
    sending = ForwardedBody(Body(store, 2 * len(PIECE) if has_length else None), Notes())
    blocks = sending.blocks()
    states: list[bool] = []
    store.add(PIECE)
    next(blocks)
    states.append(sending.is_complete)
    store.add(PIECE)
    store.complete()
    next(blocks)
    states.append(sending.is_complete)
    assert next(blocks, None) is None
    states.append(sending.is_complete)
    assert states == [False, has_length, True]  # with chunked encoding the terminator is still to be sent
    assert sending.ended.done()


async def test_sending_ends_when_the_connection_stops_reading() -> None:
    store = BodyStore(Spool(1 << 30))
    sending = ForwardedBody(Body(store, None), Notes())
    blocks = sending.blocks()
    store.add(PIECE)
    next(blocks)
    assert not sending.ended.done()
    del blocks
    assert sending.ended.done()
    assert not sending.is_complete


async def test_renamed_body_is_followed_too() -> None:
    store = BodyStore(Spool(1 << 30))
    renamed = PatchedBody(Body(store, 6), [(1, 3, b"long")])
    assert renamed.size == 8
    assert PatchedBody(Body(store, None), [(1, 3, b"long")]).size is None
    blocks, sent = renamed.blocks(), []
    for piece in (b"a", b"b", b"c", b"def"):
        store.add(piece)
        sent += take(blocks)
    store.complete()
    assert [*sent, *take(blocks)] == [b"a", b"long", b"def"]  # an empty block would end a chunked request
