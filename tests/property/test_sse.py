"""The interpretation of a stream depends neither on how its bytes are split nor on the fast path, which skips events
without information."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.dialects import anthropic, openai
from llm_guard.dialects.sse import Mark, SseEvent, StreamObserver, StreamReader, Usage
from llm_guard.dialects.sse_framing import MAX_EVENT_BYTES
from tests.effort import repeated

WORDS = [
    "hello", "error", '"error"', "error: 5", "event: error", "finish_reason", '"finish_reason":"stop"', "[DONE]",
    "data: [DONE]", "usage", '"usage":{"prompt_tokens":1}', "message_stop", "message_", "response.completed",
    '"type":"error"',
    "\n\n", "\r\n\r\n", "\r", "\\", '"', "ü😀\u2028", "null", "}", "",
]  # fmt: skip
texts = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join)
TOKENS = {"prompt_tokens": 3, "completion_tokens": 2}
finishes = st.sampled_from([None, None, None, "stop", "length", "error"])
choices = st.builds(
    lambda index, delta, finish: {"index": index, "delta": delta, "finish_reason": finish},
    st.integers(0, 1),
    st.one_of(st.just({}), st.just({"role": "assistant"}), st.builds(lambda text: {"content": text}, texts)),
    finishes,
)
chat_chunks = st.builds(
    lambda chosen, more: {"object": "chat.completion.chunk", "choices": chosen, **more},
    st.lists(choices, max_size=2),
    st.sampled_from([{}, {}, {"usage": None}, {"usage": TOKENS}, {"error": None}]),
)
legacy_choices = st.builds(
    lambda index, text, finish: {"choices": [{"index": index, "text": text, "finish_reason": finish}]},
    st.integers(0, 3), texts, finishes,
)  # fmt: skip
errors = st.builds(lambda text: {"error": {"message": text, "code": 500}}, texts)
legacy_chunks = st.builds(lambda text: {"choices": [{"index": 0, "text": text, "finish_reason": None}]}, texts)
responses = st.one_of(
    st.builds(lambda text: {"type": "response.output_text.delta", "delta": text}, texts),
    st.sampled_from([
        {"type": "response.created", "response": {"error": None, "usage": None}},
        {"type": "response.completed", "response": {"usage": {"input_tokens": 1, "output_tokens": 2}}},
        {"response": {"output": [{"type": "message"}]}, "type": "response.incomplete"},
        {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
        {"type": "error", "message": "boom"},
        {"message": "boom"},
    ]),
)  # fmt: skip
messages = st.one_of(
    st.builds(lambda text: {"type": "content_block_delta", "delta": {"text": text}}, texts),
    st.sampled_from([
        {"type": "message_start", "message": {"usage": {"input_tokens": 4}}},
        {"type": "content_block_start", "content_block": {"text": ""}},
        {"type": "ping"},
        {"type": "message_delta", "usage": {"output_tokens": 6}},
        {"type": "message_stop"},
        {"type": "error", "error": {"type": "overloaded_error"}},
    ]),
)  # fmt: skip
odd = st.sampled_from([
    b"[DONE]", b"{", b"", b"[1]", b"\xff\xfe", b"plain error", b"3", b'{"a": 1', b"a}", b"  {} ", b'{}\rdata: "b"}',
    b"{\ndata: }", b"{}\r\rdata: b}", b"{}\n: }\ndata: b", b"{}\xef\xbb\xbf",
])  # fmt: skip
between = st.sampled_from([
    b"", b"", b"", b": ping\n\n", b": ping\r\n\r\n", b"\n", b"\r", b"error: boom\n\n", b"\n\r\n", b"\xef\xbb\xbf",
    b": ping\n", b": ping\r\n", b": ping\n\r\n\xef\xbb\xbf",
    b"event: ping\n\n", b"event:  error\ndata: {}\n\n", b"event:error\ndata: {}\n\n", b"id: 7\n\n", b"data\n\n",
])  # fmt: skip
objects = {
    "chat": st.one_of(chat_chunks, chat_chunks, legacy_chunks, errors),
    "legacy": st.one_of(legacy_choices, legacy_choices, errors),
    "responses": st.one_of(responses, responses, errors),
    "other": st.one_of(chat_chunks, errors),
    "messages": messages,
    "events": st.one_of(messages, errors),
}


def reader(name: str) -> StreamReader:
    paths = {
        "chat": "/v1/chat/completions",
        "legacy": "/v1/completions",
        "responses": "/v1/responses",
        "other": "/v1/audio/speech",
    }
    if name in paths:
        return openai.stream_reader(paths[name], 2 if name == "chat" else 1)
    return anthropic.stream_reader("/v1/messages" if name == "messages" else "/v1/complete", 1)


def framed(value: dict[str, Any] | bytes, style: int, name_of: str, end: bytes) -> bytes:
    """Writes one event as servers do: compact or not, named or not, with escaped text or not."""
    compact = (",", ":") if style & 1 else (", ", ": ")
    if not isinstance(value, bytes):
        value = json.dumps(value, separators=compact, ensure_ascii=bool(style & 2)).encode()
    prefix = b"data:" if style & 4 else b"data: "
    colon = b":" if style & 4 else b": "
    lines = [b"event" + colon + name_of.encode()] if name_of else []
    return end.join([*lines, prefix + value, b"", b""])


@st.composite
def streams(draw: st.DrawFn, name: str) -> bytes:
    end = draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"]))
    parts = []
    for value in draw(st.lists(st.one_of(objects[name], objects[name], objects[name], odd), max_size=8)):
        own = value.get("type", "") if isinstance(value, dict) and draw(st.booleans()) else ""
        said = draw(st.sampled_from([own, own, own, own, "error"]))
        parts.append(framed(value, draw(st.integers(0, 7)), said, end))
        parts.append(draw(between))
    stream = b"".join(parts)
    return stream[: len(stream) - draw(st.sampled_from([0, 0, 0, 1, 2, 5, 20]))] if stream else stream


@st.composite
def cut_streams(draw: st.DrawFn, name: str) -> tuple[bytes, list[bytes]]:
    stream = draw(streams(name))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    bounds = [0, *cuts, len(stream)]
    return stream, [stream[start:end] for start, end in pairwise(bounds)]


Shown = tuple[object, ...]


def shown(watch: StreamObserver) -> Shown:
    return (
        watch.has_token, watch.has_enough, watch.has_ended, watch.may_end, watch.missing_end,
        watch.error, watch.is_error_heard, watch.is_cut, watch.usage, watch.malformed, watch.garbled,
    )  # fmt: skip


def fed(by: StreamReader, chunks: list[bytes], enough: int = 1) -> tuple[Shown, bytes]:
    """Returns the marks of the stream, and the bytes passed on."""
    watch = StreamObserver(by, enough)
    passed = b""
    for count, chunk in enumerate(chunks, 1):
        passed += watch.feed(chunk)
        came = b"".join(chunks[:count])
        assert came.startswith(passed) if watch.is_cut else passed + watch.held == came
    return shown(watch), passed


FAILED = b'data:{"error":{"message":"boom","code":500}}'
DONE = b"data: [DONE]\r\n\r\n"


class Thorough:
    """A reader that parses every event."""

    def __init__(self, inner: StreamReader) -> None:
        self._inner = inner
        self.expects_json = inner.expects_json
        self.heeds_done = inner.heeds_done
        self.expects_progress = inner.expects_progress

    def read(self, event: SseEvent) -> Mark:
        return self._inner.read(event)

    def is_dull(self, block: bytes) -> bool:
        return False

    def ends_unmarked(self) -> bool:
        return self._inner.ends_unmarked()

    def missing_end(self) -> bytes:
        return self._inner.missing_end()


@pytest.mark.parametrize("name", objects)
@settings(max_examples=repeated(150), deadline=None)
@given(data=st.data())
def test_marks_and_bytes_passed_on_are_the_same_under_any_split(name: str, data: st.DataObject) -> None:
    stream, chunks = data.draw(cut_streams(name))
    enough = data.draw(st.integers(1, 4))
    whole = fed(reader(name), [stream], enough)
    assert fed(reader(name), chunks, enough) == whole
    assert fed(reader(name), [stream[at : at + 1] for at in range(len(stream))], enough) == whole


@pytest.mark.parametrize("name", objects)
@pytest.mark.parametrize(
    "stream",
    [
        FAILED + b"\r\n\r\n\n" + b"\r\n" + DONE,
        FAILED + b"\n\n\r\n\r" + DONE,
        b"\r\n\n" + DONE,
        b": ping\r\n" + DONE,
        FAILED + b"\r\r\n: ping\n\n\r: ping\r: ping\r\n" + DONE,
        b": ping\n\xef\xbb\xbfevent: error\n" + DONE,
        b"\n: ping\n" + FAILED + b"\n\r",
    ],
    ids=repr,
)
def test_empty_lines_and_comments_before_an_event_pass_for_any_split(name: str, stream: bytes) -> None:
    whole = fed(reader(name), [stream])
    for at in range(len(stream)):
        assert fed(reader(name), [stream[:at], stream[at:]]) == whole
    assert fed(reader(name), [stream[at : at + 1] for at in range(len(stream))]) == whole


def test_all_before_the_event_that_a_stream_is_cut_at_is_passed_on() -> None:
    before = FAILED + b"\r\n\r\n\n\r\n: ping\r\n"
    assert fed(reader("other"), [before + DONE])[1] == before


@pytest.mark.parametrize("length", range(MAX_EVENT_BYTES - 1, MAX_EVENT_BYTES + 6))
def test_long_comment_is_the_same_wherever_the_stream_is_split(length: int) -> None:
    comment = b":" + bytes(length - 1).replace(b"\0", b"c")
    for stream in (
        comment + b"\n" + FAILED + b"\n\n" + DONE,
        b": ping\n" + comment[:-9] + b"\n" + comment + b"\r\n" + DONE,
    ):
        whole = fed(reader("chat"), [stream])
        for at in (3, 9, length - 1, length, length + 1, length + 2, len(stream) - 4):
            assert fed(reader("chat"), [stream[:at], stream[at:]]) == whole
            assert fed(reader("chat"), [stream[:3], stream[3:at], stream[at : at + 1], stream[at + 1 :]]) == whole


@pytest.mark.parametrize("name", objects)
@settings(max_examples=repeated(150), deadline=None)
@given(data=st.data())
def test_no_mark_is_hidden_by_the_fast_path(name: str, data: st.DataObject) -> None:
    _, chunks = data.draw(cut_streams(name))
    enough = data.draw(st.integers(1, 4))
    assert fed(reader(name), chunks, enough) == fed(Thorough(reader(name)), chunks, enough)


def sought(by: StreamReader, chunks: list[bytes], every: int) -> tuple[Shown, bytes, bool]:
    """Like `fed`, searching for progress from each `every`-th chunk on; also returns whether the last search found
    any."""
    watch = StreamObserver(by)
    passed = b""
    for count, chunk in enumerate(chunks):
        watch.seeks_progress |= count % every == 0
        passed += watch.feed(chunk)
    return shown(watch), passed, not watch.seeks_progress


@pytest.mark.parametrize("name", objects)
@settings(max_examples=repeated(150), deadline=None)
@given(data=st.data(), every=st.integers(1, 3))
def test_search_for_progress_changes_neither_marks_nor_bytes(name: str, data: st.DataObject, every: int) -> None:
    _, chunks = data.draw(cut_streams(name))
    assert sought(reader(name), chunks, every)[:2] == fed(reader(name), chunks)


@pytest.mark.parametrize("name", objects)
@settings(max_examples=repeated(150), deadline=None)
@given(data=st.data())
def test_progress_is_found_however_the_stream_is_split(name: str, data: st.DataObject) -> None:
    stream, chunks = data.draw(cut_streams(name))
    whole = sought(reader(name), [stream], 1)
    assert sought(reader(name), chunks, len(chunks)) == whole
    assert sought(Thorough(reader(name)), [stream], 1) == whole


@settings(max_examples=repeated(200), deadline=None)
@given(stream=st.binary(max_size=60) | st.lists(st.sampled_from([b"\r", b"\n", b"data: x", b":"])).map(b"".join),
       at=st.integers(0, 60))  # fmt: skip
def test_any_bytes_pass_complete_and_in_order(stream: bytes, at: int) -> None:
    assert fed(reader("chat"), [stream[:at], stream[at:]]) == fed(reader("chat"), [stream])


def test_text_that_resembles_an_end_or_an_error_is_neither() -> None:
    for name, make in (
        ("chat", lambda text: {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}),
        ("responses", lambda text: {"type": "response.output_text.delta", "delta": text}),
        ("messages", lambda text: {"type": "content_block_delta", "delta": {"text": text}}),
    ):
        for word in filter(None, WORDS):
            for style in range(8):
                stream = framed(make(word), style, "", b"\n") * 2
                assert fed(reader(name), [stream])[0] == (
                    True, True, False, False, b"", None, False, False, Usage(), 0, 0,
                )  # fmt: skip
