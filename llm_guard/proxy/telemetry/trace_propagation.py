"""Propagates a trace from the caller through the call to its upstreams.

Without a tracer the caller's headers pass unchanged. `trace_context` has the header format, `admin.tracing.exporter`
exports spans.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from llm_guard.proxy.call import Attempt, Call
from llm_guard.proxy.headers import value_of
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.trace_context import Parent, TraceContext, is_kept, parse_traceparent, traceparent

_PARENT = "traceparent"
_STATE = "tracestate"


class Tracer:
    """Creates the trace context of each call."""

    def __init__(self, random: Random, share: float) -> None:
        """`share`, 0 to 1, is the part of the calls without a `traceparent` that is traced."""
        self._random = random
        self._share = share

    def begin(self, parent: Parent | None) -> TraceContext | None:
        """Returns the context of a new call; None if it is not traced. The caller's sampling decision is kept."""
        if parent is not None:
            return TraceContext(parent.trace_id, self._new_id(64), parent.span_id) if parent.is_sampled else None
        trace_id = self._new_id(128)
        return TraceContext(trace_id, self._new_id(64), None) if is_kept(trace_id, self._share) else None

    def _new_id(self, bits: int) -> int:
        return self._random.getrandbits(bits) or 1


class Tracing(Protocol):
    """Traces calls while it is on, which a reload changes. `admin.tracing.exporter` implements it."""

    tracer: Tracer | None
    """None if calls are not traced."""

    def export(self, call: Call, trace: TraceContext, now: float) -> None:
        """Exports the spans of a traced call that has just ended. Must not raise."""


def begin_trace(call: Call, tracer: Tracer | None) -> None:
    """Sets the call's trace: the caller's if it sent one, else a new one if there is a tracer and it samples the
    call."""
    parent = parse_traceparent(value_of(call.headers, _PARENT))
    if parent is not None:
        call.trace_id = parent.trace_id
    if tracer is not None and (trace := tracer.begin(parent)) is not None:
        call.trace, call.trace_id = trace, trace.trace_id


def pass_on(headers: RequestHeaders, trace: TraceContext, attempt: Attempt) -> RequestHeaders:
    """Returns the headers of a request to an upstream with those of its trace: its parent span is this attempt."""
    attempt.span_id = trace.next_span_id()
    # A tracestate without a traceparent belongs to another trace.
    dropped = (_PARENT,) if trace.parent_id is not None else (_PARENT, _STATE)
    kept = [pair for pair in headers.pairs if pair[0].lower() not in dropped]
    return RequestHeaders([*kept, (_PARENT, traceparent(trace.trace_id, attempt.span_id))])
