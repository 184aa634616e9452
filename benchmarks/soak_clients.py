"""A constant number of concurrent streams: clients that read to the end, leave, read slowly or stop reading.

The provider's faults and the promises are in `soak`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Literal

from benchmarks.stream_client import Ended, StreamClient, open_stream

Habit = Literal["reads", "leaves", "reads slowly", "stops reading"]
Outcome = Ended | Literal["hung", "no connection"]

_HABITS: tuple[tuple[Habit, float], ...] = (("leaves", 0.03), ("reads slowly", 0.01), ("stops reading", 0.005))
"""Shares of clients; the others read."""
_LONGEST_VISIT_S = 6.0
_SMALL_BUFFER_BYTES = 4096
_SIP_EVERY_S = 0.05
_PATIENCE_S = 45.0
_AFTER_FAILURE_S = 1.0
"""Like an SDK's wait before it retries."""


class Crowd:
    """`streams` clients at the same time: `keep_calling` runs until `leave`."""

    def __init__(self, url: str, streams: int, models: Sequence[str], large: str, seed: int = 0) -> None:
        """`large`: the model of clients that read slowly; its streams do not fit into any buffer."""
        self._url = url
        self._streams = streams
        self._models = models
        self._large = large
        self._seed = seed
        self.ended: Counter[tuple[Habit, Outcome]] = Counter()
        self.open = 0
        self.events = 0
        self._over = asyncio.Event()
        self._clients: set[StreamClient] = set()

    async def keep_calling(self) -> None:
        """Returns after `leave`, when every client has gone."""
        async with asyncio.TaskGroup() as clients:
            for number in range(self._streams):
                clients.create_task(self._call_again_and_again(Random(self._seed * 1_000_003 + number)))

    def leave(self) -> None:
        """Makes all clients leave at once and for good."""
        self._over.set()
        for client in list(self._clients):
            client.leave()

    async def _call_again_and_again(self, dice: Random) -> None:
        await asyncio.sleep(dice.uniform(0, _LONGEST_VISIT_S))  # else a thousand streams would begin and end together
        while True:
            habit = pick_habit(dice.random())
            model = self._large if habit in ("reads slowly", "stops reading") else dice.choice(self._models)
            how = await self._call(habit, model, dice)
            if self._over.is_set():
                return  # not counted: it did not end by itself
            self.ended[habit, how] += 1
            if how in ("refused", "no connection"):
                await asyncio.sleep(_AFTER_FAILURE_S)

    async def _call(self, habit: Habit, model: str, dice: Random) -> Outcome:
        client = StreamClient("/v1/chat/completions", model)
        is_slow = habit in ("reads slowly", "stops reading")
        try:
            await open_stream(client, self._url, _SMALL_BUFFER_BYTES if is_slow else None)
        except OSError:
            return "no connection"
        self._clients.add(client)
        self.open += 1
        try:
            return await _live(client, habit, dice)
        finally:
            self.open -= 1
            self.events += client.events
            self._clients.discard(client)


def pick_habit(u: float) -> Habit:
    """`u`: a uniform draw from [0, 1)."""
    for habit, share in _HABITS:
        if u < share:
            return habit
        u -= share
    return "reads"


async def _live(client: StreamClient, habit: Habit, dice: Random) -> Outcome:
    """Reads one stream. hung: the stream did not end in time, and the client gave up."""
    transport = client.transport
    assert transport is not None
    stays_s = _PATIENCE_S
    if habit == "leaves":
        stays_s = dice.uniform(0, _LONGEST_VISIT_S)
    elif habit == "stops reading":
        transport.pause_reading()
        stays_s = dice.uniform(0, 2 * _LONGEST_VISIT_S)
    sipping = asyncio.ensure_future(_sip(transport)) if habit == "reads slowly" else None
    try:
        async with asyncio.timeout(stays_s):
            return await asyncio.shield(client.ended)
    except TimeoutError:
        client.leave()
        how = await client.ended
        return how if habit in ("leaves", "stops reading") else "hung"
    finally:
        if sipping is not None:
            sipping.cancel()


async def _sip(transport: asyncio.Transport) -> None:
    """Repeats one read and a pause."""
    while not transport.is_closing():
        transport.resume_reading()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not transport.is_closing():
            transport.pause_reading()
        await asyncio.sleep(_SIP_EVERY_S)
