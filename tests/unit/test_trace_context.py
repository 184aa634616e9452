"""The header `traceparent` of W3C Trace Context: which trace a call belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.trace_context import Parent, TraceContext, is_kept, parse_traceparent, traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
    ],
)
def test_callers_trace_is_read(value: str, is_sampled: bool) -> None:
    assert parse_traceparent(value) == Parent(int(TRACE, 16), int(SPAN, 16), is_sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f" 00-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01.",
        f"00-{TRACE}-{SPAN}-0x",
    ],
)
def test_invalid_traceparent_is_none(value: str) -> None:
    assert parse_traceparent(value) is None


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1))
def test_written_traceparent_is_read_with_the_same_meaning(trace_id: int, span_id: int) -> None:
    assert parse_traceparent(traceparent(trace_id, span_id)) == Parent(trace_id, span_id, is_sampled=True)


def test_share_of_new_traces_is_decided_by_their_ids() -> None:
    half = 1 << 63
    assert [is_kept(each, 0.5) for each in (1, half - 1, half, (1 << 64) + half - 1)] == [True, True, False, True]
    assert is_kept((1 << 128) - 1, 1.0)
    assert not is_kept(1 << 64, 0.0)


def test_spans_of_one_trace_have_ids_of_their_own_and_none_is_0() -> None:
    trace = TraceContext(1, (1 << 64) - 2, None)
    ids = [trace.span_id, *(trace.next_span_id() for _ in range(2))]
    assert ids == [(1 << 64) - 2, (1 << 64) - 1, 1]
