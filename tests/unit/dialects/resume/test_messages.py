from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message

from llm_guard.dialects.resume.messages import MessagesTranscript
from llm_guard.dialects.resume.transcript import MAX_TEXT, Prefill, ResumeMode, Splice
from llm_guard.dialects.sse import Usage, events_in
from llm_guard.mock.anthropic_answers import answer_anthropic
from llm_guard.mock.content import say
from llm_guard.mock.exchange import MockRequest, Script

Body = dict[str, Any]
REQUEST: Body = {"model": "claude", "max_tokens": 500, "messages": [{"role": "user", "content": "tell me"}]}
TOKENS = 15
WHOLE = "".join(say(TOKENS))
MARKER = {"recovered": "x"}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def start(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def delta(index: int, kind: str, value: str) -> bytes:
    key = {"input_json_delta": "partial_json"}.get(kind, kind.removesuffix("_delta"))
    return event("content_block_delta", index=index, delta={"type": kind, key: value})


def text(index: int, *pieces: str) -> list[bytes]:
    return [start(index, "text", text=""), *(delta(index, "text_delta", piece) for piece in pieces)]


def thinking(index: int, *pieces: str, signature: str = "sig") -> list[bytes]:
    said = [delta(index, "thinking_delta", piece) for piece in pieces]
    signed = [delta(index, "signature_delta", signature), stop(index)] if signature else []
    return [start(index, "thinking", thinking="", signature=""), *said, *signed]


def tool(index: int, *pieces: str, name: str = "look", number: int = 1) -> list[bytes]:
    said = (delta(index, "input_json_delta", piece) for piece in pieces)
    return [start(index, "tool_use", id=f"toolu_{number}", name=name, input={}), *said]


def stop(index: int) -> bytes:
    return event("content_block_stop", index=index)


def opening(number: int = 1, **usage: object) -> bytes:
    counted = {"input_tokens": 10, "output_tokens": 1, **usage}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [], "model": "claude"}
    return event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": counted})


def closing(output: int = 5, reason: str = "end_turn", **usage: int) -> list[bytes]:
    counted = {"output_tokens": output, **usage}
    last = event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=counted)
    return [last, event("message_stop")]


def mocked(request: Body, number: int = 1) -> list[bytes]:
    """Returns the events that the mock provider sends."""
    asked = MockRequest("anthropic", number, "POST", "/messages", {}, {}, request, 10, "claude", wants_stream=True)
    script = answer_anthropic(asked, TOKENS)
    assert isinstance(script, Script)
    return [*script.opening, *script.tokens, *script.closing]


def sent(*events: bytes) -> MessagesTranscript:
    transcript = MessagesTranscript()
    for one in events:
        transcript.feed(one)
    return transcript


def spliced(transcript: MessagesTranscript, resume_mode: ResumeMode, *events: bytes) -> tuple[Splice, bytes]:
    splice = transcript.splice(resume_mode, MARKER)
    return splice, b"".join(splice.feed(one) for one in events)


def bodies(stream: bytes) -> list[Body]:
    return [json.loads(one.data) for one in events_in(stream)]


def kinds(stream: bytes) -> list[str]:
    return [body["type"] for body in bodies(stream)]


