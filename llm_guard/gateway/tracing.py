"""A call's place in a trace, from its caller to its upstreams.

Owns the ids, and the headers that carry them. Does not own the form of these headers (`policy.trace_context`), nor what
is told of a call (`ops.traces`). Without a tracer a caller's headers pass as they are.
"""

from __future__ import annotations

from random import Random

from llm_guard.call import Attempt, Call
from llm_guard.gateway.headers import value_of
from llm_guard.policy.trace_context import Parent, TraceContext, is_kept, parse_traceparent, traceparent

_PARENT = "traceparent"
_STATE = "tracestate"


class Tracer:
    """Gives each call its place; whoever traces calls sets one."""

    def __init__(self, random: Random, share: float) -> None:
        """`share` of the calls whose callers say nothing are traced, 0 to 1."""
        self._random = random
        self._share = share

    def begin(self, parent: Parent | None) -> TraceContext | None:
        """None: this call is not traced. The caller's sampling decision holds."""
        if parent is not None:
            return TraceContext(parent.trace_id, self._new_id(64), parent.span_id) if parent.is_sampled else None
        trace_id = self._new_id(128)
        return TraceContext(trace_id, self._new_id(64), None) if is_kept(trace_id, self._share) else None

    def _new_id(self, bits: int) -> int:
        return self._random.getrandbits(bits) or 1


def begin_trace(call: Call, tracer: Tracer | None) -> None:
    """Notes the trace that the caller names. A tracer begins one if none is named, and decides on its export."""
    parent = parse_traceparent(value_of(call.headers, _PARENT))
    if parent is not None:
        call.trace_id = parent.trace_id
    if tracer is not None and (trace := tracer.begin(parent)) is not None:
        call.trace, call.trace_id = trace, trace.trace_id


def pass_on(headers: list[tuple[str, str]], trace: TraceContext, attempt: Attempt) -> None:
    """The upstream's caller is this attempt, whose id follows from its call's."""
    attempt.span_id = trace.next_span_id()
    # A state without a parent is another trace's.
    dropped = (_PARENT,) if trace.parent_id is not None else (_PARENT, _STATE)
    headers[:] = [pair for pair in headers if pair[0].lower() not in dropped]
    headers.append((_PARENT, traceparent(trace.trace_id, attempt.span_id)))
