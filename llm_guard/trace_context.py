"""Trace context of a call: the header `traceparent` of callers and to upstreams.

Reads and writes it (W3C Trace Context, section 3.2), and decides which new traces are kept. Spans are exported by
`admin.tracing.spans`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# An unknown version may have more fields after a dash; version 00 has none.
_FORM = re.compile("(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_RATED_BITS = 64


@dataclass(slots=True)
class TraceContext:
    """A call's place in a trace that is kept."""

    trace_id: int
    """128 bits, not 0; span ids have 64."""
    span_id: int
    """Id of the call's own span."""
    parent_id: int | None
    """Id of the caller's span; None: the trace begins here."""
    spans: int = 0
    """Number of spans below the call's own so far."""

    def next_span_id(self) -> int:
        """Returns consecutive ids from a random first one: within one trace that is as good as drawing each."""
        self.spans += 1
        return (self.span_id + self.spans) % (1 << 64) or 1


@dataclass(frozen=True, slots=True)
class Parent:
    """The content of a caller's `traceparent`."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_traceparent(value: str) -> Parent | None:
    """Parses `traceparent`; None: it is invalid, and a new trace begins."""
    match = _FORM.fullmatch(value)
    if match is None or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return Parent(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def traceparent(trace_id: int, span_id: int) -> str:
    """Formats `traceparent` for an upstream that the span `span_id` calls, in a trace that is kept."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def is_kept(trace_id: int, share: float) -> bool:
    """Returns whether a new trace is in the share, 0 to 1, that is kept. Decided by its last 64 bits, as in other
    services that keep the same share (OpenTelemetry, `TraceIdRatioBased`)."""
    return trace_id % (1 << _RATED_BITS) < share * (1 << _RATED_BITS)