def read_by_sdk(stream: bytes) -> Message:
    """Returns the message as the official SDK assembles it."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    begun = 0
    open_: set[int] = set()
    for one in events_in(stream):
        body: Any = json.loads(one.data)
        assert body["type"] == one.name
        if body["type"] == "content_block_start":
            assert (body["index"], open_) == (begun, set()), "blocks come one after the other"
            begun += 1
            open_.add(body["index"])
        elif body["type"].startswith("content_block_"):
            assert body["index"] in open_
        if body["type"] == "content_block_stop":
            open_.remove(body["index"])
        if body["type"] != "ping":
            snapshot = accumulate_event(event=body, current_snapshot=snapshot, json_bufs=buffers)
    assert kinds(stream).count("message_start") == kinds(stream).count("message_stop") == 1
    assert not open_
    assert isinstance(snapshot, Message)
    return snapshot


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@pytest.mark.parametrize(
    ("resume_mode", "prefill"), [("prefill", "plain"), ("instruction", "none"), ("restart", "none")]
)
def test_message_cut_anywhere_has_its_whole_text_once(resume_mode: ResumeMode, prefill: Prefill) -> None:
    first = mocked(REQUEST)
    for cut in range(4, len(first) - 2):
        transcript = sent(*first[:cut])
        second = mocked(transcript.request(REQUEST, resume_mode, prefill), number=2)
        splice, rest = spliced(transcript, resume_mode, *second)
        message = read_by_sdk(b"".join(first[:cut]) + rest)
        assert text_of(message) == WHOLE, cut
        assert (message.id, message.stop_reason, len(message.content)) == ("msg_mock1", "end_turn", 1)
        assert splice.is_joined
        assert not splice.has_diverged


def test_second_stream_may_die_as_well() -> None:
    first = mocked(REQUEST)
    transcript = sent(*first[:6])
    stream = b"".join(first[:6])
    resume_modes: list[ResumeMode] = ["prefill", "instruction", "prefill"]
    for number, resume_mode in enumerate(resume_modes, 2):
        events = mocked(transcript.request(REQUEST, resume_mode, "plain"), number)
        _, told = spliced(transcript, resume_mode, *events[:6])
        stream += told
    _, told = spliced(transcript, "prefill", *mocked(transcript.request(REQUEST, "prefill", "plain"), 9))
    assert text_of(read_by_sdk(stream + told)) == WHOLE


def test_first_event_after_the_seam_carries_the_marker_and_no_other_does() -> None:
    transcript = sent(opening(), *text(0, "one "))
    _, told = spliced(transcript, "prefill", opening(2), event("ping"), *text(0, "two", " three"), stop(0), *closing())
    assert [body.get("llm_guard") for body in bodies(told)] == [MARKER, None, None, None, None]
    assert kinds(told)[0] == "content_block_delta"


def test_ping_passes_once_the_streams_are_joined() -> None:
    _, told = spliced(sent(opening(), *text(0, "one ")), "prefill", event("ping"), *text(0, "two"), event("ping"))
    assert kinds(told) == ["content_block_delta", "ping"]


@pytest.mark.parametrize(
    ("begun", "request_"),
    [
        (tool(0, "{"), {}),
        ([start(0, "server_tool_use", id="x", name="web_search", input={})], {}),
        ([start(0, "web_search_tool_result", tool_use_id="x", content=[])], {}),
        (thinking(0, "hmm", signature=""), {}),
        ([*thinking(0, "hmm", signature=""), stop(0), *text(1, "a")], {}),
        ([start(0, "redacted_thinking", data="x")], {}),
        ([*text(0, "a"), event("content_block_delta", index=0, delta={"type": "citations_delta", "citation": {}})], {}),
        ([*text(0, "a"), stop(0), *closing()], {}),
        ([*text(0, "a"), stop(0), closing()[0]], {}),
        (text(0, "a" * MAX_TEXT, "a"), {}),
        (text(0, "a"), {"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
        (text(0, "a"), {"output_format": {"type": "json_schema", "schema": {}}}),
        (text(0, "a"), {"tool_choice": {"type": "any"}}),
        (text(0, "a"), {"tool_choice": {"type": "tool", "name": "look"}}),
    ],
)
def test_message_that_is_no_plain_text_is_not_resumed(begun: list[bytes], request_: Body) -> None:
    assert sent(opening(), *begun).resume_modes({**REQUEST, **request_}, "plain") == ()


@pytest.mark.parametrize(
    ("begun", "more", "prefill", "resume_modes"),
    [
        (text(0, "a"), {}, "plain", ("prefill", "instruction")),
        (text(0, "a"), {"thinking": {"type": "disabled"}}, "plain", ("prefill", "instruction")),
        (text(0, "a"), {"tools": [], "tool_choice": {"type": "auto"}}, "plain", ("prefill", "instruction")),
        (text(0, "a"), {"output_config": {"effort": "low"}}, "plain", ("prefill", "instruction")),
        (text(0, "a"), {}, "none", ("instruction",)),
        (text(0, "a"), {"thinking": {"type": "enabled", "budget_tokens": 99}}, "plain", ("instruction",)),
        (text(0, "a"), {"thinking": {"type": "adaptive"}}, "plain", ("instruction",)),
        ([*thinking(0, "hmm"), *text(1, "a")], {}, "plain", ("instruction",)),
        (thinking(0, "hmm"), {}, "plain", ("instruction",)),
    ],
)
def test_text_is_resumed_by_prefill_where_that_is_allowed(
    begun: list[bytes], more: Body, prefill: Prefill, resume_modes: tuple[ResumeMode, ...]
) -> None:
    assert sent(opening(), *begun).resume_modes({**REQUEST, **more}, prefill) == resume_modes


def test_resume_request_ends_in_the_text_so_far() -> None:
    transcript = sent(opening(), *text(0, "one ", "two "))
    rest = transcript.request(REQUEST, "prefill", "plain")
    assert rest["messages"] == [*REQUEST["messages"], {"role": "assistant", "content": "one two"}]
    assert rest["max_tokens"] == 498
    asked = transcript.request(REQUEST, "instruction", "none")["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[1]["content"].rstrip() == "one two"
    assert "one two" in asked[2]["content"]
    assert transcript.request(REQUEST, "restart", "none") == REQUEST
    assert len(REQUEST["messages"]) == 1


@pytest.mark.parametrize(
    ("own", "longer"),
    [
        ("In short:", "In short: one"),
        ([{"type": "text", "text": "In short:"}], [{"type": "text", "text": "In short: one"}]),
        ([], [{"type": "text", "text": " one"}]),
    ],
)
def test_beginning_that_the_client_gave_itself_becomes_longer(own: object, longer: object) -> None:
    messages: list[Body] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": own}]
    rest = sent(opening(), *text(0, " one")).request({"messages": messages}, "prefill", "plain")
    assert rest == {"messages": [messages[0], {"role": "assistant", "content": longer}]}
    assert messages[1]["content"] == own


def test_thinking_is_sent_back_with_its_signature_before_the_text() -> None:
    hidden = [start(1, "redacted_thinking", data="secret"), stop(1)]
    transcript = sent(opening(), *thinking(0, "hm", "m"), *hidden, *text(2, "one"))
    request = {**REQUEST, "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1999}}
    rest = transcript.request(request, "instruction", "plain")
    assert rest["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "hmm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "text", "text": "one"},
    ]
    assert rest["max_tokens"] == 2000, "a budget must stay below it"


def test_thinking_without_text_is_repeated_and_shown_once() -> None:
    first = [opening(), *thinking(0, "hmm")]
    transcript = sent(*first)
    assert transcript.request(REQUEST, "instruction", "plain") == REQUEST
    second = [opening(2), *thinking(0, "well", signature="other"), *text(1, "one"), stop(1), *closing()]
    splice, told = spliced(transcript, "instruction", *second)
    message = read_by_sdk(b"".join(first) + told)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert text_of(message) == "one"
    assert message.content[0].to_dict()["signature"] == "sig"
    assert transcript.wasted_tokens == 1
    assert splice.is_joined


def test_text_whose_block_was_ended_continues_in_a_new_one() -> None:
    first = [opening(), *text(0, "one "), stop(0)]
    _, told = spliced(sent(*first), "prefill", opening(2), *text(0, "two"), stop(0), *closing())
    assert [block.to_dict()["text"] for block in read_by_sdk(b"".join(first) + told).content] == ["one ", "two"]


def test_end_without_further_text_ends_the_block_and_begins_none() -> None:
    for first in ([opening(), *text(0, "one")], [opening(), *text(0, "one"), stop(0)]):
        for second in ([opening(2), *closing()], [opening(2), *text(0), stop(0), *closing()]):
            splice, told = spliced(sent(*first), "prefill", *second)
            assert text_of(read_by_sdk(b"".join([*first, told]))) == "one"
            assert splice.is_joined


def test_tool_that_the_second_stream_uses_follows_the_text() -> None:
    first = [opening(), *text(0, "one ")]
    use = [*tool(2, '{"a"', ": 1}"), stop(2)]
    for before in ([*thinking(0, "hm"), *text(1, "two"), stop(1)], thinking(0, "hm")):
        second = [opening(2), *before, *use, *closing(reason="tool_use")]
        message = read_by_sdk(b"".join(first) + spliced(sent(*first), "prefill", *second)[1])
        assert [block.type for block in message.content] == ["text", "tool_use"]
        assert message.content[1].to_dict()["input"] == {"a": 1}
        assert message.stop_reason == "tool_use"


def test_response_of_whitespace_restarts() -> None:
    first = [opening(), *text(0, "\n\n")]
    transcript = sent(*first)
    assert transcript.resume_modes(REQUEST, "plain") == ("instruction",)
    assert transcript.request(REQUEST, "instruction", "plain") == REQUEST
    again = [opening(2), *text(0, "\n", "\none"), stop(0), *closing()]
    assert text_of(read_by_sdk(b"".join(first) + spliced(transcript, "instruction", *again)[1])) == "\n\none"


def test_restart_with_different_text_has_diverged() -> None:
    begun = "A first sentence of more than forty characters, and then"
    for more in ((" another", "."), ("",)):
        transcript = sent(opening(), *text(0, begun, " the second. "))
        again = [opening(2), *text(0, begun, *more), stop(0), *closing()]
        splice, told = spliced(transcript, "instruction", *again)
        assert (splice.has_diverged, splice.is_joined, told) == (True, False, b"")
        assert not transcript.has_ended


def test_citation_of_the_second_stream_belongs_to_the_resumed_text() -> None:
    cited = {"type": "char_location", "cited_text": "x", "document_index": 0, "start_char_index": 0}
    citation = event("content_block_delta", index=0, delta={"type": "citations_delta", "citation": cited})
    first = [opening(), *thinking(0, "hm"), *text(1, "one ")]
    second = [opening(2), *text(0, "two"), citation, stop(0), *closing()]
    transcript = sent(*first)
    block = read_by_sdk(b"".join(first) + spliced(transcript, "prefill", *second)[1]).content[1].to_dict()
    assert (block["text"], block["citations"]) == ("one two", [cited])


def test_usage_of_all_streams_is_summed() -> None:
    first = [opening(cache_read_input_tokens=4, cache_creation={"ephemeral_1h": 3}), *text(0, "one ", "two ")]
    second = [opening(2, input_tokens=12), *text(0, "three", " ", "four"), stop(0)]
    second.append(
        closing(2)[0].replace(b'"output_tokens": 2', b'"output_tokens": 2, "cache_creation": {"ephemeral_1h": 5}')
    )
    transcript = sent(*first)
    assert transcript.usage == Usage(10, 2)
    _, told = spliced(transcript, "prefill", *second, closing()[1])
    usage = read_by_sdk(b"".join(first) + told).usage
    # The provider's count is used, although three pieces arrived.
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (22, 4, 4)
    assert bodies(told)[-2]["usage"]["cache_creation"] == {"ephemeral_1h": 8}
    assert transcript.usage == Usage(22, 4)
    assert transcript.wasted_tokens == 0


def test_nothing_is_sent_after_the_end() -> None:
    for resume_mode, said in (("prefill", "two"), ("restart", "one two")):
        second = [opening(2), *text(0, said), stop(0), *closing(), *text(1, "three"), event("ping"), *closing()]
        _, told = spliced(sent(opening(), *text(0, "one ")), resume_mode, *second)  # type: ignore[arg-type]
        assert kinds(told) == ["content_block_delta", "content_block_stop", "message_delta", "message_stop"]


def test_intermediate_count_does_not_end_the_text() -> None:
    on_the_way = event("message_delta", delta={}, usage={"output_tokens": 3})
    assert spliced(sent(opening(), *text(0, "one ")), "prefill", on_the_way)[1] == b""
    first = [opening(), *text(0, "one "), on_the_way]
    second = [opening(2), *text(0, "two "), on_the_way, delta(0, "text_delta", "three"), stop(0), *closing(5)]
    for resume_mode, events in (("prefill", second), ("restart", [opening(2), *text(0, "one two "), *second[3:]])):
        transcript = sent(*first)
        message = read_by_sdk(b"".join(first) + spliced(transcript, resume_mode, *events)[1])  # type: ignore[arg-type]
        assert text_of(message) == "one two three"
        assert message.usage.output_tokens == 8


def test_restart_passes_new_content_and_does_not_repeat_sent_content() -> None:
    first = [opening(), *thinking(0, "hm", "m"), *text(1, "one "), stop(1), *tool(2, '{"a": ')]
    again = [opening(2), *thinking(0, "hmm", signature="other"), *text(1, "one", " "), stop(1)]
    again += [*tool(2, '{"a', '": 1', "}", number=2), stop(2), *text(3, "and"), stop(3), *closing(9)]
    transcript = sent(*first)
    assert transcript.can_restart(REQUEST)
    splice, told = spliced(transcript, "restart", *again)
    message = read_by_sdk(b"".join(first) + told)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "text"]
    assert message.content[0].to_dict()["signature"] == "sig"
    assert {"id": "toolu_1", "input": {"a": 1}}.items() <= message.content[2].to_dict().items()
    assert splice.is_joined
    assert transcript.wasted_tokens == 5


def test_unsent_signature_is_that_of_the_second_run() -> None:
    first = [opening(), *thinking(0, "hm", signature="")]
    _, told = spliced(sent(*first), "restart", opening(2), *thinking(0, "hmm", signature="new"), *closing())
    assert read_by_sdk(b"".join(first) + told).content[0].to_dict() | {"type": "thinking"} == {
        "type": "thinking", "thinking": "hmm", "signature": "new",
    }  # fmt: skip


ANOTHER = {
    "other text": [*text(0, "another "), stop(0)],
    "text that ends early": [*text(0, "on"), stop(0)],
    "text that goes on where it had ended": text(0, "one more"),
    "thinking before it": thinking(0, "hm"),
    "other tool": [*text(0, "one "), stop(0), *tool(1, '{"a": 1', name="leap")],
    "other arguments": [*text(0, "one "), stop(0), *tool(1, '{"b": 1')],
    "no tool": [*text(0, "one "), stop(0), *text(1, "x")],
    "end before the tool": [*text(0, "one "), stop(0), *closing()],
    "bare end": [event("message_stop")],
    "block that is not ended": [*text(0, "one "), *tool(1, '{"a": 1')],
    "blocks left out": text(9, "x"),
}


@pytest.mark.parametrize("another", ANOTHER.values(), ids=ANOTHER)
def test_restart_with_different_content_has_diverged(another: list[bytes]) -> None:
    transcript = sent(opening(), *text(0, "one "), stop(0), *tool(1, '{"a": '))
    splice, told = spliced(transcript, "restart", opening(2), *another)
    assert (splice.has_diverged, splice.is_joined, told) == (True, False, b"")
    assert splice.feed(b"".join([*text(9, "more"), *closing()])) == b""


@pytest.mark.parametrize("another", [[*text(0, "on"), stop(0)], [*text(0, "on"), *closing()], tool(0, "one")])
def test_restart_that_ends_too_early_has_diverged(another: list[bytes]) -> None:
    splice, told = spliced(sent(opening(), *text(0, "one")), "restart", opening(2), *another)
    assert (splice.has_diverged, told) == (True, b"")


def test_restart_with_more_text_in_an_ended_block_has_diverged() -> None:
    splice, told = spliced(sent(opening(), *text(0, "one"), stop(0)), "restart", opening(2), *text(0, "one more"))
    assert (splice.has_diverged, told) == (True, b"")


def test_signature_before_the_thinking_was_repeated_is_another_run() -> None:
    first = [opening(), *thinking(0, "hmm", signature="")]
    splice, told = spliced(sent(*first), "restart", opening(2), *thinking(0, "h")[:-1])
    assert (splice.has_diverged, told) == (True, b"")


def test_signature_that_was_sent_stays_though_its_block_was_not_ended() -> None:
    first = [opening(), *thinking(0, "hmm")[:-1]]
    _, told = spliced(sent(*first), "restart", opening(2), *thinking(0, "hmm", signature="new"), *closing())
    assert read_by_sdk(b"".join(first) + told).content[0].to_dict()["signature"] == "sig"


def test_text_after_a_tool_of_the_second_stream_is_a_block_of_its_own() -> None:
    first = [opening(), *text(0, "one ")]
    second = [opening(2), *tool(0, "{}"), stop(0), *text(1, "two"), stop(1), *closing()]
    message = read_by_sdk(b"".join(first) + spliced(sent(*first), "prefill", *second)[1])
    assert [block.type for block in message.content] == ["text", "tool_use", "text"]


def test_message_that_ends_without_text_ends_its_blocks() -> None:
    first = [opening(), *text(0, "one ")]
    second = [opening(2), *text(0, "two"), event("message_stop")]
    assert text_of(read_by_sdk(b"".join(first) + spliced(sent(*first), "prefill", *second)[1])) == "one two"


def test_server_tool_is_not_run_again() -> None:
    for kind in ("server_tool_use", "mcp_tool_use", "anything_new"):
        assert not sent(opening(), start(0, kind, name="x", input={})).can_restart(REQUEST)
    assert not sent(opening(), *text(0, "a"), stop(0), *closing()).can_restart(REQUEST)


ODD = [b"data: [DONE]", b"data: {", b"data: [1]", b"data: " + b"[" * 99_999, b"data: null", b": comment", b"x"]
CONFUSED: list[Body] = [
    {"type": []}, {"type": "a\nb"}, {"type": "message_delta", "usage": 3, "delta": []},
    {"type": "message_start", "message": {"usage": [1]}},
    {"type": "content_block_start", "index": {}, "content_block": 3}, {"type": "content_block_stop", "index": "0"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": {}, "text": 5}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": [], "text": 5}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}},
    {"type": "content_block_delta", "index": True, "delta": 3}, {"type": "new", "llm_guard": 3}, {},
]  # fmt: skip


@pytest.mark.parametrize("resume_mode", ["prefill", "instruction", "restart"])
def test_no_input_of_a_provider_raises(resume_mode: ResumeMode) -> None:
    odd = [*(line + b"\n\n" for line in ODD), *(event("x", **body) for body in CONFUSED)]
    odd += [b"data: " + json.dumps(body).encode() + b"\n\n" for body in CONFUSED]
    for first in ([], [opening(), *text(0, "one ")]):
        transcript = sent(*first, *odd)
        transcript.resume_modes({"messages": 3, "thinking": 3, "output_config": 3, "tool_choice": "x"}, "plain")
        transcript.request({"messages": 3, "max_tokens": "x"}, resume_mode, "plain")
        for one in odd:
            _, told = spliced(sent(*first), resume_mode, one, *text(0, "one two "), one, *closing(), one)
            assert all(json.loads(sse_event.data)["type"] == sse_event.name for sse_event in events_in(told))


def test_half_an_emoji_is_passed_on_unchanged() -> None:
    first = [opening(), *text(0, "one ")]
    halves = [start(0, "text", text=""), *(delta(0, "text_delta", half) for half in ("\ud83d", "\ude00"))]
    _, told = spliced(sent(*first), "prefill", opening(2), *halves)
    assert [body["delta"]["text"] for body in bodies(told)] == ["\ud83d", "\ude00"]
