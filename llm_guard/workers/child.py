"""One worker, as the parent sees it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

from llm_guard.clock import Clock
from llm_guard.workers.channel import Channel, ChannelClosed
from llm_guard.workers.messages import Message, MetricsTaken, StartFailed, StartWorker, TakeMetrics, WorkerReady
from llm_guard.workers.snapshot import FamilySnapshot

EndReason = Literal["exit", "start", "hang", "config", "stop"]
"""Why a process has ended: by itself, while it was starting, killed because it hung, stopped because it kept to another
config than the others, or stopped with the gateway."""
_METRICS_S = 2.0


class Child:
    """From `begin` to the end of its process."""

    def __init__(
        self, start: StartWorker, serve: Callable[[Child, Message], Awaitable[Message | None]], clock: Clock
    ) -> None:  # fmt: skip
        self.start = start
        self.number = start.number
        self.channel = Channel(self._take, clock)
        self._serve = serve
        self._clock = clock
        self._process: Process
        self._reading: asyncio.Task[None]
        self.began_at = clock.now()
        self.beats = 0
        self.digest = ""
        """Digest of the config that it uses."""
        self.drain_s = 0.0
        """The longest that its drain may take."""
        self.metrics: list[FamilySnapshot] = []
        """As of the last time that it sent them."""
        self.start_problem: StartFailed | None = None
        """Why it could not start."""
        self.killed_for: EndReason | None = None
        self.is_leaving = False
        self.started: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True once it accepts connections, False if it has ended before."""

    @property
    def is_ready(self) -> bool:
        return self.started.done() and self.started.result() and not self.is_leaving and not self.channel.is_closed

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def begin(self) -> None:
        """Starts the process: a new program rather than a fork, which would copy threads' locks. Imports nothing from
        the working folder, as the parent does not. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "llm_guard.workers.worker", str(theirs.fileno()),
                    stdin=DEVNULL, pass_fds=(theirs.fileno(),),
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        await self.channel.open(ours)
        self._reading = asyncio.get_running_loop().create_task(self.channel.run())
        self.channel.tell(self.start)

    async def ended(self) -> None:
        """Returns when the process has ended, and all that it sent has been read."""
        await self._process.wait()
        await asyncio.wait((self._reading,))
        if not self.started.done():
            self.started.set_result(False)

    def kill(self, reason: EndReason) -> None:
        """Ends it at once."""
        self.killed_for = reason
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    async def take_metrics(self) -> None:
        """Updates `metrics`, unless it does not respond."""
        if not self.started.done():
            return
        with suppress(ChannelClosed, TimeoutError):
            reply = await self.channel.ask(TakeMetrics(), _METRICS_S)
            if isinstance(reply, MetricsTaken):
                self.metrics = reply.families

    async def _take(self, message: Message) -> Message | None:
        match message:
            case WorkerReady(digest):
                self.digest = digest
                self.started.set_result(True)
            case StartFailed():
                self.start_problem = message
            case MetricsTaken(families):
                self.metrics = families
            case _:
                return await self._serve(self, message)
        return None
