"""Resumes a stream that dies after commit with another one, which continues where the first ended.

Keeps a transcript of the call's streams, builds the request for the next deployment, and filters its stream for the
client. `proxy.attempts.attempt_loop` selects the deployment, `dialects.resume.transcript` joins the texts.
"""

from __future__ import annotations

import json
from typing import Any

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.dialects.resume.transcript import Prefill, ResumeMode, Splice, Transcript
from llm_guard.dialects.sse import StreamObserver, Usage, split_before
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.call import Attempt, Call, Delivered, StreamDecoder
from llm_guard.proxy.request_body.model_field import BadRequest, inflate
from llm_guard.resilience.streams.settings import JOIN_S, ResumePolicy, may_recover
from llm_guard.routing.route_table import Target

_DIVERGED = Failure(FailureKind.DIVERGED, "restarted, but the response is not the one that was cut off")
_NOT_JOINED = Failure(FailureKind.DIVERGED, "does not repeat the end of the text that was cut off: cannot be joined")
_REFUSALS = frozenset({FailureKind.INVALID_REQUEST, FailureKind.MISROUTED, FailureKind.UNTRANSLATED})
_MAX_BODY_BYTES = 64 << 20


class TranscriptResumer:
    """The transcript of one call's streams, and the requests that continue it."""

    def __init__(self, call: Call, mode: ResumePolicy, transcript: Transcript, clock: Clock) -> None:
        self._call = call
        self._mode = mode
        self._clock = clock
        self._request: dict[str, Any] | None = None
        self.transcript = transcript

    @property
    def tokens(self) -> tuple[Usage, int]:
        """Usage of all streams so far, and the tokens of it that the client did not get."""
        return self.transcript.usage, self.transcript.wasted_tokens

    def adopt(self, served: Delivered) -> bool:
        """Makes this stream the one that the client gets; returns False if that is not possible."""
        opened, attempt = served.opened, served.attempt
        if opened.view is None or opened.exchange is None or not opened.view.takes_events:
            return False
        splice = None
        if attempt.resume_mode is not None:
            marker = {"recovered": attempt.resume_mode, "deployment": attempt.target.deployment.label}
            splice = self.transcript.splice(attempt.resume_mode, marker)
        diverged = _NOT_JOINED if attempt.resume_mode == "instruction" else _DIVERGED
        view = _Recoverable(opened.view, self.transcript, splice, diverged, self._clock)
        opened.buffered, opened.view = view.take(opened.buffered), view
        return True

    def may_go_on(self, served: Delivered, failure: Failure) -> bool:
        """Returns True if any target could continue what the client has."""
        view, route = served.opened.view, self._call.route
        if not may_recover(failure) or view is None or not view.takes_events or route is None:
            return False
        return any(self.resume_mode(target) is not None for target in route.targets)

    def resume_mode(self, target: Target) -> ResumeMode | None:
        resume_modes = self._resume_modes("none" if target.deployment.refuses_prefill else target.prefill)
        return resume_modes[0] if resume_modes else None

    def body(self, target: Target, resume_mode: ResumeMode) -> bytes:
        request = self.transcript.request(self._request or {}, resume_mode, target.prefill)
        if target.model is not None:
            request["model"] = target.model
        return json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")

    def is_refused(self, attempt: Attempt, failure: Failure) -> bool:
        if attempt.resume_mode != "prefill" or failure.kind not in _REFUSALS or "prefill" in self._resume_modes("none"):
            return False
        attempt.target.deployment.refuses_prefill = True
        return True

    def _resume_modes(self, prefill: Prefill) -> tuple[ResumeMode, ...]:
        request = self._read_request()
        if request is None:
            return ()
        if self._mode == "auto":
            resume_modes = self.transcript.resume_modes(request, prefill) if prefill != "none" else ()
            return tuple(resume_mode for resume_mode in resume_modes if resume_mode == "prefill")
        resume_modes = self.transcript.resume_modes(request, prefill) if self._mode == "continue" else ()
        if not resume_modes and self.transcript.can_restart(request):
            return ("restart",)
        return resume_modes

    def _read_request(self) -> dict[str, Any] | None:
        if self._request is None:
            if not isinstance(self._call.body, bytes):
                return None  # in a file: too large to parse
            try:
                body = inflate(self._call.body, self._call.content_encoding, _MAX_BODY_BYTES)
                request = json.loads(body or b"null")
            except (ValueError, RecursionError, BadRequest):
                return None
            self._request = request if isinstance(request, dict) else None
        return self._request


class _Recoverable:
    """A view of a stream that another stream may continue, or that continues another; implements
    `proxy.call.StreamDecoder`."""

    def __init__(
        self, view: StreamDecoder, transcript: Transcript, splice: Splice | None, diverged: Failure, clock: Clock
    ) -> None:  # fmt: skip
        self._view = view
        self._transcript = transcript
        self._splice = splice
        self._clock = clock
        self._diverged = diverged
        self._join_by: float | None = None
        """Instant until which its text is held to find the seam; None if it is not held."""
        self.suppressed = b""
        self.is_closed = False
        self._failure: Failure | None = None

    @property
    def watch(self) -> StreamObserver:
        return self._view.watch

    @property
    def takes_events(self) -> bool:
        return self._view.takes_events

    @property
    def failure(self) -> Failure | None:
        """The view's failure; also set if a second run ends without all that the client has, such as a choice."""
        is_over = self._splice is not None and self._view.has_ended
        if self._failure is None and is_over and not self._transcript.has_ended:
            return self._diverged
        return self._failure

    def feed(self, chunk: bytes) -> bytes:
        return self.take(self._view.feed(chunk))

    def trailing_bytes(self) -> bytes:
        if self._splice is None:
            return self._view.trailing_bytes()
        return self._splice.feed(self._view.missing_end)

    @property
    def is_compressed(self) -> bool:
        return self._view.is_compressed

    @property
    def has_ended(self) -> bool:
        return self._view.has_ended

    @property
    def missing_end(self) -> bytes:
        return self._view.missing_end

    def take(self, block: bytes) -> bytes:
        """Takes complete events; returns the bytes to pass on to the client."""
        watch = self._view.watch
        if watch.error is not None and not self.is_closed:
            if self._view.suppressed:  # by the view of a translated stream, which is in another dialect than the error
                self.suppressed = self._view.suppressed
            else:
                block, self.suppressed = split_before(block, watch.error)
            self.is_closed = True
        if self._view.is_closed:
            self._failure, self.is_closed = self._view.failure, True
        if self._splice is None:
            self._transcript.feed(block)
            return block
        told = self._splice.feed(block)
        if self._splice.has_diverged or self._is_too_late(self._splice):
            self._failure, self.is_closed = self._diverged, True
        return told

    def _is_too_late(self, splice: Splice) -> bool:
        """Returns True if no seam was found in time. Checked only when bytes arrive: `idle` limits silence."""
        if not splice.is_searching:
            self._join_by = None
            return False
        now = self._clock.now()
        if self._join_by is None:
            self._join_by = now + JOIN_S
        return now >= self._join_by


def recovery_of(call: Call, served: Delivered, clock: Clock) -> TranscriptResumer | None:
    """Returns the recovery of this call's stream; None if it cannot be resumed."""
    mode = call.route.stream.recover if call.route is not None else "off"
    if mode == "off" or not call.is_repeatable or call.model is None:
        return None
    transcript = DIALECTS[call.dialect].transcript(call.path)
    recovery = TranscriptResumer(call, mode, transcript, clock) if transcript is not None else None
    return recovery if recovery is not None and recovery.adopt(served) else None
