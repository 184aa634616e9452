"""Starts the workers, restarts those that end or hang, and stops all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from llm_guard.clock import Clock
from llm_guard.config import CommandLineOverrides, ConfigError, ConfigProblem
from llm_guard.storage.shared.memory_store import MemoryStore, SharedMemory
from llm_guard.worker_thread import wait_at_most
from llm_guard.workers.child import Child, EndReason
from llm_guard.workers.merging import lasting
from llm_guard.workers.messages import (
    Agree,
    Beat,
    ExchangeReply,
    ExchangeRequest,
    Message,
    OverridesReply,
    OverridesRequest,
    ReadConfig,
    StartFailed,
    StartWorker,
    StopWorker,
    Withdraw,
)
from llm_guard.workers.reloads import Reloads
from llm_guard.workers.restarts import HangWatch, RestartBackoff
from llm_guard.workers.snapshot import FamilySnapshot

_log = structlog.get_logger("llm_guard.workers.supervisor")

_LOOK_S = 1.0
_MOST_START_LOOKS = 120
_OTHER_DIGEST_LOOKS = 5
_AFTER_DRAIN_S = 10.0
"""Seconds for the end of a worker after its drain."""


class WorkerFailed(OSError):
    """Raised if a worker cannot start; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Place:
    """What all workers have in common."""

    port: int
    """Port for calls, which the parent holds."""
    folder: Path
    """Private folder for the UNIX sockets."""
    path: Path
    """The config file."""
    overrides: CommandLineOverrides


