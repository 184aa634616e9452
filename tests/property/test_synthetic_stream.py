"""Any unary response is either refused or converted to a stream, and that stream is read as a complete one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.sse import StreamObserver, events_in
from llm_guard.dialects.synthetic_stream import stream_of

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/complete", "/v1/embeddings")
KEYS = (
    "id", "object", "type", "role", "status", "index", "choices", "message", "content", "text", "refusal", "tool_calls",
    "function", "arguments", "finish_reason", "usage", "output", "output_tokens", "summary", "annotations", "citations",
    "thinking", "signature", "input", "stop_reason", "logprobs", "completion", "name",
)  # fmt: skip
WORDS = (
    "", "assistant", "stop", "completed", "incomplete", "message", "output_text", "text", "thinking", "tool_use",
    "reasoning", "function_call", "custom_tool_call", "web_search_tool_result", "redacted_thinking", "\ud83d", "é\n\n",
)  # fmt: skip
values = st.recursive(
    st.sampled_from([None, True, 0, 1, -1, 1.5, 2**70, float("inf"), float("nan"), *WORDS]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=8)
    ),
    max_leaves=30,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, max_size=8)
blocks = st.lists(st.builds(lambda block, kind: block | {"type": kind}, objects, st.sampled_from(WORDS)), max_size=3)


@given(st.sampled_from(PATHS), objects, st.booleans())
def test_any_object_is_written_or_refused(path: str, answer: dict[str, Any], is_usage_wanted: bool) -> None:
    check(path, stream_of(path, answer, is_usage_wanted=is_usage_wanted))


@given(blocks, objects)
def test_any_message_is_written_or_refused(content: list[Any], more: dict[str, Any]) -> None:
    check("/v1/messages", stream_of("/v1/messages", more | {"content": content}, is_usage_wanted=False))


@given(blocks, objects)
def test_any_response_is_written_or_refused(output: list[Any], more: dict[str, Any]) -> None:
    answer = more | {"status": "completed", "output": output, "error": None}
    check("/v1/responses", stream_of("/v1/responses", answer, is_usage_wanted=False))


def check(path: str, stream: bytes | None) -> None:
    if stream is None:
        return
    assert stream.endswith(b"\n\n")
    for event in events_in(stream):
        assert event.data == b"[DONE]" or isinstance(json.loads(event.data), dict)
    dialect = DIALECTS["anthropic" if path in ("/v1/messages", "/v1/complete") else "openai"]
    watch = StreamObserver(dialect.stream_reader(path, 1))
    passed = watch.feed(stream)
    assert passed == stream or watch.is_cut or watch.error is not None
    assert watch.malformed == 0
    assert watch.may_end or path.endswith("/completions")
