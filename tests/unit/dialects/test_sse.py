from __future__ import annotations

import pytest

from llm_guard.dialects.sse import (  # fmt: skip
    END,
    FILLER,
    MALFORMED,
    NOTHING,
    PROGRESS,
    TOKEN,
    Mark,
    SseEvent,
    StreamObserver,
    Usage,
    events_in,
    split_before,
)
from llm_guard.dialects.sse_framing import MAX_EVENT_BYTES


class Notes:
    """A reader that records its events and marks them as the test has planned for their data."""

    expects_json = False
    expects_progress = True
    heeds_done = False

    def __init__(self, marks: dict[bytes, Mark] | None = None, dull: bytes | None = None) -> None:
        self.events: list[SseEvent] = []
        self._marks = marks or {}
        self._dull = dull

    def read(self, event: SseEvent) -> Mark:
        self.events.append(event)
        return self._marks.get(event.data, NOTHING)

    def is_dull(self, block: bytes) -> bool:
        return self._dull is not None and self._dull in block

    def ends_unmarked(self) -> bool:
        return False

    def missing_end(self) -> bytes:
        return b"rest"


def seen(*chunks: bytes) -> list[tuple[str, bytes]]:
    """Returns the name and data of each event."""
    notes = Notes()
    watch = StreamObserver(notes)
    passed = b"".join(map(watch.feed, chunks))
    assert passed + watch.held == b"".join(chunks)
    return [(event.name, event.data) for event in notes.events]


# framing


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_event_ends_at_an_empty_line_for_any_line_ending(end: bytes) -> None:
    stream = end.join([b"data: one", b"", b"event: x", b"data: two", b"", b""])
    assert seen(stream) == [("", b"one"), ("x", b"two")]


def test_ends_of_lines_may_be_mixed() -> None:
    assert seen(b"data: one\n\r\ndata: two\r\n\ndata: three\r\n\rdata: four\n\n") == [
        ("", b"one"), ("", b"two"), ("", b"three"), ("", b"four"),
    ]  # fmt: skip


def test_lines_of_data_are_joined() -> None:
    assert seen(b"data: {\ndata:  1}\n\n") == [("", b"{\n 1}")]
    assert seen(b"data: {\r\ndata: 1}\r\n\r\n") == [("", b"{\n1}")]


def test_one_space_after_the_colon_is_no_part_of_the_value() -> None:
    assert seen(b"data:x\n\n") == [("", b"x")]
    assert seen(b"data:  x\n\n") == [("", b" x")]
    assert seen(b"event:ping\ndata:\n\n") == [("ping", b"")]


def test_comments_and_unknown_fields_are_no_events() -> None:
    assert seen(b": keep-alive\n\n:\n\nid: 7\nretry: 10\n\n\n\n") == []
    assert seen(b": note\ndata: x\nid: 7\n\n") == [("", b"x")]


def test_field_named_error_is_an_error_event() -> None:
    assert seen(b'error: {"code": 500}\n\n') == [("error", b'{"code": 500}')]


def test_field_names_are_matched_whole() -> None:
    assert seen(b"database: x\ndata : y\nDATA: z\n\n") == []


# forwarding


def test_cut_event_is_held_until_its_end() -> None:
    watch = StreamObserver(Notes())
    assert watch.feed(b"data: one\n\ndata: t") == b"data: one\n\n"
    assert watch.held == b"data: t"
    assert watch.feed(b"wo\n") == b""
    assert watch.feed(b"\n") == b"data: two\n\n"
    assert watch.held == b""


def test_second_half_of_a_cut_line_end_belongs_to_the_event_before() -> None:
    watch = StreamObserver(Notes())
    assert watch.feed(b"data: x\r\n\r") == b"data: x\r\n\r"
    assert watch.feed(b"\n") == b"\n"
    assert watch.feed(b"\n\ndata: y") == b"\n\n"
    assert watch.held == b"data: y"


def test_event_longer_than_the_bound_is_passed_on_in_pieces() -> None:
    notes = Notes()
    watch = StreamObserver(notes)
    long = b"data: " + b"x" * MAX_EVENT_BYTES
    assert watch.feed(long) == long[:-3]
    assert watch.feed(b"yyyy") == b"xxxy"
    assert len(watch.held) == 3
    assert watch.feed(b"\n\ndata: next\n\ndata: ") == b"yyy\n\ndata: next\n\n"
    assert [(event.is_whole, event.data[-4:]) for event in notes.events] == [(False, b"xxxx"), (True, b"next")]
    assert len(notes.events[0].data) < 5000


@pytest.mark.parametrize("cut", range(5))
def test_end_of_a_long_event_is_found_wherever_it_is_cut(cut: int) -> None:
    notes = Notes()
    watch = StreamObserver(notes)
    watch.feed(b"data: " + b"x" * (MAX_EVENT_BYTES + 10))
    end = b"\r\n\r\n"
    watch.feed(end[:cut])
    watch.feed(end[cut:])
    watch.feed(b"data: next\n\n")
    assert [event.data[:4] for event in notes.events] == [b"xxxx", b"next"]