class WorkerSupervisor:
    """`start`, then `stop`."""

    def __init__(
        self, count: int, place: Place, text: str, clock: Clock, most_silent_looks: int
    ) -> None:  # fmt: skip
        """`text`: the content of the config file. `most_silent_looks`: looks, one a second, without a beat after which
        a worker hangs, and is killed."""
        self._count = count
        self._place = place
        self._clock = clock
        self._most_silent_looks = most_silent_looks
        self._memory = SharedMemory()
        self._stores: dict[Child, MemoryStore] = {}
        self._generations = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self.children: dict[int, Child] = {}
        self.reloads = Reloads(place.path, text, self.ready)
        self.restarts: Counter[EndReason] = Counter()
        """Workers that have ended without having been told to, by reason."""
        self.lasting: list[FamilySnapshot] = []
        """The counts of workers that have ended."""
        self._stopping = asyncio.Event()
        self._is_started = False

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def ready(self) -> list[Child]:
        """Returns the workers that accept calls, the one with the lowest number first."""
        return [child for _, child in sorted(self.children.items()) if child.is_ready]

    async def start(self) -> None:
        """Returns when all workers accept connections. Raises OSError or ConfigError if one cannot start."""
        try:
            for number in range(1, self._count + 1):
                child = await self._begin(number)
                self._tasks.append(asyncio.get_running_loop().create_task(self._keep(child)))
            for child in self.children.values():
                if not await child.started:
                    raise self._error(child)
        except BaseException:
            await self._abandon()
            raise
        self._is_started = True

    async def stop(self) -> None:
        """Drains all workers; kills those that take longer than their config allows."""
        self._stopping.set()
        for child in self.children.values():
            self._drain(child)
        ending = asyncio.gather(*self._tasks)
        longest_s = max((child.drain_s for child in self.children.values()), default=0.0)
        await asyncio.wait((ending,), timeout=longest_s + _AFTER_DRAIN_S)
        for child in self.children.values():
            child.kill("stop")
        await ending

    def hurry(self) -> None:
        """Ends the running calls."""
        for child in self.children.values():
            child.channel.tell(StopWorker())

    async def _abandon(self) -> None:
        self._stopping.set()
        for child in self.children.values():
            child.kill("start")
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep(self, child: Child) -> None:
        """Starts a worker again whenever it ends, until `stop`. One that cannot start at first is not tried again."""
        backoff, last = RestartBackoff(), child
        while True:
            await self._watch(last)
            self._bury(last)
            if self._stopping.is_set() or not self._is_started:
                return
            if (begun := await self._restarted(last, backoff)) is None:
                return
            last = begun

    async def _restarted(self, last: Child, backoff: RestartBackoff) -> Child | None:
        """Returns the worker that takes the place of one that has ended; None if all are stopped meanwhile."""
        await self._pause(self._note_end(last, backoff))
        while not self._stopping.is_set():
            if (begun := await self._begun_again(last.number)) is not None:
                if self._stopping.is_set():
                    begun.kill("stop")
                return begun
            await self._pause(backoff.wait_s(0.0))
        return None

    async def _begun_again(self, number: int) -> Child | None:
        """Returns None if the system has no resources for it."""
        try:
            return await self._begin(number)
        except OSError as error:
            _log.error("a worker cannot be started", worker=number, error=str(error))
            return None

    async def _begin(self, number: int) -> Child:
        """Starts a worker. Raises OSError."""
        place = self._place
        start = StartWorker(
            number, self._count, place.port, str(place.folder / f"{number}-{next(self._generations)}"), str(place.path),
            self.reloads.text, dict(place.overrides.server), dict(place.overrides.log),
        )  # fmt: skip
        child = Child(start, self._serve, self._clock)
        await child.begin()
        self._stores[child] = MemoryStore(self._memory, f"worker-{number}", self._clock)
        self.children[number] = child
        return child

    async def _watch(self, child: Child) -> None:
        """Returns when its process has ended. Kills it if it hangs, does not start, or keeps to another config."""
        ended = asyncio.ensure_future(child.ended())
        starting, hanging, differing = 0, HangWatch(self._most_silent_looks), 0
        while not ended.done():
            await asyncio.wait((ended,), timeout=_LOOK_S)
            if not child.started.done():
                starting += 1
                if starting >= _MOST_START_LOOKS:
                    child.kill("start")
                continue
            if hanging.look(child.beats):
                child.kill("hang")
            differing = 0 if child.digest == self.reloads.digest else differing + 1
            if differing == _OTHER_DIGEST_LOOKS and child.is_ready:
                child.killed_for = "config"
                self._drain(child)

    def _drain(self, child: Child) -> None:
        """Tells it once: a second time would end its calls."""
        if not child.is_leaving:
            child.is_leaving = True
            child.channel.tell(StopWorker())

    def _bury(self, child: Child) -> None:
        self.lasting = lasting([self.lasting, child.metrics])
        child.metrics = []
        self._memory.published.pop(f"worker-{child.number}", None)
        del self._stores[child]
        with suppress(OSError):  # a file system that cannot be written must not end the supervision
            Path(child.start.admin_socket).unlink(missing_ok=True)

    def _note_end(self, child: Child, backoff: RestartBackoff) -> float:
        reason: EndReason = child.killed_for or ("exit" if child.started.result() else "start")
        self.restarts[reason] += 1
        wait_s = backoff.wait_s(self._clock.now() - child.began_at)
        problem = None if child.start_problem is None else child.start_problem.problem
        _log.error(
            "a worker has ended, and is started again", worker=child.number, pid=child.pid, reason=reason,
            exit_code=child.exit_code, problem=problem, wait_s=wait_s,
        )  # fmt: skip
        return wait_s

    async def _pause(self, seconds: float) -> None:
        """Returns after so many seconds, or when the workers are stopped."""
        with suppress(TimeoutError):
            await wait_at_most(seconds, self._stopping.wait(), self._clock)

    def _error(self, child: Child) -> Exception:
        failure = child.start_problem or StartFailed(
            f"worker {child.number} has ended (exit code {child.exit_code})", False
        )
        if not failure.is_config:
            return WorkerFailed(failure.problem)
        return ConfigError([ConfigProblem("", 0, "", line) for line in failure.problem.splitlines()])

    async def _serve(self, child: Child, message: Message) -> Message | None:
        store = self._stores.get(child)
        if store is None:  # it has ended
            return None
        match message:
            case Beat(digest, drain_s):
                child.beats += 1
                child.digest, child.drain_s = digest, drain_s
                self.reloads.note_ready(digest)
            case ExchangeRequest(content, wanted, slots):
                return ExchangeReply(await store.exchange(content, wanted, slots))
            case OverridesRequest(changed):
                return OverridesReply(await store.change_overrides(changed))
            case Withdraw():
                await store.close()
            case ReadConfig():
                return await self.reloads.text_for(child)
            case Agree():
                return await self.reloads.agree(child, message)
            case _:
                pass
        return None
