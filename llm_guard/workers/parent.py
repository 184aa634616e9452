"""The parent of several workers: holds the port, has their store, and serves the admin API."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

import structlog

from llm_guard.admin.http.operator_token import OperatorToken
from llm_guard.clock import SystemClock
from llm_guard.config import CommandLineOverrides, Config, ConfigError, config_text, problem_at
from llm_guard.proxy.http_server.binding import TcpAddress, address_of, bound, hold, listen, listener_settings
from llm_guard.proxy.http_server.connection import Listener
from llm_guard.worker_thread import WorkerThread
from llm_guard.workers.admin_api import AdminApi
from llm_guard.workers.agreement import AGREE_S
from llm_guard.workers.channel import ChannelClosed
from llm_guard.workers.merging import GAUGES, IN_ONE_STORE
from llm_guard.workers.messages import Reload
from llm_guard.workers.metrics_page import MetricsPage
from llm_guard.workers.supervisor import Place, WorkerSupervisor

_log = structlog.get_logger("llm_guard.workers.parent")

_TOKEN_S = 5.0
_WATCH_S = 1.0
_CLOSING_S = 2.0
_LONGEST_FOLDER = 95
"""Bytes of a path in which sockets have room: the kernel takes 107 for both (unix(7))."""


class ParentProcess:
    """One gateway with several workers. Call `start`, `handle_signals` and `run`."""

    def __init__(
        self, config: Config, path: Path, overrides: CommandLineOverrides, workers: int, *, most_silent_looks: int = 15
    ) -> None:
        """`config` is the one at `path`, with the command line's overrides. `most_silent_looks`: seconds after which a
        worker whose event loop does not run is killed."""
        self._config = config
        self._path = path
        self._overrides = overrides
        self._workers = workers
        self._clock = SystemClock()
        self._most_silent_looks = most_silent_looks
        self._is_told_to_stop = asyncio.Event()
        self._is_asked_to_reload = False
        self._servers: list[asyncio.Server] = []
        """The one that holds the port for calls, and the admin API's."""
        self.operator_token = OperatorToken()

    async def start(self) -> None:
        """Starts the workers; they accept connections when this returns. Raises OSError if an address is not available,
        and ConfigError if a worker cannot use the config, or there is no folder for sockets."""
        text = await WorkerThread("config file").run(config_text, self._path)
        await self._check_token()
        self._folder = self._new_folder()
        try:
            await self._start(text)
        except BaseException:
            self._close()
            raise

    def _new_folder(self) -> Path:
        """Makes the private folder for the sockets of the workers. Raises ConfigError."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="llm-guard-"))
            if len(os.fsencode(folder)) > _LONGEST_FOLDER:
                folder.rmdir()
                raise OSError(f"{folder.parent}: the path is too long for sockets")
        except OSError as error:
            reason = f"several workers need a folder for their sockets: set TMPDIR to another one ({error})"
            raise ConfigError([problem_at(self._path, ("server", "workers"), reason)]) from error
        return folder

    async def _start(self, text: str) -> None:
        config, clock = self._config, self._clock
        held = await hold(config.server.host, config.server.port)
        self._servers.append(held)
        port = held.sockets[0].getsockname()[1]
        place = Place(port, self._folder, self._path, self._overrides)
        self.supervisor = WorkerSupervisor(self._workers, place, text, clock, self._most_silent_looks)
        rules = GAUGES if config.store.cache.kind == "memory" else {**GAUGES, **IN_ONE_STORE}
        metrics = MetricsPage(self.supervisor, self._workers, rules, clock)
        self._listener = Listener(AdminApi(self.supervisor, metrics, clock).serve, listener_settings(config), clock)
        assert config.ops.port is not None  # noqa: S101  # `config.workers` refuses it
        admin = await bound(self._listener, TcpAddress(config.ops.host, config.ops.port))
        self._servers.append(admin)
        await self.supervisor.start()
        await listen(admin)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch()), loop.create_task(metrics.run())]

    @property
    def addresses(self) -> list[str]:
        """URLs of the listeners, the one for calls first."""
        scheme = "http" if self._config.server.tls is None else "https"
        return [address_of(server, each) for server, each in zip(self._servers, (scheme, "http"), strict=True)]

    def handle_signals(self) -> None:
        """Installs signal handlers: SIGTERM and SIGINT end `run`, a second one ends running calls, SIGHUP reloads."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._ask_to_reload)

    async def run(self) -> None:
        """Serves until a signal stops it, then drains."""
        await self._is_told_to_stop.wait()
        await self.stop()

    async def stop(self) -> None:
        """Drains and stops all workers; the admin API is the last to end."""
        self._tasks[0].cancel()
        await self.supervisor.stop()
        self._tasks[1].cancel()
        await self._listener.close(_CLOSING_S)
        self._close()
        _log.info("all workers have stopped")

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _check_token(self) -> None:
        """Makes the token before the workers do. Raises ConfigError if they would not all have the same one."""
        await self.operator_token.prepare_within(_TOKEN_S, self._config.ops, self._clock)
        generated = self.operator_token.generated
        if generated is not None and generated.file is None:
            reason = "must be set with several workers if the folder ops.store cannot be written"
            raise ConfigError([problem_at(self._path, ("ops", "token"), reason)])

    async def _watch(self) -> None:
        """Reloads when the file changes, or on SIGHUP; polls like `ConfigReloader.watch`."""
        while True:
            await self._clock.sleep(_WATCH_S)
            is_due = self._is_asked_to_reload or self.supervisor.reloads.is_due()
            if is_due and (ready := self.supervisor.ready()):
                by = "signal" if self._is_asked_to_reload else "file"
                self._is_asked_to_reload = False
                try:
                    await ready[0].channel.ask(Reload(by), 2 * AGREE_S)
                except (ChannelClosed, TimeoutError):
                    self._is_asked_to_reload = True

    def _ask_to_reload(self) -> None:
        self._is_asked_to_reload = True

    def _on_signal(self) -> None:
        if self._is_told_to_stop.is_set():
            self.supervisor.hurry()
        self._is_told_to_stop.set()