def test_long_event_is_the_same_event_in_one_piece() -> None:
    stream = b"data: " + b"x" * MAX_EVENT_BYTES + b"\n\n"
    whole, cut = Notes(), Notes()
    StreamObserver(whole).feed(stream)
    watch = StreamObserver(cut)
    watch.feed(stream[:-1])
    watch.feed(stream[-1:])
    assert whole.events == cut.events
    assert [event.is_whole for event in whole.events] == [False]


def test_event_of_the_longest_length_is_read_whole_however_it_is_cut() -> None:
    stream = b"data: " + b"x" * (MAX_EVENT_BYTES - 6) + b"\r\n\r\n"
    for cut in (-1, -2, -3, -4, -5):
        notes = Notes()
        watch = StreamObserver(notes)
        assert watch.feed(stream[:cut]) + watch.feed(stream[cut:]) == stream
        assert [event.is_whole for event in notes.events] == [True]


# marks


def test_observer_records_what_the_reader_marks() -> None:
    watch = StreamObserver(Notes({b"t": TOKEN, b"e": END, b"bad": Mark(error=b"bad")}))
    watch.feed(b"data: x\n\n")
    assert (watch.has_token, watch.has_ended, watch.may_end, watch.error) == (False, False, False, None)
    watch.feed(b"data: t\n\n")
    assert (watch.has_token, watch.has_ended) == (True, False)
    watch.feed(b"data: bad\n\n")
    assert watch.error == b"bad"
    watch.feed(b"data: e\n\n")
    assert (watch.has_ended, watch.may_end) == (True, True)


def test_first_error_is_recorded() -> None:
    watch = StreamObserver(Notes({b"1": Mark(error=b"first"), b"2": Mark(error=b"second")}))
    watch.feed(b"data: 1\n\ndata: 2\n\n")
    assert watch.error == b"first"


def test_later_usage_replaces_only_the_fields_that_it_has() -> None:
    marks = {b"1": Mark(usage=Usage(10, 1)), b"2": Mark(usage=Usage(None, 7)), b"3": Mark(usage=Usage(0, None))}
    watch = StreamObserver(Notes(marks))
    watch.feed(b"data: 1\n\ndata: 2\n\n")
    assert watch.usage == Usage(10, 7)
    watch.feed(b"data: 3\n\n")
    assert watch.usage == Usage(0, 7)


def test_unreadable_events_are_counted_up_to_the_first_token() -> None:
    watch = StreamObserver(Notes({b"bad": MALFORMED, b"t": TOKEN}))
    watch.feed(b"data: bad\n\ndata: t\n\ndata: bad\n\n")
    assert watch.malformed == 1


def test_tokens_are_waited_for_one_by_one() -> None:
    watch = StreamObserver(Notes({b"t": TOKEN}, dull=b"dull"), enough=3)
    seen = []
    for data in (b"t", b"dull", b"t", b"x", b"t", b"t"):
        watch.feed(b"data: " + data + b"\n\n")
        seen.append((watch.has_token, watch.has_enough))
    assert seen == [(True, False)] * 4 + [(True, True)] * 2


def test_tokens_that_arrive_at_once_are_counted_one_by_one() -> None:
    watch = StreamObserver(Notes({b"t": TOKEN}), enough=3)
    watch.feed(b"data: t\n\ndata: t\n\n")
    assert not watch.has_enough
    watch.feed(b"data: t\n\n")
    assert watch.has_enough


def test_dull_blocks_are_read_while_tokens_are_waited_for() -> None:
    notes = Notes({b"t": TOKEN, b"dull": TOKEN}, dull=b"dull")
    watch = StreamObserver(notes, enough=2)
    watch.feed(b"data: t\n\n")
    watch.feed(b"data: dull\n\n")
    assert watch.has_enough
    watch.feed(b"data: dull\n\n")
    assert len(notes.events) == 2


def test_stream_that_has_ended_has_enough() -> None:
    watch = StreamObserver(Notes({b"e": END}), enough=9)
    watch.feed(b"data: e\n\n")
    assert (watch.has_token, watch.has_enough) == (True, True)


def test_an_end_is_a_token() -> None:
    watch = StreamObserver(Notes({b"e": Mark(is_end=True)}))
    watch.feed(b"data: e\n\n")
    assert watch.has_token


def test_missing_done_is_not_added_after_an_error() -> None:
    watch = StreamObserver(Notes({b"bad": Mark(error=b"bad")}))
    assert watch.missing_end == b"rest"
    watch.feed(b"data: bad\n\n")
    assert watch.missing_end == b""


