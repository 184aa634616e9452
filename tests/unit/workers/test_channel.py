"""Messages between two ends of a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from llm_guard.clock import SystemClock
from llm_guard.resilience.capacity.slot_sharing import SlotGrant, SlotRequest
from llm_guard.storage.shared.exchange_store import Exchanged, Leases, Override, Published, StoreUnavailable
from llm_guard.storage.shared.memory_store import MemoryStore, SharedMemory
from llm_guard.workers.channel import Channel, ChannelClosed
from llm_guard.workers.channel_store import ChannelStore
from llm_guard.workers.messages import (
    Agreed,
    Beat,
    ConfigRead,
    ExchangeReply,
    ExchangeRequest,
    Message,
    OverridesReply,
    OverridesRequest,
    ReadConfig,
    TakeMetrics,
)
from tests.fakes.waiting import eventually

Serve = Callable[[Message], Awaitable[Message | None]]


async def silent(_message: Message) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def ends(serve: Serve, other: Serve = silent) -> AsyncIterator[tuple[Channel, Channel]]:
    """Two ends; `serve` handles what the first one sends."""
    mine, theirs = socket.socketpair()
    channels = Channel(other, SystemClock()), Channel(serve, SystemClock())
    for channel, sock in zip(channels, (mine, theirs), strict=True):
        await channel.open(sock)
    async with asyncio.TaskGroup() as tasks:
        for channel in channels:
            tasks.create_task(channel.run())
        yield channels
        for channel in channels:
            channel.close()


async def test_replies_find_their_requests_in_any_order() -> None:
    gate = asyncio.Event()

    async def serve(message: Message) -> Message | None:
        if isinstance(message, ReadConfig):
            await gate.wait()
            return ConfigRead("text")
        gate.set()
        return Agreed()

    async with ends(serve) as (channel, _):
        first = asyncio.ensure_future(channel.ask(ReadConfig(), 5.0))
        await asyncio.sleep(0)
        assert await channel.ask(TakeMetrics(), 5.0) == Agreed()
        assert await first == ConfigRead("text")


async def test_message_without_a_reply_is_handled() -> None:
    seen: list[Message] = []

    async def serve(message: Message) -> None:
        seen.append(message)

    async with ends(serve) as (channel, _):
        channel.tell(Beat("digest", 30.0))
        await eventually(lambda: seen == [Beat("digest", 30.0)])


async def test_request_that_is_not_answered_times_out_and_a_late_reply_is_ignored() -> None:
    gate = asyncio.Event()

    async def serve(message: Message) -> Message | None:
        if isinstance(message, ReadConfig):
            await gate.wait()
        return Agreed()

    async with ends(serve) as (channel, _):
        with pytest.raises(TimeoutError):
            await channel.ask(ReadConfig(), 0.01)
        gate.set()
        assert await channel.ask(TakeMetrics(), 5.0) == Agreed()


async def test_messages_to_a_side_that_does_not_read_do_not_pile_up() -> None:
    mine, theirs = socket.socketpair()
    with theirs:
        channel = Channel(silent, SystemClock())
        await channel.open(mine)
        for _ in range(100):
            channel.tell(ConfigRead("x" * 1_000_000))
        assert channel._writer.transport.get_write_buffer_size() < 20_000_000
        with pytest.raises(TimeoutError):
            await channel.ask(ReadConfig(), 0.01)
        channel.close()


async def test_end_of_the_other_side_ends_the_wait() -> None:
    async with ends(silent) as (channel, other):
        waiting = asyncio.ensure_future(channel.ask(ReadConfig(), 5.0))
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(ChannelClosed):
            await waiting
        assert channel.is_closed
        with pytest.raises(ChannelClosed):
            await channel.ask(ReadConfig(), 5.0)
        channel.tell(Beat("", 30.0))  # is lost


async def test_bug_in_one_message_does_not_end_the_channel() -> None:
    async def serve(message: Message) -> Message | None:
        if isinstance(message, ReadConfig):
            raise ZeroDivisionError
        return Agreed()

    with capture_logs() as log:
        async with ends(serve) as (channel, _):
            with pytest.raises(TimeoutError):
                await channel.ask(ReadConfig(), 0.05)
            assert await channel.ask(TakeMetrics(), 5.0) == Agreed()
    assert [line["message"] for line in log] == ["ReadConfig"]


async def test_store_works_through_the_channel() -> None:
    clock, shared = SystemClock(), SharedMemory()
    store, other = MemoryStore(shared, "one", clock), MemoryStore(shared, "two", clock)

    async def serve(message: Message) -> Message | None:
        match message:
            case ExchangeRequest(content, wanted, slots):
                return ExchangeReply(await store.exchange(content, wanted, slots))
            case OverridesRequest(changed):
                return OverridesReply(await store.change_overrides(changed))
            case _:
                return None

    await other.exchange(b"theirs", {"lease": 5.0})
    async with ends(serve) as (channel, _):
        found = await ChannelStore(channel).exchange(b"mine", {"lease": 5.0, "free": 2.0}, {"s": SlotRequest(10, 0, 4)})
        assert isinstance(found, Exchanged)
        assert isinstance(found.leases, Leases)
        assert [(one.replica, one.content) for one in found.others] == [("two", b"theirs")]
        assert isinstance(found.others[0], Published)
        assert (set(found.leases.held), set(found.leases.taken)) == ({"free"}, {"lease"})
        assert found.slots == {"s": SlotGrant(10, 10)}
        stored = await ChannelStore(channel).change_overrides({"key": Override(0.0, b"held", False)})
        assert stored.entries["key"].content == b"held"


async def test_store_of_a_parent_that_has_ended_is_unavailable() -> None:
    async with ends(silent) as (channel, other):
        other.close()
        with pytest.raises(StoreUnavailable, match="ChannelClosed"):
            await ChannelStore(channel).exchange(b"", {})
