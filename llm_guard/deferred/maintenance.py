"""Periodic maintenance of stored calls: renews leases, recovers calls of dead gateways, deletes expired ones,
counts."""

from __future__ import annotations

import structlog

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.deferred.state import DeferredState
from llm_guard.deferred.worker import LEASE_S, DeferredWorker
from llm_guard.storage.calls.store import CallStore, StoreError

_log = structlog.get_logger("llm_guard.deferred.maintenance")

EVERY_S = LEASE_S / 4
"""A lease survives two missed renewals."""
_SWEEP_EVERY_S = 60.0


class StoreMaintenance:
    """Life cycle: `await run()` until it is cancelled."""

    def __init__(self, config: Config, state: DeferredState, runner: DeferredWorker, clock: Clock) -> None:
        self._call_store = state.call_store
        self._runner = runner
        self._running = state.running
        self._counts = state.counts
        self._events = state.events
        self._terms = state.terms
        self._clock = clock
        self._swept_at = float("-inf")
        self._is_failing = False
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config."""
        self._store = config.store

    async def run(self) -> None:
        while True:
            try:
                await self._look()
                self._is_failing = False
            except StoreError as error:
                if not self._is_failing:  # once: a directory without permission stays that way
                    self._events.note("call_store", "maintenance_failed")
                    _log.error("maintenance of stored calls failed", error=str(error))
                self._is_failing = True
            self._events.look()
            await self._clock.sleep(EVERY_S)

    async def _look(self) -> None:
        """Runs one round of maintenance. Raises StoreError."""
        await self._runner.follow_clock()
        if running := self._running.ids():
            gone = await self._call_store.do(lambda store: store.extend(running, self._clock.wall(), LEASE_S))
            for kept_id in gone:
                self._running.cancel_lost(kept_id)
        if recovered := await self._call_store.do(lambda store: store.recover(self._clock.wall())):
            _log.info("stored calls of an ended process taken over", count=recovered)
            self._runner.wake()
        if self._clock.now() - self._swept_at >= _SWEEP_EVERY_S:
            self._swept_at = self._clock.now()
            self._terms.forget_expired(_SWEEP_EVERY_S)
            await self._call_store.do(self._sweep)
        counted = self._counts.uncounted
        self._counts.found = await self._call_store.do(lambda store: store.stats())
        self._counts.uncounted -= counted  # calls that were deferred meanwhile may not be in the count

    def _sweep(self, store: CallStore) -> None:
        letters = self._store.dead_letters
        count = store.sweep(self._clock.wall(), self._store.deferred.result_ttl, letters.max_age, letters.size)
        if count:
            _log.info("expired stored calls deleted", count=count)
