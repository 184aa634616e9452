"""Whose trace a call is part of, and what is said of it to an upstream: the header `traceparent`.

Owns its reading and writing (W3C Trace Context, section 3.2), and which traces are kept where nobody has decided yet.
Does not own what is told of a call (`ops.spans`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# A version that is not known yet may have more behind a dash; the first one has not.
_FORM = re.compile("(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_RATED_BITS = 64


@dataclass(slots=True)
class TraceContext:
    """A call's place in a trace that is kept."""

    trace_id: int
    """128 bits, not 0; the ids of spans have 64."""
    span_id: int
    """The call's own."""
    parent_id: int | None
    """The caller's; None: the trace begins here."""
    spans: int = 0
    """Below the call's own, so far."""

    def next_span_id(self) -> int:
        """One after the other from a random one: in one trace that is as good as drawing each."""
        self.spans += 1
        return (self.span_id + self.spans) % (1 << 64) or 1


@dataclass(frozen=True, slots=True)
class Parent:
    """What a caller says."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_traceparent(value: str) -> Parent | None:
    """None: it is none, and a new trace begins."""
    match = _FORM.fullmatch(value)
    if match is None or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return Parent(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def traceparent(trace_id: int, span_id: int) -> str:
    """For an upstream: it is called by the span `span_id`, of a trace that is kept."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def is_kept(trace_id: int, share: float) -> bool:
    """Whether a new trace is among the share, 0 to 1, that is kept. By its last 64 bits, as others who are asked for
    the same share do it (OpenTelemetry, `TraceIdRatioBased`)."""
    return trace_id % (1 << _RATED_BITS) < share * (1 << _RATED_BITS)
