"""The process of a worker: a gateway that takes its orders from the parent alone.

Run as `python -m llm_guard.workers.worker FD`; the descriptor is one end of the parent's channel. Signals do not stop
it: a terminal and systemd send theirs to parent and workers alike, and the parent drains all workers together. It ends
when the parent does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from llm_guard.app import App
from llm_guard.assembly import WorkerRole
from llm_guard.clock import SystemClock
from llm_guard.config import CommandLineOverrides, Config, ConfigError, parse_config
from llm_guard.config_reloader import NothingToDo
from llm_guard.event_loop import calm_collector, run
from llm_guard.log import LogWriter, configure_logging
from llm_guard.workers.agreement import ParentAgreement
from llm_guard.workers.channel import Channel
from llm_guard.workers.channel_store import ChannelStore
from llm_guard.workers.messages import (
    Agreed,
    Beat,
    Message,
    MetricsTaken,
    Reload,
    ReloadRefused,
    StartFailed,
    StartWorker,
    StopWorker,
    TakeMetrics,
    WorkerReady,
)
from llm_guard.workers.snapshot import FamilySnapshot, taken

_log = structlog.get_logger("llm_guard.workers.worker")

BEAT_S = 0.5
_ORPHAN_LOOKS_S = 5.0
_GRACE_S = 15.0
"""Seconds for all that follows a drain."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Worker:
    """One process, from its first message to its end."""

    def __init__(self, prepare: Callable[[Config], None]) -> None:
        """`prepare` is called with the config, before the gateway starts."""
        self._prepare = prepare
        self._clock = SystemClock()
        self._channel = Channel(self._serve, self._clock)
        self._started = asyncio.get_running_loop().create_future()
        self._app: App | None = None
        self._is_told_to_stop = False

    async def run(self, sock: socket.socket) -> int:
        """Returns the exit code."""
        await self._channel.open(sock)
        reading = asyncio.get_running_loop().create_task(self._channel.run())
        reading.add_done_callback(lambda _: self._follow_parent())
        start: StartWorker = await self._started
        try:
            app = await self._start(start)
        except (ConfigError, OSError) as error:
            self._channel.tell(StartFailed(str(error), isinstance(error, ConfigError)))
            await self._channel.flush()
            return 1
        beats = asyncio.get_running_loop().create_task(self._beat(app))
        self._channel.tell(WorkerReady(app.reloads.current.digest))
        if self._is_told_to_stop:
            app.tell_to_stop()
        await app.run()
        self._channel.tell(MetricsTaken(await self._metrics()))
        beats.cancel()
        await self._channel.flush()
        return 0

    async def _start(self, start: StartWorker) -> App:
        changes = CommandLineOverrides(start.server, start.log)
        config = changes.applied(parse_config(start.text, start.path))
        self._prepare(config)
        role = WorkerRole(
            start.number, start.port, Path(start.admin_socket), ChannelStore(self._channel),
            ParentAgreement(self._channel, start.path),
        )  # fmt: skip
        app = App(config, path=Path(start.path), adapt=changes.applied, worker=role)
        await app.start()
        calm_collector()
        app.ops.overview.notice = [
            f"This is worker {start.number} of {start.workers}: it shows its own part of the calls.",
            "/metrics has the sums of all workers, and /admin/replicas the load of each.",
        ]
        self._app = app
        return app

    async def _serve(self, message: Message) -> Message | None:
        match message:
            case StartWorker():
                self._started.set_result(message)
            case StopWorker():
                self._stop()
            case Reload(by):
                return await self._reload(by)
            case TakeMetrics():
                return MetricsTaken(await self._metrics())
            case _:
                pass
        return None

    def _stop(self) -> None:
        self._is_told_to_stop = True
        if not self._started.done():
            self._started.cancel()
        if self._app is not None:
            self._app.tell_to_stop()

    def _follow_parent(self) -> None:
        """Stops, as the parent has ended. A drain that has begun goes on: a second order would end its calls."""
        if not self._is_told_to_stop:
            self._stop()

    async def _reload(self, by: str) -> Message:
        if self._app is None:
            return ReloadRefused(["the worker is starting"])
        try:
            await self._app.reloads.reload(by)
        except ConfigError as error:
            return ReloadRefused([problem.reason for problem in error.problems])
        except NothingToDo as error:
            return ReloadRefused([str(error)])
        except Exception as error:  # noqa: BLE001  # logged by the reloader; the parent restarts this process
            return ReloadRefused([type(error).__name__])
        return Agreed()

    async def _metrics(self) -> list[FamilySnapshot]:
        if self._app is None:
            return []
        found = []
        for family in taken(await self._app.ops.metrics.current()):
            found.append(family)
            await self._clock.sleep(0)
        return found

    async def _beat(self, app: App) -> None:
        while True:
            self._channel.tell(_beat_of(app))
            await self._clock.sleep(BEAT_S)


def _beat_of(app: App) -> Beat:
    server = app.config.server
    return Beat(app.reloads.current.digest, server.drain_delay + server.drain)


def main(descriptor: int) -> int:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    codes: list[int] = []
    logs: list[LogWriter] = []

    def prepare(config: Config) -> None:
        logs.append(configure_logging(config.ops.log.format))
        _watch_parent(config)

    async def work() -> None:
        codes.append(await Worker(prepare).run(socket.socket(fileno=descriptor)))

    try:
        run(work())
    except asyncio.CancelledError:  # the parent has ended before the first message
        return 1
    finally:
        for log in logs:
            log.close()
    return codes[0]


def _watch_parent(config: Config) -> None:
    """Ends this process some time after its parent, even if the event loop is blocked."""
    parent, server = os.getppid(), config.server
    longest_s = server.drain_delay + server.drain + _GRACE_S

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_LOOKS_S)
        time.sleep(longest_s)
        os._exit(1)

    threading.Thread(target=look, name="parent watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
