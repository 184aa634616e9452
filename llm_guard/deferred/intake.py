"""Stores calls that outlive their client's request: deferred calls and dead letters.

A call is either stored or counted as lost, and no client waits long for the store. `deferred.worker` executes the
stored calls.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.deferred.counters import LossReason
from llm_guard.deferred.serialization import MOST_BODY_BYTES, body_of, end_of, ended_of, new_id, stored_call
from llm_guard.deferred.state import DeferredState
from llm_guard.deferred.status_api import StatusApi
from llm_guard.deferred.store_client import SlowStore
from llm_guard.outcome import Disposition, Refusal
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.resilience.degradation.deferred import DeferredSettings, RetryDeferred, decide_after_round
from llm_guard.storage.calls.store import CallFailure, CallFilter, StoredCall, StoreError

_log = structlog.get_logger("llm_guard.deferred.intake")

_MOST_WAITING_BYTES = 4 * MOST_BODY_BYTES
_MOST_WAITING = 200
"""Limit on calls that wait for the store. A write takes a few milliseconds, so that more would wait for over a
second."""
_COME_BACK_S = 10.0
_TOO_LARGE = Refusal(
    413,
    "too_large_to_keep",
    f"a call can only be deferred with a body of at most {MOST_BODY_BYTES} bytes",
    by="limit",
)


class CallIntake:
    """Implements `proxy.ports.DeferredStore`."""

    def __init__(self, config: Config, state: DeferredState, clock: Clock, draw: Callable[[], float]) -> None:
        """`draw` returns a uniform random number in [0, 1)."""
        self._call_store = state.call_store
        self._status_api = StatusApi(state.call_store, clock, state.running.give_up)
        self._credentials = state.credentials
        self._counts = state.counts
        self._events = state.events
        self._terms = state.terms
        self._running = state.running
        self._has_work = state.has_work
        self._clock = clock
        self._draw = draw
        self._waiting = self._waiting_bytes = 0
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config."""
        self._most_waiting = config.store.deferred.max_pending

    async def serve_status_api(self, call: Call, reply: ResponseWriter) -> None:
        await self._status_api.serve(call, reply)

    async def defer(self, call: Call, *, is_at_once: bool) -> str | Refusal:
        assert call.route is not None  # noqa: S101  # only a call with a route has rules that defer it
        if self._counts.waiting >= self._most_waiting or self._is_full:
            return _later("too_many_deferred_calls", "too many deferred calls are pending")
        ended = None if is_at_once else ended_of(call)
        due_in_s = 0.0 if ended is None else self._due_in_s(call, call.route.lasting.later)
        if due_in_s is None:
            return _later("not_deferrable", "the call is not deferred: it would fail in the same way later")
        try:
            body = await body_of(call, self._clock)
        except OSError as error:
            return _later(
                "deferral_failed", f"the call is not deferred: its body cannot be read again: {error.strerror}"
            )
        if body is None:
            return _TOO_LARGE
        kept = self._deferred_call(call, body, ended, due_in_s, call.route.lasting.later)
        self._credentials.keep(kept.id, call)
        self._terms.note(kept)
        self._counts.uncounted += 1
        try:
            await self._write(kept)
        except BaseException as error:
            self._counts.uncounted -= 1
            # The client never gets this id, so the call must not run.
            self._credentials.forget(kept.id)
            self._terms.forget(kept.id)
            self._running.take_back(kept.id)
            self._call_store.run_unawaited(lambda store: store.delete(CallFilter(ids=(kept.id,))))
            if isinstance(error, StoreError):
                if self._events.note("deferred", "rejected"):
                    _log.error("a call could not be deferred", error=str(error))
                return _later("deferral_failed", "the call is not deferred: the gateway's store fails")
            raise
        _disposition(call).deferred_id = kept.id
        self._events.note("deferred", "accepted")
        self._has_work.set()
        return kept.id

    def _due_in_s(self, call: Call, rules: DeferredSettings) -> float | None:
        """Seconds until a failed call is tried again, or None if it never is."""
        step = decide_after_round(
            end_of(call),
            rounds=1,
            is_repeatable=call.is_repeatable,
            is_own_doing=False,  # calls that failed by their client's doing are not deferred
            left_s=rules.deadline,
            u=self._draw(),
        )
        return step.after_s if isinstance(step, RetryDeferred) else None

    def _deferred_call(
        self, call: Call, body: bytes, ended: CallFailure | None, due_in_s: float, rules: DeferredSettings
    ) -> StoredCall:  # fmt: skip
        kept = stored_call(new_id(), call, body, ended, self._clock, purpose="deferred", state="queued")
        wall = self._clock.wall()
        return msgspec.structs.replace(
            kept, due_at=wall + due_in_s, deadline_at=wall + rules.deadline, webhook=rules.webhook,
            rounds=0 if ended is None else 1,
        )  # fmt: skip

    async def dead_letter(self, call: Call) -> str | None:
        try:
            body = await body_of(call, self._clock)
        except OSError as error:
            self._lose("body_unreadable", str(error.strerror))
            return None
        if body is None:
            self._lose("body_too_large", f"its body is larger than {MOST_BODY_BYTES} bytes")
            return None
        if self._is_full:
            self._lose("queue_full", f"{self._waiting} calls of {self._waiting_bytes} bytes wait for the store")
            return None
        kept = stored_call(new_id(), call, body, ended_of(call), self._clock, purpose="dead_letter", state="dead")
        self._credentials.keep(kept.id, call)
        try:
            await self._write(kept)
        except StoreError as error:
            self._credentials.forget(kept.id)
            self._lose("write_timeout" if isinstance(error, SlowStore) else "write_failed", str(error))
            return None
        _disposition(call).dead_letter_id = kept.id
        self._events.note("dead_letter", "stored")
        return kept.id

    async def _write(self, kept: StoredCall) -> None:
        """Writes the call to the store. Raises StoreError."""
        size = len(kept.request.body or b"")
        self._waiting += 1
        self._waiting_bytes += size
        try:
            await self._call_store.add(kept)
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size

    @property
    def _is_full(self) -> bool:
        return self._waiting >= _MOST_WAITING or self._waiting_bytes >= _MOST_WAITING_BYTES

    def _lose(self, reason: LossReason, problem: str) -> None:
        self._counts.lost[reason] += 1
        if self._events.note("dead_letter", "lost"):
            _log.error("a dead letter was lost", reason=reason, error=problem)


def _later(code: str, message: str) -> Refusal:
    return Refusal(503, code, message, by="limit", retry_after_s=_COME_BACK_S, should_retry=True)


def _disposition(call: Call) -> Disposition:
    if call.disposition is None:
        call.disposition = Disposition()
    return call.disposition
