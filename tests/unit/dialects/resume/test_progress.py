"""Each event type in the official SDKs is either progress or one of the few without content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.beta import BetaRawMessageStreamEvent
from openai.types import ImageEditStreamEvent, ImageGenStreamEvent
from openai.types.audio import TranscriptionStreamEvent
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from llm_guard.dialects import DIALECTS, DialectName
from llm_guard.dialects.sse import Mark, SseEvent
from tests.unit.dialects.test_openai import event

OPENING = {"response.created", "response.queued", "response.in_progress", "message_start"}
"""Event types that open a stream, and show only that the request was accepted."""
FAILED = {"error", "response.failed"}


def types_in(union: Any) -> Iterator[str]:
    """Yields the `type` of each event in an SDK's union."""
    if isinstance(union, type) and issubclass(union, BaseModel):
        annotation = union.model_fields["type"].annotation
        assert get_origin(annotation) is Literal
        yield from get_args(annotation)
    else:
        for part in get_args(union):
            if get_origin(part) is not None or isinstance(part, type):
                yield from types_in(part)


def read(dialect: DialectName, path: str, data: dict[str, Any]) -> Mark:
    return DIALECTS[dialect].stream_reader(path, 1).read(event(data))


@pytest.mark.parametrize(
    ("dialect", "path", "union", "at_least"),
    [
        ("openai", "/v1/responses", ResponseStreamEvent, 50),
        ("openai", "/v1/images/generations", ImageGenStreamEvent, 2),
        ("openai", "/v1/images/edits", ImageEditStreamEvent, 2),
        ("openai", "/v1/audio/transcriptions", TranscriptionStreamEvent, 2),
        ("anthropic", "/v1/messages", RawMessageStreamEvent, 6),
        ("anthropic", "/v1/messages", BetaRawMessageStreamEvent, 6),
    ],
)
def test_event_of_the_sdk_is_progress_unless_it_opens_the_stream(
    dialect: DialectName, path: str, union: Any, at_least: int
) -> None:
    kinds = set(types_in(union))
    assert len(kinds) >= at_least
    for kind in kinds:
        mark = read(dialect, path, {"type": kind})
        assert mark.is_progress is (kind not in OPENING | FAILED), kind
        assert (mark.error is not None) is (kind in FAILED), kind
        empty = read(dialect, path, {"type": kind, "delta": {} if dialect == "anthropic" else ""})
        assert not (kind.endswith("delta") and kind != "message_delta" and empty.is_progress), kind


@pytest.mark.parametrize("kind", ["ping", "keepalive", "keep-alive", "keep_alive", "KeepAlive", "heartbeat", "x.ping"])
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize(
    ("dialect", "path"),
    [
        ("openai", "/v1/chat/completions"), ("openai", "/v1/completions"), ("openai", "/v1/responses"),
        ("openai", "/v1/audio/speech"), ("anthropic", "/v1/messages"),
    ],
)  # fmt: skip
def test_keep_alive_by_any_name_is_no_progress(dialect: DialectName, path: str, is_named: bool, kind: str) -> None:
    data = b"{}" if is_named else b'{"type": "%s"}' % kind.encode()
    mark = DIALECTS[dialect].stream_reader(path, 1).read(SseEvent(kind if is_named else "", data))
    assert not mark.is_progress
    assert not mark.is_token
