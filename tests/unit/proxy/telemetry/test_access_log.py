"""Which finished calls are kept in memory, and which ones are evicted first."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.proxy.telemetry.access_log import _BESIDE_BYTES as BESIDE
from llm_guard.proxy.telemetry.access_log import BufferSize, CallFate, RecentCalls

MEMORY = 1 << 20


def line(number: int, size: int = 0) -> bytes:
    return (b'{"request_id":"lg-%d","model":"m"}' % number).ljust(size)


def keep(timelines: RecentCalls, *numbers: int, fate: CallFate = "well", size: int = 0) -> None:
    for number in numbers:
        timelines.keep(line(number, size), float(number), fate)


def test_calls_of_all_fates_are_shown_in_the_order_in_which_they_ended() -> None:
    timelines = RecentCalls(10, MEMORY)
    keep(timelines, 1)
    keep(timelines, 2, fate="failed")
    keep(timelines, 3, fate="own_doing")
    keep(timelines, 4)
    keep(timelines, 5, fate="turned_away")
    keep(timelines, 6, fate="failed")
    assert list(timelines.newest()) == [line(number) for number in (6, 5, 4, 3, 2, 1)]
    assert list(timelines.newest_failed()) == [line(6), line(5), line(2)]
    assert timelines.snapshot() == BufferSize(calls=6, failed=3)


@pytest.mark.parametrize("flood", ["well", "own_doing", "turned_away"])
def test_flood_of_other_calls_pushes_out_no_failed_one(flood: CallFate) -> None:
    timelines = RecentCalls(3, MEMORY)
    keep(timelines, 1, 2, fate="failed")
    keep(timelines, *range(3, 1000), fate=flood)
    assert list(timelines.newest()) == [line(999), line(998), line(997), line(2), line(1)]


def test_flood_of_refusals_pushes_out_no_call_that_was_served() -> None:
    timelines = RecentCalls(3, 4000)
    keep(timelines, 1, 2)
    keep(timelines, *range(3, 1000), fate="own_doing", size=500)
    assert [line(2), line(1)] == list(timelines.newest())[-2:]


def test_oldest_is_removed_first_when_there_are_too_many() -> None:
    timelines = RecentCalls(3, MEMORY)
    keep(timelines, 1, 2, 3, 4, 5, fate="failed")
    assert list(timelines.newest_failed()) == [line(5), line(4), line(3)]


def test_oldest_is_removed_first_when_they_are_too_large() -> None:
    timelines = RecentCalls(1000, 8 * (500 + BESIDE))
    keep(timelines, 1, 2, 3, 4, 5, fate="failed", size=500)
    assert list(timelines.newest_failed()) == [line(number, 500) for number in (5, 4, 3)]


def test_line_larger_than_the_whole_buffer_is_not_stored() -> None:
    timelines = RecentCalls(1000, 1000)
    keep(timelines, 1, fate="failed", size=5000)
    assert timelines.snapshot() == BufferSize(0, 0)


def test_call_is_found_by_its_id_among_all_fates() -> None:
    timelines = RecentCalls(10, MEMORY)
    keep(timelines, 1)
    keep(timelines, 2, fate="failed")
    keep(timelines, 33, fate="own_doing")
    for number in (1, 2, 33):
        assert timelines.try_find(b'{"request_id":"lg-%d"' % number) == line(number)
    assert timelines.try_find(b'{"request_id":"lg-3"') is None


def test_smaller_limit_forgets_the_oldest_at_once() -> None:
    timelines = RecentCalls(10, MEMORY)
    keep(timelines, 1, 2, 3)
    timelines.limit(1, MEMORY)
    assert list(timelines.newest()) == [line(3)]
    timelines.limit(0, MEMORY)
    assert list(timelines.newest()) == []
    keep(timelines, 4, fate="failed")
    assert timelines.snapshot() == BufferSize(0, 0)


FATES = st.sampled_from(["well", "failed", "turned_away", "own_doing"])


@given(
    st.lists(st.tuples(FATES, st.integers(40, 4000)), max_size=200), st.integers(0, 30), st.integers(1, 60_000)
)  # fmt: skip
def test_never_more_than_the_memory_and_always_the_newest(
    ends: list[tuple[CallFate, int]], calls: int, memory: int
) -> None:
    timelines = RecentCalls(calls, memory)
    newest: dict[CallFate, deque[bytes]] = {
        fate: deque(maxlen=calls) for fate in ("well", "failed", "turned_away", "own_doing")
    }
    for number, (fate, size) in enumerate(ends):
        keep(timelines, number, fate=fate, size=size)
        newest[fate].append(line(number, size))
    kept = list(timelines.newest())
    assert sum(len(each) + BESIDE for each in kept) <= memory
    for each in newest.values():
        of_this_fate = [one for one in reversed(each) if one in kept]
        assert of_this_fate == list(reversed(each))[: len(of_this_fate)]