GARBLED = [
    b"oops", b"{", b"}", b'{"a": 1', b'"a": 1}', b"[{}]", b"[DONE", b"\xff", b"null", b'"{}"', b"{}x", b"{}\ndata: x",
]  # fmt: skip
SOUND = [
    b"{}", b'{"a": 1}', b"{oops}", b" {} ", b"\t{}\t", b"[DONE]", b"", b"{\ndata: }", b"{}\n: x", b"{}\nx",
]  # fmt: skip


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(("data", "count"), [(data, 1) for data in GARBLED] + [(data, 0) for data in SOUND])
@pytest.mark.parametrize("dull", [b"", None])
def test_event_that_is_no_object_is_counted_after_the_first_token(
    data: bytes, count: int, end: bytes, dull: bytes | None
) -> None:
    notes = Notes({b"t": TOKEN}, dull=dull)
    notes.expects_json = True
    watch = StreamObserver(notes)
    event = b"data: " + data.replace(b"\n", end) + end * 2
    watch.feed(event + b"data: t" + end * 2)
    assert watch.garbled == 0
    assert watch.feed(event * 2 + b"data: {}" + end * 2) == event * 2 + b"data: {}" + end * 2
    assert watch.garbled == 2 * count


def test_line_that_only_a_carriage_return_ends_may_be_garbled_too() -> None:
    notes = Notes({b"t": TOKEN}, dull=b"")
    notes.expects_json = True
    watch = StreamObserver(notes)
    watch.feed(b"data: t\n\n")
    watch.feed(b"data: {}\r\rdata: b}\n\n")
    assert watch.garbled == 1


@pytest.mark.parametrize("name", [b"event: error", b"event:error", b"error: x\nevent: x"])
def test_event_that_is_named_error_is_read_in_any_case(name: bytes) -> None:
    notes = Notes({b"t": TOKEN, b"{}": Mark(error=b"{}"), b"x\n{}": Mark(error=b"x")}, dull=b"")
    notes.expects_json = True
    watch = StreamObserver(notes)
    watch.feed(b"data: t\n\n")
    watch.feed(name + b"\ndata: {}\n\n")
    assert watch.error is not None


def test_text_of_an_error_is_not_garbled() -> None:
    notes = Notes({b"t": TOKEN, b"boom": Mark(error=b"boom")}, dull=b"")
    notes.expects_json = True
    watch = StreamObserver(notes)
    watch.feed(b"data: t\n\n")
    watch.feed(b"event: error\ndata: boom\n\n")
    assert (watch.error, watch.garbled) == (b"boom", 0)
    watch.feed(b"error: boom\n\nevent: errors\ndata: boom\n\n")
    assert watch.garbled == 1


def test_dull_events_are_read_while_progress_is_sought_and_no_longer() -> None:
    notes = Notes({b"t": TOKEN, b"work": PROGRESS}, dull=b"dull")
    watch = StreamObserver(notes)
    watch.feed(b"data: t\n\n")
    watch.seeks_progress = True
    seeks = []
    for block in (b"data: dull\n\n", b": dull\n\ndata: work\n\ndata: dull\n\n"):
        watch.feed(block)
        seeks.append(watch.seeks_progress)
    assert seeks == [True, False]
    assert [event.data for event in notes.events] == [b"t", b"dull", b"work"]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_filler_may_be_left_out_up_to_the_first_token(size: int, end: bytes) -> None:
    notes = Notes({b"t": TOKEN, b"ping": FILLER})
    stream = end.join([
        b": note", b": note\ndata: head", b"data: ping", b"", b"retry: 3", b"event: more\ndata: head",
        b"data: t", b"data: ping", b": note", b"data: t", b"",
    ])  # fmt: skip
    watch = StreamObserver(notes)
    watch.drops_filler = True
    passed = b"".join(watch.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    opening, token, rest = passed.partition(b"data: t")
    assert opening == b"data: head\n\nevent: more\ndata: head\n\n"
    lines = [line for line in (token + rest).splitlines() if line]
    assert lines == [b"data: t", b"data: ping", b": note", b"data: t"]
    assert watch.dropped_bytes > 0


def test_nothing_is_garbled_where_no_json_is_expected() -> None:
    watch = StreamObserver(Notes({b"t": TOKEN}))
    watch.feed(b"data: t\n\ndata: oops\n\n")
    assert watch.garbled == 0


def test_dull_blocks_are_read_only_before_the_first_token() -> None:
    notes = Notes({b"t": TOKEN}, dull=b"dull")
    watch = StreamObserver(notes)
    watch.feed(b"data: dull 1\n\n")
    watch.feed(b"data: t\n\n")
    watch.feed(b"data: dull 2\n\n")
    watch.feed(b"data: bright\n\n")
    assert [event.data for event in notes.events] == [b"dull 1", b"t", b"bright"]


# blocks


def test_events_of_a_block_are_those_that_end_in_it() -> None:
    events = list(events_in(b": note\n\ndata: one\r\n\r\nevent: ping\n\ndata: cut\n"))
    assert events == [SseEvent("", b"one"), SseEvent("ping", b"")]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_block_is_split_before_an_event(end: bytes) -> None:
    one, two, three = (b"data: one" + end, b"event: x" + end[: len(end) // 2] + b"data: two" + end, b"data: two" + end)
    assert split_before(one + two + three, b"two") == (one, two + three)
    assert split_before(one + two, b"one") == (b"", one + two)
    assert split_before(one + two, b"three") == (one + two, b"")
