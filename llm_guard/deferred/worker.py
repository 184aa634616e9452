"""Takes due calls from the store, runs a few at a time, and writes the result of each.

Limits the concurrency, and the rate of dead letters. `deferred.execution` executes one call, `deferred.maintenance`
renews the leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.deferred.counters import RoundOutcome
from llm_guard.deferred.execution import Answered, DeferredExecutor, Failed, Interrupted, Round
from llm_guard.deferred.running_calls import RunningCall
from llm_guard.deferred.state import DeferredState
from llm_guard.storage.calls.store import CallFilter, Purpose, StoredCall, StoreError

_log = structlog.get_logger("llm_guard.deferred.worker")

LEASE_S = 10.0
"""Seconds that a lease lasts: after that another gateway takes over the call of a dead one."""
_LOOK_EVERY_S = 1.0


class DeferredWorker:
    """Life cycle: `await run()` until `leave()`; then `await stop()`."""

    def __init__(
        self,
        config: Config,
        state: DeferredState,
        executor: DeferredExecutor,
        clock: Clock,
        on_over: Callable[[], None],
    ) -> None:
        """`on_over` is called when a call has ended, so that its webhook can be sent."""
        self._call_store = state.call_store
        self._executor = executor
        self._credentials = state.credentials
        self._counts = state.counts
        self._events = state.events
        self._terms = state.terms
        self._running = state.running
        self._has_work = state.has_work
        self._clock = clock
        self._on_over = on_over
        self._is_leaving = self._is_failing = False
        self._letters_since = clock.now()
        """Instant from which unused starts of dead letters accumulate, as in a token bucket."""
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config."""
        self._at_once = config.store.deferred.concurrency
        self._pace = config.store.dead_letters.requeue_rate

    async def run(self) -> None:
        """Begins due calls every second, and whenever it is woken."""
        while not self._is_leaving:
            try:
                await self.follow_clock()
                await self._begin("deferred", self._room("deferred"))
                self._note_letters(
                    await self._begin("dead_letter", min(self._room("dead_letter"), int(self._letters_due())))
                )
                self._is_failing = False
            except StoreError as error:
                if not self._is_failing:
                    self._events.note("call_store", "read_failed")
                    _log.error("stored calls cannot be started", error=str(error))
                self._is_failing = True
            await self._rest()

    async def follow_clock(self) -> None:
        """Rewrites the instants in the store if the wall clock was set. Raises StoreError."""
        if (ahead_s := self._terms.jumped()) is not None:
            if times := self._terms.times(ahead_s):
                await self._call_store.do(lambda store: store.reschedule(times))
                _log.warning("the wall clock was changed: deadlines of deferred calls adjusted", calls=len(times))
            self._terms.accept(ahead_s)

    def wake(self) -> None:
        """Looks for due calls now instead of at the next second."""
        self._has_work.set()

    def leave(self) -> None:
        """Begins no more calls; running ones go on."""
        self._is_leaving = True
        self._has_work.set()

    async def stop(self, within_s: float) -> None:
        """Waits until the running calls, which the drain interrupts, are written to the store; cancels them after
        `within_s`."""
        if tasks := [begun.task for begun in self._running if begun.task is not None]:
            _, hanging = await asyncio.wait(tasks, timeout=within_s)
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    def _room(self, purpose: Purpose) -> int:
        return self._at_once - self._running.count(purpose)

    def _letters_due(self) -> float:
        """Returns how many dead letters may begin now. The bucket holds one second's worth, at least one."""
        most = max(1.0, self._pace * _LOOK_EVERY_S)
        return min(most, (self._clock.now() - self._letters_since) * self._pace)

    def _note_letters(self, count: int) -> None:
        self._letters_since = self._clock.now() - (self._letters_due() - count) / self._pace

    async def _begin(self, purpose: Purpose, room: int) -> int:
        """Begins up to `room` due calls, and returns how many. Raises StoreError."""
        if room <= 0:
            return 0
        wall = self._clock.wall()
        found = await self._call_store.do(lambda store: store.begin(wall, room, LEASE_S, purpose))
        for kept in found:
            self._terms.note(kept)
            begun = self._running.add(kept)
            begun.task = asyncio.get_running_loop().create_task(self._run_one(begun), name=f"stored call {kept.id}")
        return len(found)

    async def _rest(self) -> None:
        alarm = self._clock.call_at(self._clock.now() + _LOOK_EVERY_S, self._has_work.set)
        await self._has_work.wait()
        self._has_work.clear()
        alarm.cancel()

    async def _run_one(self, begun: RunningCall) -> None:
        try:
            outcome = await self._outcome(begun)
            self._counts.rounds[begun.kept.purpose, outcome] += 1
            if outcome not in ("retry", "interrupted"):
                self._terms.forget(begun.kept.id)
        except StoreError as error:
            self._counts.rounds[begun.kept.purpose, "lost"] += 1
            _log.error(
                "the outcome of a stored call could not be written", stored_call_id=begun.kept.id, error=str(error)
            )
        finally:
            self._running.remove(begun.kept.id)
            self._has_work.set()

    async def _outcome(self, begun: RunningCall) -> RoundOutcome:
        """Executes the call, and writes the result to the store. Raises StoreError."""
        try:
            begun.is_asking = True
            is_wanted = not (begun.is_given_up or self._is_leaving)
            ended = await self._executor.ask(begun.kept) if is_wanted else Interrupted()
        except asyncio.CancelledError:
            if not (begun.is_given_up or begun.is_taken):
                raise
            ended = Interrupted()
        begun.is_asking = False
        outcome = await self._write(begun.kept, ended)
        return await self._drop(begun.kept) if begun.is_given_up else outcome

    async def _write(self, kept: StoredCall, ended: Round) -> RoundOutcome:
        wall = self._clock.wall()
        match ended:
            case Answered(answer, attempts):
                is_ours = await self._call_store.run_with_retries(
                    lambda store: store.answer(kept.id, answer, attempts, wall)
                )
                return self._over(kept, "answered") if is_ours else "lost"
            case Failed(failure, None):
                is_ours = await self._call_store.run_with_retries(
                    lambda store: store.dead_letter(kept.id, failure, wall)
                )
                return self._over(kept, "dead") if is_ours else "lost"
            case Failed(failure, after_s):
                due_at = wall + (after_s or 0.0)
                self._terms.postpone(kept.id, self._clock.now() + (after_s or 0.0))
                is_ours = await self._call_store.run_with_retries(
                    lambda store: store.put_back(kept.id, failure, wall, due_at)
                )
                return "retry" if is_ours else "lost"
            case Interrupted():
                self._terms.postpone(kept.id, self._clock.now())
                is_ours = await self._call_store.run_with_retries(
                    lambda store: store.put_back(kept.id, None, wall, wall)
                )
                return "interrupted" if is_ours else "lost"

    def _over(self, kept: StoredCall, outcome: RoundOutcome) -> RoundOutcome:
        if outcome == "answered":
            self._credentials.forget(kept.id)
        self._counts.uncounted -= kept.purpose == "deferred"
        self._events.note("dead_letter" if kept.purpose == "dead_letter" else "deferred", outcome)
        self._on_over()
        return outcome

    async def _drop(self, kept: StoredCall) -> RoundOutcome:
        self._credentials.forget(kept.id)
        await self._call_store.run_with_retries(lambda store: store.delete(CallFilter(ids=(kept.id,))))
        return "cancelled"
