"""Executes one round of a stored call through the gateway.

Uses the current config and the credentials in memory. `deferred.worker` decides when, `resilience.degradation.deferred`
what follows a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from llm_guard.clock import Clock
from llm_guard.deferred.serialization import MOST_BODY_BYTES, call_of, end_of, ended_of
from llm_guard.deferred.state import DeferredState
from llm_guard.outcome import Failure, FailureKind, Scope
from llm_guard.proxy.cache.response_buffer import MOST_BYTES, ResponseBuffer
from llm_guard.proxy.call import Call
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.http_server.error_responses import refusal_of
from llm_guard.proxy.http_server.response_writer import uncancel
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.request_body.reader import BodyLimit, receive
from llm_guard.proxy.telemetry.recorder import is_caused_by_client
from llm_guard.resilience.degradation.deferred import EndDeferred, RetryDeferred, decide_after_round
from llm_guard.storage.calls.store import CallFailure, StoredCall, StoredResponse

_log = structlog.get_logger("llm_guard.deferred.execution")

_LEFT_OUT = frozenset({"connection", "content-length", "set-cookie", "transfer-encoding"})
_NO_BODY = CallFailure(
    kind="no_body", detail="its request body was not stored, or cannot be decrypted with this store.encryption_key"
)
_LATE = CallFailure(kind="deadline", detail="its deadline passed before it could be sent")
_LOST_KEY = (
    "; the caller's API key was only kept in memory and is lost: set the upstream's api_key and requeue the call"
)


@dataclass(frozen=True, slots=True)
class Answered:
    """The call has a response, and is over."""

    answer: StoredResponse
    attempts: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The round failed."""

    ended: CallFailure
    again_in_s: float | None
    """Seconds until the next round, or None if the call is dead."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The round does not count: the gateway is draining, or the call was deleted or taken over."""


Round = Answered | Failed | Interrupted


@dataclass(slots=True)
class _Asking:
    """The state of one round."""

    kept: StoredCall
    call: Call
    recording: ResponseBuffer = field(default_factory=ResponseBuffer)


class DeferredExecutor:
    """Executes stored calls through a `Handler`."""

    def __init__(self, gateway: Handler, state: DeferredState, clock: Clock, draw: Callable[[], float]) -> None:
        """`draw` returns a uniform random number in [0, 1)."""
        self._gateway = gateway
        self._credentials = state.credentials
        self._terms = state.terms
        self._clock = clock
        self._draw = draw

    async def ask(self, kept: StoredCall) -> Round:
        """Executes one round. Raises only CancelledError, and that only if the cancellation is not the gateway's
        drain."""
        if kept.request.body is None:
            return Failed(_NO_BODY, None)
        left_s = self._terms.left_s(kept)
        if left_s is not None and left_s <= 0:
            return Failed(_LATE, None)
        call = call_of(kept, self._credentials.of(kept.id), self._clock.now())
        asking = _Asking(kept, call)
        try:
            await self._ask(asking, kept.request.body)
        except asyncio.CancelledError:
            if not call.is_draining:
                raise
            uncancel()
        except Exception as error:  # noqa: BLE001  # a bug here must not end the runner for all calls to come
            _log.exception("unexpected error in a background call", stored_call_id=kept.id)
            call.failure = Failure(FailureKind.INTERNAL, type(error).__name__)
        finally:
            if not isinstance(call.body, bytes):
                call.body.close()
            self._gateway.recorder.end(call)
        return self._round(asking)

    async def _ask(self, asking: _Asking, body: bytes) -> None:
        """Runs the call until `call.failure`, `call.refusal` or the recording holds the result."""
        call, kept = asking.call, asking.kept
        try:
            call.body, asked = await receive(
                _Pieces(body).read,
                call.content_type,
                call.content_encoding,
                BodyLimit(MOST_BODY_BYTES),
                self._gateway.spool,
                self._clock,
            )
            call.refusal = self._gateway.restore(call, asked)
            if call.refusal is not None:
                return
            if (left_s := self._terms.left_s(kept)) is not None:
                call.deadline_at = min(call.deadline_at, self._clock.now() + left_s)
            gave_up = await self._gateway.execute_background(call, asking.recording.reply(call.method))
        except BadRequest as bad:
            call.refusal = refusal_of(bad)
            return
        if gave_up is not None:
            call.give_up(gave_up)

    def _round(self, asking: _Asking) -> Round:
        call, recording = asking.call, asking.recording
        is_whole = call.failure is None and call.refusal is None and recording.status and not recording.is_broken
        if is_whole:
            headers = tuple((name, value) for name, value in recording.headers if name.lower() not in _LEFT_OUT)
            return Answered(
                StoredResponse(status=recording.status, headers=headers, body=bytes(recording.body)), len(call.attempts)
            )
        if call.is_draining:
            return Interrupted()
        if len(recording.body) > MOST_BYTES:
            ended = CallFailure(kind="response_too_large", detail=f"its response is larger than {MOST_BYTES} bytes")
            return Failed(ended, None)
        return self._failed(asking.kept, call)

    def _failed(self, kept: StoredCall, call: Call) -> Failed:
        if call.failure is None and call.refusal is None:
            call.failure = Failure(FailureKind.TRUNCATED, "the response was cut off")
        end, ended = end_of(call), ended_of(call)
        if isinstance(end, Failure) and end.kind.scope is Scope.CREDENTIAL and self._has_lost_key(kept, call):
            ended = CallFailure(
                kind=ended.kind, detail=ended.detail + _LOST_KEY, status=ended.status, attempts=ended.attempts,
                body=ended.body,
            )  # fmt: skip
        left_s = self._terms.left_s(kept)
        if left_s is None:  # a requeued dead letter: the operator sees the result, and may requeue it again
            return Failed(ended, None)
        step = decide_after_round(
            end,
            rounds=kept.rounds,
            is_repeatable=call.is_repeatable,
            is_own_doing=is_caused_by_client(call),
            left_s=left_s,
            u=self._draw(),
        )
        match step:
            case RetryDeferred(after_s):
                return Failed(ended, after_s)
            case EndDeferred():
                return Failed(ended, None)

    def _has_lost_key(self, kept: StoredCall, call: Call) -> bool:
        last = call.attempts[-1].target.deployment if call.attempts else None
        is_callers = last is not None and last.credential is None
        return is_callers and kept.client is None and not self._credentials.of(kept.id).headers


class _Pieces:
    """Presents a body in memory as a stream that is read."""

    def __init__(self, body: bytes) -> None:
        self._rest = body

    async def read(self) -> bytes:
        body, self._rest = self._rest, b""
        return body
