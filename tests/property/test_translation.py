"""Translations hold whatever the bytes, the cuts and the requests: streams, whole responses, requests and ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.sse import events_in
from llm_guard.dialects.synthetic_stream import stream_of
from llm_guard.dialects.translation.canonical import RequestTarget, UnreadableRequestError
from llm_guard.dialects.translation.endpoints import CHAT, MESSAGES, TranslatedRequest, read_request, write_request
from llm_guard.dialects.translation.identifiers import CHAT_NAME_LENGTH, ID_LENGTH, MESSAGES_NAME_LENGTH, NameMap
from llm_guard.proxy.streams.decoder import view_of
from llm_guard.proxy.translation.decoder import TranslatingStreamDecoder
from tests.effort import each_seed, repeated, some
from tests.fakes.random_requests import random_chat, random_messages
from tests.fakes.typed_requests import problems_of
from tests.unit.dialects.translation.conversions import (
    body_of,
    chat_fold,
    from_chat,
    from_messages,
    messages_fold,
    streamed,
    whole,
)

FOLDER = Path(__file__).parents[1] / "data" / "streams"
RECORDED = {
    path.stem: path.read_bytes()
    for path in sorted(FOLDER.glob("*.sse"))
    if not path.stem.startswith(("responses", "openai_speech", "openai_transcription"))
    and "completions" not in path.stem
    and path.stem != "anthropic_complete"
}
"""Streams of chats and of Messages."""
CHARACTERS = "abcXYZ019_-./: éß中😀\n\"'"


def request_for(name: str) -> TranslatedRequest:
    """Returns the request of a client of the other dialect than that of a recorded stream."""
    if name.startswith("anthropic"):
        return from_chat({"stream": True, "stream_options": {"include_usage": True}})
    return from_messages({"stream": True})


def view_for(name: str) -> TranslatingStreamDecoder:
    """Returns the view of a recorded stream, as the gateway makes it."""
    request = request_for(name)
    endpoint = request.endpoint
    reader = DIALECTS[endpoint.dialect].stream_reader(endpoint.path, 1)
    client = CHAT if endpoint is MESSAGES else MESSAGES
    return TranslatingStreamDecoder(
        view_of(reader, ""), request.stream(1, shows_reasoning=False), client.dialect, "lg-1"
    )


def received(view: TranslatingStreamDecoder, raw: bytes, cuts: list[int]) -> bytes:
    places = [0, *cuts, len(raw)]
    out = b"".join(view.feed(raw[start:end]) for start, end in pairwise(places))
    return out + view.trailing_bytes() + view.suppressed


def has_clean_end(out: bytes) -> bool:
    """Returns whether a client takes a stream for complete."""
    events = list(events_in(out))
    is_chat = any(event.data == b"[DONE]" or b'"finish_reason":"' in event.data for event in events)
    return is_chat or any(event.name in ("message_stop", "message_delta") for event in events)


@pytest.mark.parametrize("name", RECORDED)
def test_stream_is_translated_alike_however_its_bytes_are_split(name: str) -> None:
    raw, random = RECORDED[name], Random(name)
    expected = received(view_for(name), raw, [])
    for _ in range(repeated(100)):
        cuts = sorted(random.randrange(len(raw) + 1) for _ in range(random.randrange(12)))
        assert received(view_for(name), raw, cuts) == expected
    assert received(view_for(name), raw, list(range(1, len(raw)))) == expected


@pytest.mark.parametrize("name", RECORDED)
def test_stream_that_is_cut_anywhere_has_no_clean_end(name: str) -> None:
    raw = RECORDED[name]
    for at in some(range(0, len(raw), 1 if len(raw) < 4000 else 7)):
        view = view_for(name)
        out = received(view, raw[:at], [])
        if has_clean_end(out):
            assert view.watch.has_ended
            assert view.watch.error is None
            assert view.failure is None


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("what", ["error", "garbled"])
def test_stream_that_is_broken_by_an_event_has_no_clean_end(name: str, what: str) -> None:
    raw = RECORDED[name]
    is_anthropic = name.startswith("anthropic")
    kind = b'"type":"error",' if is_anthropic else b""
    event = b'data: {%b"error":{"type":"overloaded_error","message":"Overloaded"}}\n\n' % kind
    event = (b"event: error\n" if is_anthropic else b"") + event if what == "error" else b"data: {\n\n"
    for place in [0, *(match + 2 for match in _boundaries(raw))]:
        view = view_for(name)
        before = view_for(name)
        received(before, raw[:place], [])
        if before.watch.has_ended or before.is_closed:
            break
        out = view.feed(raw[:place] + event + raw[place:])
        assert not has_clean_end(out + view.trailing_bytes())
        assert view.suppressed or view.failure is not None or view.watch.malformed or not view.watch.has_ended


def _boundaries(raw: bytes) -> list[int]:
    return [at for at in range(len(raw)) if raw.startswith(b"\n\n", at)]


def is_complete(name: str) -> bool:
    """Returns whether a recorded stream ends well, and can be expressed in the other dialect."""
    view = view_for(name)
    received(view, RECORDED[name], [])
    return view.has_ended and view.failure is None


COMPLETE = [name for name in RECORDED if is_complete(name)]


@pytest.mark.parametrize("name", COMPLETE)
def test_sdk_accepts_each_translated_stream(name: str) -> None:
    out = received(view_for(name), RECORDED[name], [])
    if name.startswith("anthropic"):
        assert chat_fold(out).choices[0].finish_reason
    else:
        assert messages_fold(out).stop_reason


def test_enough_streams_are_complete() -> None:
    assert len(COMPLETE) >= 20


# whole responses and streams


def random_message(random: Random) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for index in range(random.randrange(5)):
        kind = random.choice(["text", "thinking", "tool_use"])
        if kind == "text":
            content.append({"type": "text", "text": random_text(random)})
        elif kind == "thinking":
            content.append({"type": "thinking", "thinking": random_text(random), "signature": "c2ln"})
        else:
            arguments = {random_text(random): random_text(random) for _ in range(random.randrange(3))}
            content.append({"type": "tool_use", "id": f"toolu_{index}", "name": f"tool_{index}", "input": arguments})
    has_calls = any(block["type"] == "tool_use" for block in content)
    stop = "tool_use" if has_calls else random.choice(["end_turn", "max_tokens", "refusal", "pause_turn"])
    usage = {"input_tokens": random.randrange(99), "output_tokens": random.randrange(99), "cache_read_input_tokens": 7}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_sequence": None}
    return {**head, "content": content, "stop_reason": stop, "usage": usage}


def random_completion(random: Random) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": random.choice([None, random_text(random)])}
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {
            "name": f"tool_{index}", "arguments": json.dumps({random_text(random): index}),
        }}
        for index in range(random.randrange(4))
    ]  # fmt: skip
    if calls:
        message["tool_calls"] = calls
    elif random.random() < 0.2:
        message["refusal"] = random_text(random)
    finish = "tool_calls" if calls else random.choice(["stop", "length", "content_filter"])
    usage = {
        "prompt_tokens": 50,
        "completion_tokens": 9,
        "total_tokens": 59,
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt", "choices": [choice], "usage": usage}


def random_text(random: Random) -> str:
    return "".join(random.choice(CHARACTERS) for _ in range(random.randrange(1, 12)))


@each_seed(200)
def test_folded_chat_stream_is_the_translated_whole_answer(seed: int) -> None:
    answer, request = random_message(Random(seed)), from_chat({"stream_options": {"include_usage": True}})
    expected = whole(request, answer)
    events = stream_of("/v1/messages", answer, is_usage_wanted=True)
    assert events is not None
    found = chat_fold(streamed(request, events)).choices[0]
    message = expected["choices"][0]["message"]
    assert (found.message.content or None) == (message["content"] or None)
    assert found.finish_reason == expected["choices"][0]["finish_reason"]
    folded: Any = found.message.tool_calls or []
    assert [(call.id, call.function.name, json.loads(call.function.arguments)) for call in folded] == [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    ]
    counts = chat_fold(streamed(request, events)).usage
    assert counts is not None
    assert counts.model_dump(exclude_none=True, include={"prompt_tokens", "completion_tokens"}) == {
        name: expected["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    }


@each_seed(200)
def test_folded_message_stream_is_the_translated_whole_answer(seed: int) -> None:
    answer, request = random_completion(Random(seed)), from_messages()
    expected = whole(request, answer)
    events = stream_of("/v1/chat/completions", answer, is_usage_wanted=True)
    assert events is not None
    found = messages_fold(streamed(request, events)).model_dump(exclude_none=True)
    assert [_bare(block) for block in found["content"]] == [_bare(block) for block in expected["content"]]
    assert found["stop_reason"] == expected["stop_reason"]
    assert found["usage"] == expected["usage"]


def _bare(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key in ("type", "text", "id", "name", "input")}


# requests


@each_seed(400)
@pytest.mark.parametrize(("draw", "translate"), [(random_chat, from_chat), (random_messages, from_messages)])
def test_translated_request_has_the_form_of_the_api_description(
    draw: Callable[[Random], dict[str, Any]], translate: Callable[..., TranslatedRequest], seed: int
) -> None:
    body = draw(Random(seed))
    for model in ("claude-opus-4-6", "claude-sonnet-4-5") if translate is from_chat else ("gpt-4o", "gpt-5.5"):
        request = translate(body, model=model, prefill="plain")
        found = body_of(request)
        found.pop("partial", None)
        assert problems_of(found) == []
        assert all(loss.kind in ("hint", "promise") for loss in request.losses)


ODD: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], {}, [None], [[]], {"type": 5}, {"type": "text"}, "\ud800", [{}]]


def mutated(value: Any, random: Random) -> Any:
    """Returns a request with an odd value somewhere in it."""
    if random.random() < 0.15 or not value or not isinstance(value, dict | list):
        return random.choice(ODD)
    at = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
    changed = value.copy()
    changed[at] = mutated(value[at], random)
    return changed


@each_seed(2000)
@pytest.mark.parametrize(("endpoint", "draw"), [(CHAT, random_chat), (MESSAGES, random_messages)])
def test_request_with_odd_values_is_translated_or_refused(endpoint: Any, draw: Any, seed: int) -> None:
    random = Random(seed)
    body = mutated({"model": "m", "max_tokens": 9, **draw(random)}, random)
    target = RequestTarget("claude-opus-4-6" if endpoint is CHAT else "gpt-5.5")
    try:
        request = read_request(endpoint, json.dumps(body).encode())
        written = write_request(request, endpoint, MESSAGES if endpoint is CHAT else CHAT, target).body
    except UnreadableRequestError as refusal:
        written = json.dumps(refusal.message).encode()
    assert json.loads(written)


@pytest.mark.parametrize("endpoint", [CHAT, MESSAGES])
def test_request_that_is_nested_too_deeply_is_refused(endpoint: Any) -> None:
    raw = _nested({"messages": [{"role": "user", "content": ["@"]}], "max_tokens": 9}, 3000)
    with pytest.raises(UnreadableRequestError):
        read_request(endpoint, raw)


def _nested(body: dict[str, Any], depth: int) -> bytes:
    """Returns a request with documents within documents at the place of `"@"`."""
    opening = b'{"type":"document","source":{"type":"content","content":[' * depth
    return json.dumps(body).encode().replace(b'"@"', opening + b'{"type":"text","text":"x"}' + b"]}}" * depth)


def test_generators_of_requests_write_valid_ones() -> None:
    for seed in range(50):
        assert problems_of({"model": "gpt-4o", **random_chat(Random(seed))}) == []
        assert problems_of({"model": "claude-x", "max_tokens": 9, **random_messages(Random(seed))}) == []


# ids and names


@pytest.mark.parametrize("limit", [ID_LENGTH, CHAT_NAME_LENGTH, MESSAGES_NAME_LENGTH])
def test_ids_and_names_are_reversible_without_collisions(limit: int) -> None:
    random, names = Random(limit), NameMap(limit)
    texts = {
        "".join(random.choice(alphabet) for _ in range(random.choice([1, 3, 12, 60, 200])))
        for alphabet in (CHARACTERS, VALID)
        for _ in range(5_000)
    }
    texts |= {names.wire(text) for text in list(texts)[:500]} | {"", "a.b:0", "a:b.0"}
    wires = {text: names.wire(text) for text in texts}
    assert len(set(wires.values())) == len(texts) > 8000
    assert all(0 < len(wire) <= limit and not set(wire) - set(VALID) for wire in wires.values())
    assert all(names.original(wire) == text for text, wire in wires.items())
    assert [names.wire(text) for text in texts] == list(wires.values())


VALID = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"


def test_valid_text_stays_as_it_is_and_foreign_ones_are_the_same_in_each_call() -> None:
    assert NameMap(40).wire("toolu_01A") == "toolu_01A"
    assert NameMap(40).wire("a.b") == NameMap(40).wire("a.b") != "a.b"
