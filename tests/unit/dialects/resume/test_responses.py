from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent

from llm_guard.dialects.resume.responses import ResponsesTranscript
from llm_guard.dialects.resume.transcript import MAX_TEXT, ResumeMode, Splice
from llm_guard.dialects.sse import Usage, events_in
from llm_guard.mock.content import say
from llm_guard.mock.exchange import MockRequest, Script
from llm_guard.mock.openai_responses import respond

Body = dict[str, Any]
REQUEST: Body = {"model": "gpt", "max_output_tokens": 500, "input": "tell me"}
TOKENS = 15
WHOLE = "".join(say(TOKENS))
MARKER = {"recovered": "x"}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: response.{kind}\ndata: {json.dumps({'type': f'response.{kind}', **fields})}\n\n".encode()


def added(at: int, kind: str, number: int, **fields: Any) -> bytes:
    return event("output_item.added", output_index=at, item=item(kind, number, **fields))


def item(kind: str, number: int, **fields: Any) -> Body:
    return {"id": f"{kind}_{number}", "type": kind, "status": "in_progress", **fields}


def message(at: int, number: int, *pieces: str) -> list[bytes]:
    """Returns the events of an unfinished message."""
    place = {"item_id": f"message_{number}", "output_index": at, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    said = (event("output_text.delta", **place, delta=piece, logprobs=[]) for piece in pieces)
    begun = added(at, "message", number, role="assistant", content=[])
    return [begun, event("content_part.added", **place, part=part), *said]


def finished(at: int, number: int, text: str) -> list[bytes]:
    place = {"item_id": f"message_{number}", "output_index": at, "content_index": 0}
    part = {"type": "output_text", "text": text, "annotations": []}
    whole = item("message", number, role="assistant", content=[part]) | {"status": "completed"}
    return [
        event("output_text.done", **place, text=text, logprobs=[]),
        event("content_part.done", **place, part=part),
        event("output_item.done", output_index=at, item=whole),
    ]


def reasoning(at: int, number: int, *pieces: str, is_done: bool = True) -> list[bytes]:
    place = {"item_id": f"reasoning_{number}", "output_index": at, "summary_index": 0}
    part = {"type": "summary_text", "text": "".join(pieces)}
    said = [event("reasoning_summary_text.delta", **place, delta=piece) for piece in pieces]
    begun = [added(at, "reasoning", number, summary=[])]
    begun.append(event("reasoning_summary_part.added", **place, part={**part, "text": ""}))
    whole = item("reasoning", number, summary=[part]) | {"encrypted_content": f"secret {number}"}
    done = [
        event("reasoning_summary_text.done", **place, text=part["text"]),
        event("reasoning_summary_part.done", **place, part=part),
        event("output_item.done", output_index=at, item=whole),
    ]
    return [*begun, *said, *(done if is_done else [])]


def call(at: int, number: int, *pieces: str, name: str = "look", is_done: bool = False) -> list[bytes]:
    place = {"item_id": f"function_call_{number}", "output_index": at}
    named = {"name": name, "call_id": f"call_{number}"}
    said = [event("function_call_arguments.delta", **place, delta=piece) for piece in pieces]
    whole = item("function_call", number, **named, arguments="".join(pieces))
    done = [
        event("function_call_arguments.done", **place, name=name, arguments="".join(pieces)),
        event("output_item.done", output_index=at, item=whole),
    ]
    return [added(at, "function_call", number, **named, arguments=""), *said, *(done if is_done else [])]


def response(number: int, **fields: Any) -> Body:
    known = {"id": f"resp_{number}", "object": "response", "created_at": number, "status": "in_progress", "output": []}
    return {**known, "model": "gpt", "parallel_tool_calls": True, "tools": [], "tool_choice": "auto", **fields}


def opening(number: int = 1) -> list[bytes]:
    return [event(kind, response=response(number)) for kind in ("created", "in_progress")]


def closing(number: int, output: int = 5, kind: str = "completed") -> bytes:
    usage = {"input_tokens": 10, "output_tokens": output, "total_tokens": 10 + output}
    usage |= {"output_tokens_details": {"reasoning_tokens": 2}}  # type: ignore[dict-item]
    return event(kind, response=response(number, status=kind, usage=usage, max_output_tokens=3 * number))


def numbered(events: Iterable[bytes]) -> list[bytes]:
    bodies_ = enumerate(json.loads(one.partition(b"data: ")[2]) for one in events)
    return [event(body.pop("type")[9:], **body, sequence_number=at) for at, body in bodies_]


def mocked(request: Body, number: int = 1) -> list[bytes]:
    """Returns the events that the mock provider sends."""
    asked = MockRequest("openai", number, "POST", "/responses", {}, {}, request, 10, "gpt", wants_stream=True)
    script = respond(asked, TOKENS)
    assert isinstance(script, Script)
    return [*script.opening, *script.tokens, *script.closing]


def sent(*events: bytes) -> ResponsesTranscript:
    transcript = ResponsesTranscript()
    for one in events:
        transcript.feed(one)
    return transcript


def spliced(transcript: ResponsesTranscript, resume_mode: ResumeMode, *events: bytes) -> tuple[Splice, bytes]:
    splice = transcript.splice(resume_mode, MARKER)
    return splice, b"".join(splice.feed(one) for one in events)


def joined(resume_mode: ResumeMode, first: list[bytes], second: list[bytes]) -> Response:
    """Returns what the SDK makes of a stream and the part that the second one adds."""
    first = numbered(first)
    return read_by_sdk(b"".join(first) + spliced(sent(*first), resume_mode, *numbered(second))[1])


def bodies(stream: bytes) -> list[Body]:
    return [json.loads(one.data) for one in events_in(stream)]


def kinds(stream: bytes) -> list[str]:
    return [body["type"].removeprefix("response.") for body in bodies(stream)]


def read_by_sdk(stream: bytes) -> Response:
    """Returns the response as the official SDK assembles it, and checks that the deltas agree with the final items."""
    state = ResponseStreamState[Any](input_tools=omit, text_format=omit)
    deltas: dict[tuple[str, str], str] = {}
    for number, body in enumerate(bodies(stream)):
        assert body["sequence_number"] == number
        state.handle_event(construct_type_unchecked(type_=ResponseStreamEvent, value=body))  # type: ignore[arg-type]
        kind = body["type"].removeprefix("response.")
        if kind.endswith(".delta"):
            place = kind.removesuffix(".delta"), f"{body['item_id']} {body.get('content_index')}"
            deltas[place] = deltas.get(place, "") + body["delta"]
        elif kind in ("output_text.done", "reasoning_summary_text.done", "function_call_arguments.done"):
            place = kind.removesuffix(".done"), f"{body['item_id']} {body.get('content_index')}"
            assert deltas.get(place, "") == body.get("text", body.get("arguments"))
    told = kinds(stream)
    assert told.count("created") == told.count("completed") + told.count("incomplete") == 1
    for begun, ended in (("output_item.added", "output_item.done"), ("content_part.added", "content_part.done")):
        assert told.count(begun) == told.count(ended)
    last = state._completed_response or construct_type_unchecked(type_=Response, value=bodies(stream)[-1]["response"])
    assert isinstance(last, Response)
    return last


@pytest.mark.parametrize("resume_mode", ["instruction", "restart"])
def test_response_cut_anywhere_has_its_whole_text_once(resume_mode: ResumeMode) -> None:
    first = mocked(REQUEST)
    for cut in range(5, len(first) - 1):
        transcript = sent(*first[:cut])
        splice, rest = spliced(
            transcript, resume_mode, *mocked(transcript.request(REQUEST, resume_mode, "none"), number=2)
        )
        whole = read_by_sdk(b"".join(first[:cut]) + rest)
        assert whole.output_text == WHOLE, cut
        assert (whole.id, whole.output[0].id, len(whole.output)) == ("resp_mock1", "msg_mock1", 1)
        assert splice.is_joined
        assert not splice.has_diverged


def test_second_stream_may_die_as_well() -> None:
    first = mocked(REQUEST)
    transcript = sent(*first[:6])
    stream = b"".join(first[:6])
    for number in range(2, 5):
        events = mocked(transcript.request(REQUEST, "instruction", "none"), number)
        _, told = spliced(transcript, "instruction", *events[:8])
        stream += told
    _, told = spliced(transcript, "instruction", *mocked(transcript.request(REQUEST, "instruction", "none"), 9))
    assert read_by_sdk(stream + told).output_text == WHOLE


def test_first_event_after_the_seam_carries_the_marker_and_no_other_does() -> None:
    transcript = sent(*opening(), *message(0, 1, "beginning "))
    second = [
        *opening(2),
        *message(0, 2, "beginning two", " three"),
        *finished(0, 2, "beginning two three"),
        closing(2),
    ]
    _, told = spliced(transcript, "restart", *second)
    assert [body.get("llm_guard") for body in bodies(told)] == [MARKER, *[None] * (len(kinds(told)) - 1)]
    assert kinds(told)[0] == "output_text.delta"


def test_events_are_not_numbered_where_the_first_server_did_not() -> None:
    transcript = sent(*opening(), *message(0, 1, "beginning "))
    _, told = spliced(transcript, "restart", *numbered([*opening(2), *message(0, 2, "beginning two")]))
    assert ["sequence_number" in body for body in bodies(told)] == [False]


REFUSAL = event(
    "content_part.added", item_id="message_1", output_index=0, content_index=0, part={"type": "refusal", "refusal": ""}
)
NOTED = event("output_text.annotation.added", item_id="message_1", output_index=0, content_index=0, annotation={})


@pytest.mark.parametrize(
    ("begun", "request_"),
    [
        (call(0, 1, "{"), {}),
        (call(0, 1, "{}", is_done=True), {}),
        ([added(0, "web_search_call", 1)], {}),
        ([added(0, "custom_tool_call", 1)], {}),
        (reasoning(0, 1, "hmm", is_done=False), {}),
        ([message(0, 1)[0], REFUSAL], {}),
        ([*message(0, 1, "a"), *message(1, 2, "b")], {}),
        ([*message(0, 1, "a"), NOTED], {}),
        ([*message(0, 1, "a"), *finished(0, 1, "a"), closing(1)], {}),
        (message(0, 1, "a" * MAX_TEXT, "a"), {}),
        (message(0, 1, "a"), {"text": {"format": {"type": "json_schema", "schema": {}}}}),
        (message(0, 1, "a"), {"text": {"format": {"type": "json_object"}}}),
        (message(0, 1, "a"), {"tool_choice": "required"}),
        (message(0, 1, "a"), {"tool_choice": {"type": "function", "name": "look"}}),
        (message(0, 1, "a"), {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}),
        (message(0, 1, "a"), {"background": True}),
        (message(0, 1, "a"), {"conversation": "conv_1"}),
    ],
)
def test_response_that_is_no_plain_text_is_not_resumed(begun: list[bytes], request_: Body) -> None:
    assert sent(*opening(), *begun).resume_modes({**REQUEST, **request_}, "plain") == ()


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (message(0, 1, "a"), {}),
        (message(0, 1, "a"), {"text": {"format": {"type": "text"}, "verbosity": "low"}}),
        (message(0, 1, "a"), {"tools": [], "tool_choice": "auto"}),
        (message(0, 1, "a"), {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
        ([*message(0, 1, "a"), *finished(0, 1, "a")], {}),
        ([*reasoning(0, 1, "hmm"), *message(1, 1, "a")], {}),
        (reasoning(0, 1, "hmm"), {}),
    ],
)
def test_text_is_resumed_by_an_instruction(begun: list[bytes], more: Body) -> None:
    assert sent(*opening(), *begun).resume_modes({**REQUEST, **more}, "plain") == ("instruction",)


@pytest.mark.parametrize("own", ["tell me", [{"role": "user", "content": "tell me"}]])
def test_resume_request_ends_in_the_text_so_far_and_an_instruction(own: object) -> None:
    transcript = sent(*opening(), *reasoning(0, 1, "hmm"), *message(1, 1, "beginning ", "two "))
    request = {**REQUEST, "input": own}
    rest = transcript.request(request, "instruction", "none")
    assert [one["role"] for one in rest["input"]] == ["user", "assistant", "user"]
    assert "tell me" in json.dumps(rest["input"][0])
    assert rest["input"][1]["content"] == [{"type": "output_text", "text": "beginning two"}]
    assert "beginning two" in rest["input"][2]["content"][0]["text"]
    assert rest["max_output_tokens"] == 498
    assert request == {**REQUEST, "input": own}
    assert transcript.request(request, "restart", "none") == request


@pytest.mark.parametrize(("limit", "left"), [(17, 16), (16, 16), (5, 5), (None, None)])
def test_limit_stays_one_that_the_api_takes(limit: int | None, left: int | None) -> None:
    transcript = sent(*opening(), *message(0, 1, "beginning ", "two "))
    rest = transcript.request({"input": "x", "max_output_tokens": limit}, "instruction", "none")
    assert rest["max_output_tokens"] == left


def test_reasoning_without_text_is_repeated_and_shown_once() -> None:
    first = [*opening(), *reasoning(0, 1, "hmm")]
    assert sent(*first).request(REQUEST, "instruction", "none") == REQUEST
    second = [
        *opening(2),
        *reasoning(0, 2, "well"),
        *message(1, 2, "beginning"),
        *finished(1, 2, "beginning"),
        closing(2),
    ]
    whole = joined("instruction", first, second)
    assert [one.id for one in whole.output] == ["reasoning_1", "message_2"]
    assert whole.output_text == "beginning"


def test_restart_with_different_text_has_diverged() -> None:
    begun = "A first sentence of more than forty characters, and then"
    for more in (" another.", ""):
        transcript = sent(*opening(), *message(0, 1, begun, " the second. "))
        again = [*opening(2), *message(0, 2, begun, more), *finished(0, 2, begun + more), closing(2)]
        splice, told = spliced(transcript, "instruction", *again)
        assert (splice.has_diverged, splice.is_joined, told) == (True, False, b"")
        assert not transcript.has_ended


def test_response_of_whitespace_restarts() -> None:
    first = [*opening(), *message(0, 1, "\n\n")]
    assert sent(*first).request(REQUEST, "instruction", "none") == REQUEST
    again = [*opening(2), *message(0, 2, "\n", "\nbeginning"), *finished(0, 2, "\n\nbeginning"), closing(2)]
    assert joined("instruction", first, again).output_text == "\n\nbeginning"


def test_text_whose_message_was_ended_continues_in_a_new_one() -> None:
    first = [*opening(), *message(0, 1, "beginning "), *finished(0, 1, "beginning ")]
    second = [*opening(2), *message(0, 2, "beginning two"), *finished(0, 2, "beginning two"), closing(2)]
    whole = joined("instruction", first, second)
    assert [one.id for one in whole.output] == ["message_1", "message_2"]
    assert whole.output_text == "beginning two"


def test_text_whose_part_was_ended_continues_in_a_new_part() -> None:
    first = [*opening(), *message(0, 1, "beginning "), *finished(0, 1, "beginning ")[:2]]
    second = [*opening(2), *message(0, 2, "beginning two"), *finished(0, 2, "beginning two"), closing(2)]
    whole = joined("instruction", first, second)
    content = whole.output[0].to_dict()["content"]
    assert isinstance(content, list)
    assert [part["text"] for part in content] == ["beginning ", "two"]


def test_logprobs_of_a_partly_sent_piece_are_left_out() -> None:
    place = {"item_id": "message_2", "output_index": 0, "content_index": 0, "logprobs": [{"token": "t", "logprob": -1}]}
    pieces = [event("output_text.delta", **place, delta=piece) for piece in ("beginning two", " three")]
    transcript = sent(*opening(), *message(0, 1, "beginning "))
    _, told = spliced(transcript, "instruction", *opening(2), *message(0, 2), *pieces)
    assert [(body["delta"], len(body["logprobs"])) for body in bodies(told)] == [("two", 0), (" three", 1)]


def test_message_without_an_end_is_incomplete_with_its_response() -> None:
    second = [*opening(2), *message(0, 2, "beginning two"), closing(2, kind="incomplete")]
    whole = joined("instruction", [*opening(), *message(0, 1, "beginning ")], second)
    assert whole.output[0].to_dict()["status"] == "incomplete"


def test_text_after_the_end_of_its_message_is_not_sent() -> None:
    second = [*opening(2), *message(0, 2, "beginning two"), *finished(0, 2, "beginning two")]
    transcript = sent(*opening(), *message(0, 1, "beginning "))
    _, told = spliced(transcript, "instruction", *second, *message(0, 2, "x")[2:])
    assert kinds(told)[-1] == "output_item.done"


def test_end_without_further_text_ends_the_message_and_begins_none() -> None:
    text = "beginning"
    for first in (message(0, 1, text), message(0, 1, text)[:3], [*message(0, 1, text), *finished(0, 1, text)]):
        second = [*message(0, 2, text), *finished(0, 2, text)]
        whole = joined("instruction", [*opening(), *first], [*opening(2), *second, closing(2)])
        assert whole.output_text == text
        assert len(whole.output) == 1


@pytest.mark.parametrize("second", [[], [*message(0, 2), *finished(0, 2, "")], call(0, 2, "{}", is_done=True)])
def test_second_stream_that_repeats_nothing_has_diverged(second: list[bytes]) -> None:
    """It is unknown whether the text that was cut had been complete."""
    transcript = sent(*opening(), *message(0, 1, "beginning "))
    splice, told = spliced(transcript, "instruction", *opening(2), *second, closing(2))
    assert (splice.has_diverged, told) == (True, b"")
    assert not transcript.has_ended


def test_call_that_the_second_stream_makes_follows_the_text() -> None:
    first = [*opening(), *message(0, 1, "beginning ")]
    said = [*message(1, 2, "beginning two"), *finished(1, 2, "beginning two")]
    second = [*opening(2), *reasoning(0, 2, "hm"), *said, *call(2, 2, '{"a"', ": 1}", is_done=True), closing(2)]
    whole = joined("instruction", first, second)
    assert [one.type for one in whole.output] == ["message", "function_call"]
    assert whole.output[1].to_dict()["arguments"] == '{"a": 1}'


def test_message_without_text_leaves_no_gap_before_the_next_item() -> None:
    first = [*opening(), *message(0, 1, "beginning"), *finished(0, 1, "beginning")]
    second = [
        *opening(2),
        *message(0, 2, "beginning"),
        *finished(0, 2, "beginning"),
        *call(1, 2, "{}", is_done=True),
        closing(2),
    ]
    _, told = spliced(sent(*first), "instruction", *second)
    assert {body["output_index"] for body in bodies(told) if "output_index" in body} == {1}
    assert joined("instruction", first, second).output_text == "beginning"


def test_refusal_of_the_second_stream_is_a_part_of_its_own() -> None:
    place = {"item_id": "message_2", "output_index": 0, "content_index": 1}
    refused = {"type": "refusal", "refusal": "no"}
    second = [
        *opening(2), *message(0, 2, "beginning two"), *finished(0, 2, "beginning two")[:2],
        event("content_part.added", **place, part={"type": "refusal", "refusal": ""}),
        event("refusal.delta", **place, delta="no"), event("refusal.done", **place, refusal="no"),
        event("content_part.done", **place, part=refused), finished(0, 2, "")[2], closing(2),
    ]  # fmt: skip
    whole = joined("instruction", [*opening(), *message(0, 1, "beginning ")], second).output[0].to_dict()
    assert isinstance(whole["content"], list)
    assert [part.get("text", part.get("refusal")) for part in whole["content"]] == ["beginning two", "no"]
    assert whole["id"] == "message_1"


def test_response_is_the_first_one_with_the_end_of_the_last() -> None:
    second = [
        *opening(2),
        *message(0, 2, "beginning two"),
        *finished(0, 2, "beginning two"),
        closing(2, kind="incomplete"),
    ]
    first = [event("created", response=response(1, max_output_tokens=500)), *message(0, 1, "beginning ")]
    whole = joined("instruction", first, second)
    assert (whole.id, whole.created_at, whole.max_output_tokens, whole.status) == ("resp_1", 1, 500, "incomplete")


def test_usage_of_all_streams_is_summed() -> None:
    first = [*opening(), *message(0, 1, "beginning ", "two ")]
    second = [*opening(2), *message(0, 2, "beginning two three"), *finished(0, 2, "beginning two three"), closing(2, 7)]
    usage = joined("instruction", first, second).usage
    assert usage is not None
    # The first prompt is unknown, and estimated as the second one minus the two pieces.
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (18, 9, 27)
    assert usage.output_tokens_details.reasoning_tokens == 2
    transcript = sent(*first)
    assert transcript.usage == Usage(None, 2)
    spliced(transcript, "restart", *second)
    assert transcript.usage == Usage(20, 9)
    assert transcript.wasted_tokens == 1


def test_prompt_of_a_stream_that_died_is_estimated_by_that_of_another() -> None:
    transcript = sent(*opening(), *message(0, 1, "beginning ", "two "))
    spliced(transcript, "instruction", *opening(2), *message(0, 2, "beginning two three ", "four "))
    spliced(transcript, "instruction", *opening(3))
    whole = "beginning two three four five"
    spliced(transcript, "instruction", *opening(4), *message(0, 4, whole), *finished(0, 4, whole), closing(4, 3))
    # Prompts: 6, 6 plus two pieces, none for the stream that did not begin, and 6 plus four pieces.
    assert transcript.usage == Usage(6 + 8 + 10, 2 + 2 + 3)


def test_nothing_is_sent_after_the_end() -> None:
    second = [*opening(2), *message(0, 2, "beginning two"), *finished(0, 2, "beginning two"), closing(2)]
    for resume_mode in ("instruction", "restart"):
        transcript = sent(*opening(), *message(0, 1, "beginning "))
        _, told = spliced(transcript, resume_mode, *second, *call(1, 2, "{}"), event("rate", x=1), closing(3))
        assert kinds(told)[-1] == "completed"


def test_restart_passes_new_content_and_does_not_repeat_sent_content() -> None:
    first = [
        *opening(),
        *reasoning(0, 1, "hm", "m"),
        *message(1, 1, "beginning"),
        *finished(1, 1, "beginning"),
        *call(2, 1, '{"a'),
    ]
    second = [*opening(2), *reasoning(0, 2, "hmm"), *message(1, 2, "begin", "ning"), *finished(1, 2, "beginning")]
    second += [*call(2, 2, '{"a"', ": 1}", is_done=True), *message(3, 2, "x"), *finished(3, 2, "x"), closing(2)]
    assert sent(*first).can_restart(REQUEST)
    whole = joined("restart", first, second)
    assert [one.id for one in whole.output] == ["reasoning_1", "message_1", "function_call_1", "message_2"]
    assert whole.output[0].to_dict()["encrypted_content"] == "secret 1"
    assert {"call_id": "call_1", "arguments": '{"a": 1}'}.items() <= whole.output[2].to_dict().items()


def test_unsent_encrypted_content_is_that_of_the_second_run() -> None:
    first = [*opening(), *reasoning(0, 1, "hm", is_done=False)]
    whole = joined("restart", first, [*opening(2), *reasoning(0, 2, "hmm"), closing(2)]).output[0].to_dict()
    assert (whole["id"], whole["encrypted_content"]) == ("reasoning_1", "secret 2")


ONE = [*message(0, 2, "beginning"), *finished(0, 2, "beginning")]
ANOTHER = {
    "other text": message(0, 2, "another"),
    "text that ends early": [*message(0, 2, "begin"), *finished(0, 2, "begin")],
    "text that goes on where it had ended": message(0, 2, "beginning more"),
    "reasoning before it": reasoning(0, 2, "hm"),
    "other call": [*ONE, *call(1, 2, '{"a": 1', name="leap")],
    "other arguments": [*ONE, *call(1, 2, '{"b": 1')],
    "no call": [*ONE, *message(1, 2, "x")],
    "another part": [message(0, 2)[0], REFUSAL],
    "note on the text": [*message(0, 2, "beginning"), NOTED],
    "call before the text has ended": [*message(0, 2, "beginning"), *call(1, 2, '{"a": 1}')],
    "end before the call": [*ONE, closing(2)],
    "items left out": [*message(9, 2, "x")],
}


@pytest.mark.parametrize("another", ANOTHER.values(), ids=ANOTHER)
def test_restart_with_different_content_has_diverged(another: list[bytes]) -> None:
    transcript = sent(*opening(), *message(0, 1, "beginning"), *finished(0, 1, "beginning"), *call(1, 1, '{"a": '))
    splice, told = spliced(transcript, "restart", *opening(2), *another)
    assert (splice.has_diverged, splice.is_joined, told) == (True, False, b"")
    assert splice.feed(b"".join([*message(9, 3, "more"), closing(2)])) == b""


def test_restart_with_more_text_in_an_ended_text_has_diverged() -> None:
    for end in (finished(0, 1, "beginning"), finished(0, 1, "beginning")[:2]):
        transcript = sent(*opening(), *message(0, 1, "beginning"), *end)
        splice, told = spliced(transcript, "restart", *opening(2), *message(0, 2, "beginning more"))
        assert (splice.has_diverged, told) == (True, b"")


def test_restart_that_ends_too_early_has_diverged() -> None:
    for end in (finished(0, 2, "begin"), finished(0, 2, "begin")[2:], [closing(2)]):
        transcript = sent(*opening(), *message(0, 1, "beginning"))
        splice, told = spliced(transcript, "restart", *opening(2), *message(0, 2, "begin"), *end)
        assert (splice.has_diverged, told) == (True, b"")


def test_server_tool_is_not_run_again() -> None:
    for kind in ("web_search_call", "mcp_call", "code_interpreter_call", "anything_new"):
        assert not sent(*opening(), added(0, kind, 1)).can_restart(REQUEST)
    said = sent(*opening(), *message(0, 1, "a"))
    assert said.can_restart({**REQUEST, "conversation": "conv_1"})
    assert not said.can_restart({**REQUEST, "background": True})
    assert not sent(*opening(), *message(0, 1, "a"), *finished(0, 1, "a"), closing(1)).can_restart(REQUEST)


def test_stream_without_parts_is_resumed() -> None:
    def bare(number: int, *pieces: str) -> list[bytes]:
        return [one for one in message(0, number, *pieces) if b"content_part" not in one]

    transcript = sent(*opening(), *bare(1, "beginning "))
    end = finished(0, 2, "beginning two")[2]
    _, told = spliced(transcript, "instruction", *opening(2), *bare(2, "beginning two"), end, closing(2))
    assert kinds(told) == ["output_text.delta", "output_text.done", "output_item.done", "completed"]
    output = bodies(told)[-1]["response"]["output"]
    assert [(one["id"], one["content"][0]["text"]) for one in output] == [("message_1", "beginning two")]


def test_stream_with_text_only_in_its_done_event_is_resumed() -> None:
    transcript = sent(*opening(), *message(0, 1), *finished(0, 1, "beginning two"))
    assert "beginning two" in json.dumps(transcript.request(REQUEST, "instruction", "none"))


ODD = [b"data: [DONE]", b"data: {", b"data: [1]", b"data: " + b"[" * 99_999, b"data: null", b": comment", b"x"]
CONFUSED: list[Body] = [
    {"type": kind, **fields}
    for kind in (
        "response.created", "response.output_item.added", "response.content_part.added", "response.output_text.delta",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
        "response.reasoning_summary_part.done", "response.new.delta", "x", "", "response.a\nb",
    )
    for fields in (
        {}, {"output_index": 0}, {"output_index": [], "item": 3, "part": 3, "delta": 3, "response": 3},
        {"output_index": 0, "content_index": {}, "item": {"type": [], "id": []}, "delta": [], "part": {"type": {}}},
        {"output_index": 0, "content_index": 0, "item": {"type": "message"}, "part": {"type": "output_text"}},
        {"output_index": 0, "sequence_number": "x", "response": {"usage": [1], "output": 3}, "text": 5},
        {"output_index": True, "response": {"usage": {"input_tokens": "x", "output_tokens": -1}, "status": 3}},
    )
]  # fmt: skip


@pytest.mark.parametrize("resume_mode", ["instruction", "restart"])
def test_no_input_of_a_provider_raises(resume_mode: ResumeMode) -> None:
    odd = [*(line + b"\n\n" for line in ODD), *(f"data: {json.dumps(body)}\n\n".encode() for body in CONFUSED)]
    for first in ([], [*opening(), *message(0, 1, "beginning ")]):
        transcript = sent(*first, *odd)
        transcript.resume_modes({"input": 3, "text": 3, "tool_choice": 3}, "none")
        transcript.request({"input": 3, "max_output_tokens": "x"}, resume_mode, "none")
        spliced(sent(*first), resume_mode, *odd)
        for one in odd:
            _, told = spliced(sent(*first), resume_mode, one, *message(0, 2, "beginning two"), one, closing(2), one)
            assert all(json.loads(event.data)["type"] == event.name for event in events_in(told))
