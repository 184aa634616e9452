"""Translations of the Responses API hold whatever the bytes, the cuts and the requests."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.sse import events_in
from llm_guard.dialects.synthetic_stream import stream_of
from llm_guard.dialects.translation.canonical import RequestTarget, UnreadableRequestError
from llm_guard.dialects.translation.endpoints import CHAT, MESSAGES, RESPONSES, read_request, write_request
from llm_guard.proxy.streams.decoder import view_of
from llm_guard.proxy.translation.decoder import TranslatingStreamDecoder
from tests.effort import each_seed, repeated, some
from tests.fakes.random_requests import random_responses
from tests.fakes.typed_requests import problems_of
from tests.property.test_translation import RECORDED, mutated, random_completion, random_message, received
from tests.unit.dialects.translation.conversions import body_of, from_responses, responses_fold, streamed, whole

ENDS = ("response.completed", "response.incomplete")


def view_for(name: str) -> TranslatingStreamDecoder:
    """Returns the view of a recorded stream for a client of the Responses API."""
    request = from_responses({"stream": True}, MESSAGES if name.startswith("anthropic") else CHAT)
    reader = DIALECTS[request.endpoint.dialect].stream_reader(request.endpoint.path, 1)
    translator = request.stream(1, shows_reasoning=True)
    return TranslatingStreamDecoder(view_of(reader, ""), translator, "openai", "lg-1")


def has_clean_end(out: bytes) -> bool:
    return any(event.name in ENDS for event in events_in(out))


@pytest.mark.parametrize("name", RECORDED)
def test_stream_is_translated_alike_however_its_bytes_are_split(name: str) -> None:
    raw, random = RECORDED[name], Random(name)
    expected = received(view_for(name), raw, [])
    for _ in range(repeated(50)):
        cuts = sorted(random.randrange(len(raw) + 1) for _ in range(random.randrange(12)))
        assert received(view_for(name), raw, cuts) == expected
    assert received(view_for(name), raw, list(range(1, len(raw)))) == expected


@pytest.mark.parametrize("name", RECORDED)
def test_stream_that_is_cut_anywhere_has_no_clean_end(name: str) -> None:
    raw = RECORDED[name]
    for at in some(range(0, len(raw), 1 if len(raw) < 4000 else 7)):
        view = view_for(name)
        if has_clean_end(received(view, raw[:at], [])):
            assert view.watch.has_ended
            assert view.watch.error is None
            assert view.failure is None


def test_sdk_accepts_each_translated_stream_that_is_complete() -> None:
    complete = 0
    for name, raw in RECORDED.items():
        view = view_for(name)
        out = received(view, raw, [])
        if view.has_ended and view.failure is None:
            responses_fold(b"".join(block + b"\n\n" for block in out.split(b"\n\n") if block.startswith(b"event: ")))
            complete += 1
    assert complete >= 20


def normal(response: dict[str, Any]) -> dict[str, Any]:
    """Returns a response in which equal arguments are equal texts."""
    for item in response["output"]:
        if item["type"] == "function_call":
            item["arguments"] = json.dumps(json.loads(item["arguments"]))
    return response


@pytest.mark.parametrize("shows", [False, True])
@each_seed(200)
def test_folded_stream_of_messages_is_the_whole_response(seed: int, shows: bool) -> None:
    answer, request = random_message(Random(seed)), from_responses()
    events = stream_of("/v1/messages", answer, is_usage_wanted=True)
    assert events is not None
    expected = whole(request, answer, shows=shows)
    assert normal(responses_fold(streamed(request, events, shows=shows)).to_dict()) == normal(expected)
    assert expected["usage"]["output_tokens"] == answer["usage"]["output_tokens"]


@each_seed(200)
def test_folded_stream_of_a_chat_is_the_whole_response(seed: int) -> None:
    answer, request = random_completion(Random(seed)), from_responses(to=CHAT)
    events = stream_of("/v1/chat/completions", answer, is_usage_wanted=True)
    assert events is not None
    expected = whole(request, answer)
    assert normal(responses_fold(streamed(request, events)).to_dict()) == normal(expected)
    calls = [item for item in expected["output"] if item["type"] == "function_call"]
    given = answer["choices"][0]["message"].get("tool_calls", [])
    assert [(call["call_id"], json.loads(call["arguments"])) for call in calls] == [
        (call["id"], json.loads(call["function"]["arguments"])) for call in given
    ]


@each_seed(400)
@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-sonnet-4-5", "gpt-4o", "gpt-5.5"])
def test_translated_request_has_the_form_of_the_api_description(model: str, seed: int) -> None:
    to = MESSAGES if model.startswith("claude") else CHAT
    request = from_responses(random_responses(Random(seed)), to, model=model)
    assert problems_of(body_of(request)) == []
    assert all(loss.kind in ("hint", "promise") for loss in request.losses)


def test_generator_of_requests_writes_valid_ones() -> None:
    for seed in range(100):
        assert problems_of({"model": "gpt-5.5", **random_responses(Random(seed))}) == []


@each_seed(2000)
@pytest.mark.parametrize("to", [CHAT, MESSAGES])
def test_request_with_odd_values_is_translated_or_refused(to: Any, seed: int) -> None:
    random = Random(seed)
    body = mutated({"model": "m", **random_responses(random)}, random)
    target = RequestTarget("claude-opus-4-6" if to is MESSAGES else "gpt-4o")
    with suppress(UnreadableRequestError):
        request = read_request(RESPONSES, json.dumps(body).encode())
        translated = write_request(request, RESPONSES, to, target)
        assert json.loads(translated.body)
        assert whole(translated, random_message(random) if to is MESSAGES else random_completion(random))["id"]


def test_cuts_between_all_bytes_give_the_same_events() -> None:
    raw = stream_of("/v1/messages", random_message(Random(3)), is_usage_wanted=True)
    assert raw is not None
    request = from_responses()
    pieces = [raw[start:end] for start, end in pairwise(range(len(raw) + 1))]
    translator = request.stream(1_700_000_000, shows_reasoning=False)
    assert b"".join(map(translator.feed, pieces)) + translator.finish() == streamed(request, raw)


@pytest.mark.parametrize("depth", [300, 3000, 100_000])
@pytest.mark.parametrize("place", ["input", "tools", "metadata", "text"])
def test_request_that_is_nested_too_deeply_is_refused(place: str, depth: int) -> None:
    raw = b'{"model": "m", "input": "hi", "%s": %s%s}' % (place.encode(), b"[" * depth, b"]" * depth)
    with pytest.raises(UnreadableRequestError):
        write_request(read_request(RESPONSES, raw), RESPONSES, MESSAGES, RequestTarget("claude"))
