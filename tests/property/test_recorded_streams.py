"""Each recorded stream is interpreted as its provider means it, however its bytes are split, and passes byte for
byte."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.sse import StreamObserver, Usage

STREAMS = {path.stem: path.read_bytes() for path in (Path(__file__).parents[1] / "data" / "streams").glob("*.sse")}
DONE = b"data: [DONE]\n\n"
UNSAID = Usage()
ALL = 1000
"""More tokens than any stream has: every event is parsed, and none is skipped by the fast path."""
PATHS = {
    "anthropic": "/v1/messages", "anthropic_complete": "/v1/complete", "responses": "/v1/responses",
    "openai_completions": "/v1/completions", "vllm_completions": "/v1/completions",
    "openai_speech": "/v1/audio/speech", "openai_transcription": "/v1/audio/transcriptions",
}  # fmt: skip
"""Path of a stream by its name or the first word of it; all others are chats."""


@dataclass(frozen=True, slots=True)
class Shows:
    """Expected marks of a stream. A Messages or chat stream without `has_ended` was cut, and may not end here."""

    tokens: int
    """Events with content, up to and including the first end."""
    has_ended: bool = True
    error: bytes | None = None
    """Part of its message."""
    usage: Usage = UNSAID
    missing_end: bytes = b""
    malformed: int = 0
    garbled: int = 0
    may_end: bool | None = None
    """None: the same as `has_ended`."""


def cut(tokens: int, usage: Usage = UNSAID) -> Shows:
    return Shows(tokens, has_ended=False, usage=usage)


def failed(tokens: int, error: bytes, usage: Usage = UNSAID) -> Shows:
    return Shows(tokens, has_ended=False, error=error, usage=usage)


ANTHROPIC_START = Usage(21, 1)
EXPECTED = {
    "anthropic_complete": Shows(3, has_ended=False, may_end=True),
    "anthropic_cut": cut(2, ANTHROPIC_START),
    "anthropic_overloaded": failed(2, b"overloaded_error", ANTHROPIC_START),
    "anthropic_overloaded_first": failed(0, b"overloaded_error", ANTHROPIC_START),
    "anthropic_pings_then_cut": cut(0, ANTHROPIC_START),
    "anthropic_refusal": Shows(3, usage=Usage(21, 2)),
    "anthropic_text": Shows(6, usage=Usage(21, 7)),
    "anthropic_thinking": Shows(6, usage=Usage(21, 19)),
    "anthropic_tool_use": Shows(5, usage=Usage(21, 33)),
    "anthropic_unnamed": Shows(3, usage=Usage(21, 2)),
    "azure_chat": Shows(3, usage=Usage(11, 2)),
    "azure_chat_async_filter": Shows(2),
    "azure_chat_content_filter": Shows(2),
    "chat_line_separators_in_text": Shows(3),
    "deepseek_chat_overloaded": failed(1, b"insufficient_system_resource"),
    "deepseek_chat_reasoning": Shows(4, usage=Usage(10, 4)),
    "gemini_chat": Shows(3, usage=Usage(7, 4)),
    "gemini_chat_tools": Shows(1, usage=Usage(44, 9)),
    "groq_chat": Shows(3, usage=Usage(18, 3)),
    "llamacpp_chat": Shows(3, usage=Usage(14, 3)),
    "llamacpp_chat_error_field": failed(1, b"Context size has been exceeded."),
    "lmstudio_chat_error": failed(1, b"The model has crashed"),
    "mistral_chat": Shows(3, usage=Usage(6, 3)),
    "model_studio_chat_empty_finish_reason": Shows(3),
    "model_studio_chat_empty_finish_reason_cut": cut(1),
    "ollama_chat": Shows(3),
    "ollama_chat_usage": Shows(2, usage=Usage(26, 2)),
    "openai_chat": Shows(6),
    "openai_chat_cut": cut(1),
    "openai_chat_cut_in_done": Shows(2, missing_end=DONE),
    "openai_chat_done_without_blank_line": Shows(2, missing_end=DONE),
    "openai_chat_logprobs": Shows(3),
    "openai_chat_refusal": Shows(5),
    "openai_chat_server_error": failed(1, b"The server had an error"),
    "openai_chat_tools": Shows(9),
    "openai_chat_two_choices": Shows(6),
    "openai_chat_two_choices_one_cut": cut(4),
    "openai_chat_usage": Shows(5, usage=Usage(14, 5)),
    "openai_chat_without_done": Shows(2, usage=Usage(14, 5), missing_end=DONE),
    "openai_completions": Shows(4, usage=Usage(4, 3)),
    "openai_speech": Shows(3, has_ended=False, may_end=True, usage=Usage(4, 31)),
    "openai_transcription": Shows(3, has_ended=False, may_end=True, usage=Usage(14, 3)),
    "openrouter_chat": Shows(3, usage=Usage(17, 3)),
    "openrouter_chat_error": failed(1, b"Provider disconnected unexpectedly"),
    "openrouter_chat_finish_error": failed(1, b'"finish_reason":"error"'),
    "openrouter_chat_only_comments": cut(0),
    "proxy_chat_byte_order_mark": Shows(2),
    "proxy_chat_html_first": Shows(0, has_ended=False, malformed=1),
    "proxy_chat_html_in_the_middle": Shows(3, garbled=2),
    "responses_cut": cut(2),
    "responses_error_event": failed(1, b"rate_limit_exceeded"),
    "responses_failed": failed(1, b"server_error"),
    "responses_function_call": Shows(6, usage=Usage(12, 9)),
    "responses_incomplete": Shows(5, usage=Usage(12, 9)),
    "responses_reasoning": Shows(9, usage=Usage(12, 9)),
    "responses_text": Shows(8, usage=Usage(12, 9)),
    "responses_web_search": cut(1),
    "sglang_chat": Shows(4, usage=Usage(8, 4)),
    "sglang_chat_abort": failed(1, b"The request is aborted"),
    "sse_starlette_chat_crlf": Shows(3),
    "tgi_chat": Shows(3),
    "vllm_chat_bare_error": failed(1, b"Internal server error"),
    "vllm_chat_continuous_usage": Shows(3, usage=Usage(9, 3)),
    "vllm_chat_error": failed(1, b"EngineCore encountered an issue"),
    "vllm_chat_reasoning": Shows(7),
    "vllm_completions": Shows(3),
    "xai_chat": Shows(3, usage=Usage(32, 2)),
}
each_stream = pytest.mark.parametrize("name", EXPECTED)


def new_watch(name: str, enough: int) -> StreamObserver:
    provider = name.partition("_")[0]
    path = PATHS.get(name) or PATHS.get(provider, "/v1/chat/completions")
    dialect = DIALECTS["anthropic" if provider == "anthropic" else "openai"]
    return StreamObserver(dialect.stream_reader(path, 2 if "two_choices" in name else 1), enough)


def fed(name: str, chunks: list[bytes], enough: int) -> tuple[StreamObserver, bytes]:
    """Returns the watch after these chunks, and the bytes it passed on: all but those it holds, or all before a cut."""
    watch = new_watch(name, enough)
    passed = b"".join(map(watch.feed, chunks))
    came = b"".join(chunks)
    assert came.startswith(passed) if watch.is_cut else passed + watch.held == came
    return watch, passed


def shown(name: str, chunks: list[bytes], enough: int) -> tuple[object, ...]:
    """Returns everything that the watch reports about these chunks, and the bytes it passed on."""
    watch, passed = fed(name, chunks, enough)
    return (
        watch.has_token, watch.has_enough, watch.has_ended, watch.may_end, watch.missing_end, watch.error,
        watch.is_error_heard, watch.is_cut, watch.usage, watch.malformed, watch.garbled, watch.held, passed,
    )  # fmt: skip


def test_each_recorded_stream_is_expected_to_show_something() -> None:
    assert sorted(STREAMS) == sorted(EXPECTED)


@each_stream
def test_recorded_stream_is_read_as_its_provider_means_it(name: str) -> None:
    watch, shows = fed(name, [STREAMS[name]], ALL)[0], EXPECTED[name]
    assert watch.tokens == shows.tokens
    assert watch.has_token is (shows.tokens > 0)
    assert watch.has_ended is shows.has_ended
    assert watch.may_end is (shows.has_ended if shows.may_end is None else shows.may_end)
    assert (watch.usage.input, watch.usage.output) == (shows.usage.input, shows.usage.output)
    assert watch.missing_end == shows.missing_end
    assert (watch.malformed, watch.garbled) == (shows.malformed, shows.garbled)
    assert (watch.error is None) is (shows.error is None)
    assert (shows.error or b"") in (watch.error or b"")
    assert watch.is_cut is (shows.error is not None and DONE in STREAMS[name])


@each_stream
@pytest.mark.parametrize("enough", [1, ALL])
def test_recorded_stream_shows_the_same_byte_by_byte(name: str, enough: int) -> None:
    stream = STREAMS[name]
    single = [stream[at : at + 1] for at in range(len(stream))]
    assert shown(name, single, enough) == shown(name, [stream], enough)


@each_stream
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_recorded_stream_shows_the_same_under_any_split(name: str, data: st.DataObject) -> None:
    stream = STREAMS[name]
    enough = data.draw(st.sampled_from([1, 2, 3, ALL]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    assert shown(name, pieces, enough) == shown(name, [stream], enough)


@each_stream
def test_recorded_stream_shows_the_same_event_by_event_on_the_fast_path(name: str) -> None:
    events = [each + b"\n\n" for each in STREAMS[name].split(b"\n\n")]
    quick, thorough = shown(name, events, 1), shown(name, events, ALL)
    assert quick[:1] + quick[2:] == thorough[:1] + thorough[2:], "all but has_enough"


GOOD = [name for name, shows in EXPECTED.items() if shows.has_ended]
PAUSE = 2
"""Events without progress that a healthy stream may send in a row: an empty delta, a filter's notes, a ping."""


@pytest.mark.parametrize("name", GOOD)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_good_stream_makes_progress_after_every_cut(name: str, data: st.DataObject) -> None:
    stream, watch = STREAMS[name], new_watch(name, 1)
    at = data.draw(st.integers(0, len(stream)))
    watch.feed(stream[:at])
    if not watch.has_token or watch.has_ended:
        return
    watch.seeks_progress = True
    rest = stream[at:].replace(b"\r\n", b"\n").split(b"\n\n")
    for event in rest[: PAUSE + 1]:
        watch.feed(event + b"\n\n")
    assert not watch.seeks_progress
