from __future__ import annotations

import json
import tracemalloc
from random import Random
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from llm_guard.dialects.resume.chat import ChatTranscript
from llm_guard.dialects.resume.text_join import anchor, instruction_text
from llm_guard.dialects.resume.transcript import MAX_KEPT_BYTES, MAX_TEXT, Prefill, ResumeMode, Splice
from llm_guard.dialects.sse import Usage, events_in
from llm_guard.mock.content import say
from llm_guard.mock.exchange import MockRequest, Script
from llm_guard.mock.openai_answers import answer_openai

Body = dict[str, Any]
QUESTION = {"role": "user", "content": "tell me"}
REQUEST: Body = {"model": "gpt", "messages": [QUESTION], "stream_options": {"include_usage": True}}
LEGACY: Body = {"model": "gpt", "prompt": "Tell me: ", "stream_options": {"include_usage": True}}
TOOL: Body = {
    "type": "function",
    "function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}},
}
TOKENS = 15
WHOLE = "".join(say(TOKENS))
MARKER = {"recovered": "x"}
DONE = b"data: [DONE]\n\n"


def event(**body: Any) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def chunk(delta: Body, *, index: int = 0, finish: str | None = None, number: int = 1, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
    return event(id=f"chatcmpl-{number}", object="chat.completion.chunk", created=number, model="gpt", choices=[choice])


def said(*pieces: str, number: int = 1) -> list[bytes]:
    return [chunk({"content": piece}, number=number) for piece in pieces]


def called(arguments: str, *, at: int = 0, number: int = 1, name: str | None = None) -> bytes:
    head = {"id": f"call_{number}", "type": "function"} if name else {}
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return chunk({"tool_calls": [{"index": at, **head, "function": function}]}, number=number)


def counted(prompt: int, completion: int, **more: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}
    return event(id="chatcmpl-2", object="chat.completion.chunk", created=2, model="gpt", choices=[], usage=usage)


ROLE = chunk({"role": "assistant", "content": "", "refusal": None})
END = chunk({}, finish="stop", number=2)


def mocked(request: Body, number: int = 1, tokens: int = TOKENS) -> list[bytes]:
    """Returns the events that the mock provider sends."""
    path = "/chat/completions" if "messages" in request else "/completions"
    asked = MockRequest("openai", number, "POST", path, {}, {}, request, 10, "gpt", wants_stream=True)
    script = answer_openai(asked, tokens)
    assert isinstance(script, Script)
    return [*script.opening, *script.tokens, *script.closing]


def sent(*events: bytes) -> ChatTranscript:
    transcript = ChatTranscript()
    for one in events:
        transcript.feed(one)
    return transcript


def spliced(transcript: ChatTranscript, resume_mode: ResumeMode, *events: bytes) -> tuple[Splice, bytes]:
    splice = transcript.splice(resume_mode, MARKER)
    return splice, b"".join(splice.feed(one) for one in events)


def bodies(stream: bytes) -> list[Body]:
    return [json.loads(one.data) for one in events_in(stream) if one.data != b"[DONE]"]


def read_by_sdk(stream: bytes) -> Any:
    """Returns the completion as the official SDK assembles it."""
    state: Any = ChatCompletionStreamState()
    for body in bodies(stream):
        state.handle_chunk(ChatCompletionChunk.model_validate(body))
    assert stream.endswith(DONE)
    assert stream.count(DONE) == 1
    return state.get_final_completion()


def content_of(stream: bytes) -> str:
    deltas = [choice.get("delta") or choice for body in bodies(stream) for choice in body["choices"]]
    return "".join(delta.get("content") or delta.get("text") or "" for delta in deltas)


def resume_modes(transcript: ChatTranscript, prefill: Prefill = "plain", **request: Any) -> tuple[ResumeMode, ...]:
    return transcript.resume_modes({**REQUEST, **request}, prefill)


# whole streams


WAYS: list[tuple[ResumeMode, Prefill]] = [
    ("prefill", "plain"),
    ("prefill", "prefix"),
    ("prefill", "partial"),
    ("prefill", "continue_final_message"),
    ("instruction", "none"),
    ("restart", "none"),
]


@pytest.mark.parametrize(("resume_mode", "prefill"), WAYS)
def test_chat_cut_anywhere_has_its_whole_text_once(resume_mode: ResumeMode, prefill: Prefill) -> None:
    first = mocked(REQUEST)
    for cut in range(3, len(first) - 3):
        transcript = sent(*first[:cut])
        assert transcript.resume_modes(REQUEST, prefill)[0] == resume_mode or resume_mode == "restart"
        second = mocked(transcript.request(REQUEST, resume_mode, prefill), number=2)
        splice, rest = spliced(transcript, resume_mode, *second)
        completion = read_by_sdk(b"".join(first[:cut]) + rest)
        assert completion.choices[0].message.content == WHOLE, cut
        assert (completion.id, completion.choices[0].finish_reason) == ("chatcmpl-mock1", "stop")
        assert completion.usage.prompt_tokens == transcript.usage.input
        assert completion.usage.completion_tokens == transcript.usage.output
        assert (splice.is_joined, splice.has_diverged) == (True, False)


@pytest.mark.parametrize("resume_mode", ["prefill", "restart"])
def test_completion_cut_anywhere_has_its_whole_text_once(resume_mode: ResumeMode) -> None:
    first = mocked(LEGACY)
    for cut in range(1, len(first) - 3):
        transcript = sent(*first[:cut])
        assert transcript.resume_modes(LEGACY, "none") == ("prefill",)
        second = mocked(transcript.request(LEGACY, resume_mode, "none"), number=2)
        _, rest = spliced(transcript, resume_mode, *second)
        assert content_of(b"".join(first[:cut]) + rest) == WHOLE, cut
        assert {body["id"] for body in bodies(rest)} == {"cmpl-mock1"}


@pytest.mark.parametrize("resume_mode", ["prefill", "instruction", "restart"])
def test_empty_finish_reason_is_none(resume_mode: ResumeMode) -> None:
    """Some servers behind Model Studio send one with each chunk."""
    first = [chunk({"content": piece}, finish="") for piece in ("Once upon ", "a time ")]
    transcript = sent(*first)
    again = {"prefill": "", "instruction": "Once upon a time", "restart": "Once upon a time "}[resume_mode]
    _, told = spliced(
        transcript, resume_mode, chunk({"content": again + " there was"}, finish=""), chunk({}, finish="stop")
    )
    assert content_of(b"".join(first) + told).split() == ["Once", "upon", "a", "time", "there", "was"]


def test_third_stream_resumes_where_the_second_died() -> None:
    first = mocked(REQUEST)
    transcript = sent(*first[:5])
    second = mocked(transcript.request(REQUEST, "instruction", "none"), number=2)
    _, some = spliced(transcript, "instruction", *second[:7])
    third = mocked(transcript.request(REQUEST, "prefill", "plain"), number=3)
    _, rest = spliced(transcript, "prefill", *third)
    stream = b"".join(first[:5]) + some + rest
    assert read_by_sdk(stream).choices[0].message.content == WHOLE
    assert sum("llm_guard" in body for body in bodies(stream)) == 2


def test_restarted_tool_call_is_compared_and_its_id_stays() -> None:
    request = {**REQUEST, "tools": [TOOL], "tool_choice": "required"}
    first, second = mocked(request), mocked(request, number=2)
    whole = read_by_sdk(b"".join(first)).choices[0].message.tool_calls[0].function
    for cut in range(1, len(first) - 3):
        transcript = sent(*first[:cut])
        assert transcript.resume_modes(request, "plain") == ()
        assert transcript.can_restart(request)
        _, rest = spliced(transcript, "restart", *second)
        (call,) = read_by_sdk(b"".join(first[:cut]) + rest).choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == (whole.name, whole.arguments), cut


def test_several_choices_run_again_side_by_side() -> None:
    request = {**REQUEST, "n": 2}
    first, second = mocked(request), mocked(request, number=2)
    for cut in range(2, len(first) - 3):
        transcript = sent(*first[:cut])
        assert transcript.resume_modes(request, "plain") == ()
        splice, rest = spliced(transcript, "restart", *second)
        assert not splice.has_diverged
        completion = read_by_sdk(b"".join(first[:cut]) + rest)
        assert [choice.message.content for choice in completion.choices] == [WHOLE, WHOLE], cut


# can the stream be resumed?


def test_best_resume_mode_is_first() -> None:
    transcript = sent(ROLE, *said("one two", " three"))
    assert resume_modes(transcript) == ("prefill", "instruction")
    assert resume_modes(transcript, "none") == ("instruction",)
    assert transcript.can_restart(REQUEST)


@pytest.mark.parametrize(
    "wish",
    [
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"guided_json": {"type": "object"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}},
        {"function_call": {"name": "look"}},
        {"modalities": ["text", "audio"]},
    ],
)
def test_structured_output_is_not_resumed(wish: Body) -> None:
    assert resume_modes(sent(ROLE, *said("one two three")), **wish) == ()


@pytest.mark.parametrize(
    "wish",
    [
        {"n": 1},
        {"response_format": {"type": "text"}},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
        {"modalities": ["text"]},
        {"logprobs": True},
    ],
)
def test_prose_is_resumed(wish: Body) -> None:
    assert resume_modes(sent(ROLE, *said("one two three")), **wish) == ("prefill", "instruction")


@pytest.mark.parametrize(
    ("begun", "can_restart"),
    [
        (called("{", name="look"), True),
        (chunk({"function_call": {"name": "look", "arguments": ""}}), True),
        (chunk({"refusal": "I cannot"}), True),
        (chunk({"content": "other"}, index=1), True),
        (chunk({"audio": {"data": "xx"}}), False),
        (chunk({"content": [{"type": "thinking"}]}), False),
        (chunk({"tool_calls": [{"function": {"name": "look"}}]}), False),
        (chunk({"tool_calls": [{"index": 0, "custom": {"name": "look"}}]}), False),
        (chunk({}, finish="length"), False),
        (chunk({"content": "x" * (MAX_TEXT + 1)}), False),
    ],
)
def test_call_with_more_than_text_restarts_or_fails(begun: bytes, can_restart: bool) -> None:
    transcript = sent(ROLE, *said("one two three"), begun)
    assert resume_modes(transcript) == ()
    assert transcript.can_restart(REQUEST) is can_restart


def test_nothing_is_known_of_a_response_that_has_not_begun() -> None:
    transcript = sent(event(id="", choices=[], prompt_filter_results=[]), b": ping\n\n", b"data: oops\n\n")
    assert resume_modes(transcript) == ()
    assert not transcript.can_restart(REQUEST)


@pytest.mark.parametrize("delta", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"reasoning_details": [{}]}])
def test_after_reasoning_nothing_is_prefilled(delta: Body) -> None:
    transcript = sent(ROLE, chunk(delta), *said("one two three"))
    assert resume_modes(transcript) == ("instruction",)
    assert transcript.can_restart(REQUEST) is ("reasoning_details" not in delta)


def test_beginning_too_short_to_be_recognized_is_no_prefix() -> None:
    transcript = sent(ROLE, *said("One"))
    assert resume_modes(transcript, "prefix") == ("instruction",)
    assert resume_modes(transcript, "plain") == ("prefill", "instruction")


@pytest.mark.parametrize("wish", [{"suffix": "end"}, {"echo": True}, {"best_of": 2}, {"n": 2}, {"prompt": [[1, 2]]}])
def test_completion_that_is_no_plain_text_is_not_resumed(wish: Body) -> None:
    transcript = sent(event(id="cmpl-1", choices=[{"index": 0, "text": "one two", "finish_reason": None}]))
    assert transcript.resume_modes(LEGACY, "none") == ("prefill",)
    assert transcript.resume_modes({**LEGACY, **wish}, "none") == ()


# the resume request


@pytest.mark.parametrize(
    ("prefill", "message", "more"),
    [
        ("plain", {}, {}),
        ("prefix", {"prefix": True}, {}),
        ("partial", {"partial": True}, {}),
        ("continue_final_message", {}, {"continue_final_message": True, "add_generation_prompt": False}),
    ],
)
def test_text_is_sent_back_in_the_format_of_the_deployment(prefill: Prefill, message: Body, more: Body) -> None:
    request = {**REQUEST, "seed": 3}
    rest = sent(ROLE, *said("one two", " three \n")).request(request, "prefill", prefill)
    answer = {"role": "assistant", "content": "one two three", **message}
    assert rest == {**REQUEST, "seed": 3, **more, "messages": [QUESTION, answer]}
    assert request == {**REQUEST, "seed": 3}
    assert REQUEST["messages"] == [QUESTION]


def test_instruction_is_the_users_next_message() -> None:
    rest = sent(ROLE, *said("one two", " three \n")).request(REQUEST, "instruction", "plain")
    order = {"role": "user", "content": instruction_text(anchor("one two three"))}
    assert rest["messages"] == [QUESTION, {"role": "assistant", "content": "one two three"}, order]


@pytest.mark.parametrize("begun", ["Sure: ", [{"type": "text", "text": "Sure: "}]])
def test_beginning_of_the_clients_own_becomes_longer(begun: Any) -> None:
    own = {"role": "assistant", "content": begun, "name": "me", "partial": True}
    request = {**REQUEST, "messages": [QUESTION, own], "continue_final_message": True}
    transcript = sent(ROLE, *said("one two"))
    (_, answer) = transcript.request(request, "prefill", "partial")["messages"]
    assert answer == {"role": "assistant", "content": "Sure: one two", "name": "me", "partial": True}
    rest = transcript.request(request, "instruction", "none")
    assert rest["messages"][1] == {"role": "assistant", "content": "Sure: one two", "name": "me"}
    assert "continue_final_message" not in rest


def test_prefill_of_the_client_that_was_repeated_is_sent_back_once() -> None:
    request = {**REQUEST, "messages": [QUESTION, {"role": "assistant", "content": "Well then, ", "prefix": True}]}
    transcript = sent(ROLE, *said("Well then,", " one two"))
    (_, answer) = transcript.request(request, "prefill", "prefix")["messages"]
    assert answer["content"] == "Well then, one two"
    _, rest = spliced(transcript, "prefill", *said("Well then, one two", " three"))
    assert content_of(rest) == " three"


def test_repeated_beginning_includes_the_clients_own() -> None:
    request = {**REQUEST, "messages": [QUESTION, {"role": "assistant", "content": "Well then, "}]}
    transcript = sent(ROLE, *said("one two"))
    transcript.request(request, "prefill", "prefix")
    _, rest = spliced(transcript, "prefill", *said("Well then, one two", " three"))
    assert content_of(rest) == " three"


def test_limits_are_reduced_by_the_sent_tokens() -> None:
    transcript = sent(ROLE, chunk({"reasoning_content": "hm"}), *said("one", " two", " three"))
    request = {**REQUEST, "max_tokens": 10, "max_completion_tokens": 3}
    for resume_mode in ("prefill", "instruction"):
        rest = transcript.request(request, resume_mode, "plain")
        assert (rest["max_tokens"], rest["max_completion_tokens"]) == (7, 1)
    assert transcript.request(request, "restart", "plain") == request


@pytest.mark.parametrize("before", [chunk({"reasoning_content": "hm"}), *said("\n\n")])
def test_response_without_text_is_requested_unchanged(before: bytes) -> None:
    transcript = sent(ROLE, before)
    assert resume_modes(transcript) == ("instruction",)
    assert transcript.request(REQUEST, "instruction", "plain") == REQUEST
    _, rest = spliced(transcript, "instruction", chunk({"reasoning_content": "again"}), *said("\n\none"), END)
    assert content_of(b"".join([before]) + rest).lstrip() == "one"
    assert b"again" not in rest


# what the client receives


def test_client_sees_one_stream() -> None:
    transcript = sent(ROLE, *said("one two"))
    role = chunk({"role": "assistant", "content": ""}, number=2)
    thought = chunk({"reasoning_content": "so"}, number=2)
    _, rest = spliced(transcript, "prefill", b": ping\n\n", role, thought, *said(" three", number=2), END, DONE)
    said_, end = bodies(rest)
    assert said_["llm_guard"] == MARKER
    assert "llm_guard" not in end
    assert (said_["id"], said_["created"], end["id"]) == ("chatcmpl-1", 1, "chatcmpl-1")
    assert said_["choices"][0]["delta"] == {"content": " three"}
    assert end["choices"][0]["finish_reason"] == "stop"
    assert rest.endswith(DONE)


def test_azure_client_sees_the_id_that_came_second() -> None:
    opening = event(id="", choices=[], model="", prompt_filter_results=[])
    _, rest = spliced(sent(opening, ROLE, *said("one two")), "prefill", *said(" three", number=2))
    assert [body["id"] for body in bodies(rest)] == ["chatcmpl-1"]


def test_held_text_precedes_the_end() -> None:
    transcript = sent(ROLE, *said("one two three"))
    splice, rest = spliced(transcript, "prefill", *said("one two"))
    assert (rest, splice.is_joined) == (b"", False)
    end = splice.feed(END)
    assert bodies(end)[0]["choices"][0]["delta"] == {"content": "one two"}
    assert splice.is_joined


def test_reasoning_of_the_new_stream_is_no_end_of_its_text() -> None:
    transcript = sent(ROLE, *said("one two three"))
    thought = chunk({"reasoning_content": "so", "reasoning_details": [{}]}, number=2)
    _, rest = spliced(transcript, "prefill", thought, *said("one two"), thought, *said(" three", " four"))
    assert content_of(rest) == " four"
    assert b"reasoning" not in rest


def test_nothing_follows_the_end() -> None:
    for resume_mode in ("prefill", "restart"):
        second = [*said("one two three"), END, *said(" more"), counted(9, 3), DONE]
        splice, rest = spliced(sent(ROLE, *said("one two ")), resume_mode, *second, DONE, *said(" more"))
        assert b"more" not in rest
        assert rest.count(DONE) == 1
        assert not splice.has_diverged


def test_tool_call_of_the_new_stream_follows_the_text() -> None:
    transcript = sent(ROLE, *said("one two three"))
    call = called("{}", name="look", number=2)
    _, rest = spliced(transcript, "instruction", *said("one two three four", number=2), call, END, DONE)
    deltas = [body["choices"][0]["delta"] for body in bodies(rest)]
    assert [sorted(delta) for delta in deltas] == [["content"], ["tool_calls"], []]
    assert resume_modes(transcript) == ()


def test_tool_call_of_a_new_stream_that_repeats_nothing_has_diverged() -> None:
    transcript = sent(ROLE, *said("one two three"))
    splice, rest = spliced(transcript, "instruction", called("{}", name="look", number=2), END, DONE)
    assert (splice.has_diverged, rest) == (True, b"")


def test_done_without_a_finish_is_hidden_from_the_client() -> None:
    for resume_mode in ("prefill", "restart"):
        _, rest = spliced(sent(ROLE, *said("one two")), resume_mode, *said("one two three"), DONE)
        assert DONE not in rest


def test_logprobs_of_a_text_that_was_cut_are_dropped() -> None:
    transcript = sent(ROLE, *said("one two"))
    cut = chunk({"content": "one two three"}, logprobs={"content": [1]})
    whole = chunk({"content": " four"}, logprobs={"content": [2]})
    _, rest = spliced(transcript, "restart", cut, whole)
    assert [body["choices"][0]["logprobs"] for body in bodies(rest)] == [None, {"content": [2]}]


@pytest.mark.parametrize("resume_mode", ["prefill", "instruction", "restart"])
@pytest.mark.parametrize(
    "junk",
    [
        b"data: oops\n\n", b"data: [1]\n\n", b'data: "x"\n\n', b"data: {}\n\n", b"event: x\n\n", b"data: \xff\n\n",
        b'data: {"choices":1}\n\n', b'data: {"choices":[1,{"delta":2},{"index":"a"}]}\n\n',
        b"data: " + b"[" * 9999 + b"\n\n",
        b'data: {"choices":[{"delta":{"tool_calls":[{}]}}]}\n\n',
    ],
)  # fmt: skip
def test_events_that_are_no_chunks_are_dropped(resume_mode: ResumeMode, junk: bytes) -> None:
    splice, rest = spliced(sent(ROLE, *said("one two three")), resume_mode, junk, *said("one two three four"), junk)
    assert content_of(rest) in (" four", "one two three four")
    assert not splice.has_diverged
    assert len(bodies(rest)) <= 3


def test_half_an_emoji_does_no_harm() -> None:
    transcript = sent(ROLE, *said("one two three \ud83d"))
    _, rest = spliced(transcript, "prefill", *said("\ude00 four", " \ud83d"))
    assert content_of(rest) == "\ude00 four \ud83d"
    splice, _ = spliced(transcript, "restart", *said("one two three \ud83d\ude00 four"))
    assert splice.has_diverged


# restart


def test_every_channel_is_compared_before_anything_passes() -> None:
    transcript = sent(ROLE, chunk({"reasoning_content": "hm"}), *said("one"))
    thought = chunk({"reasoning_content": "hm"}, number=2)
    splice, rest = spliced(transcript, "restart", ROLE, thought, *said("one", " two", number=2), END, DONE)
    assert content_of(rest) == " two"
    assert bodies(rest)[0]["id"] == "chatcmpl-1"
    assert b"hm" not in rest
    assert not splice.has_diverged


@pytest.mark.parametrize(
    "second",
    [
        said("two"),
        [*said("on"), END],
        [chunk({"reasoning_content": "hmm"}), *said("one")],
        [called("{}", name="look"), *said("one")],
        [END],
        [chunk({"content": "one"}, finish="stop")],
    ],
)
def test_diverged_run_sends_the_client_nothing(second: list[bytes]) -> None:
    transcript = sent(ROLE, chunk({"reasoning_content": "hm"}), *said("one"))
    splice, rest = spliced(transcript, "restart", *second, END, DONE)
    assert (rest, splice.has_diverged, splice.is_joined) == (b"", True, False)


def test_call_of_another_tool_diverges() -> None:
    transcript = sent(ROLE, called('{"a', name="look"))
    splice, rest = spliced(transcript, "restart", called('{"a": 1}', name="listen"))
    assert (rest, splice.has_diverged) == (b"", True)


def test_second_call_is_new_and_the_name_of_the_first_stays() -> None:
    transcript = sent(ROLE, called('{"a', name="look"))
    calls = [called('{"a"', name="look", number=2), called(":1}", number=2)]
    _, rest = spliced(transcript, "restart", *calls, called("{}", at=1, name="listen", number=2), END, DONE)
    parts = [call for body in bodies(rest) for call in body["choices"][0]["delta"].get("tool_calls", ())]
    assert parts[:2] == [{"index": 0, "function": {"arguments": text}} for text in ('"', ":1}")]
    assert (parts[2]["id"], parts[2]["function"]) == ("call_2", {"name": "listen", "arguments": "{}"})


def test_choice_that_is_ahead_waits_for_the_others() -> None:
    transcript = sent(ROLE, *said("one"), chunk({"content": "uno"}, index=1))
    splice, rest = spliced(transcript, "restart", *said("one two", number=2))
    assert (rest, splice.is_joined) == (b"", False)
    passed = splice.feed(chunk({"content": "uno dos"}, index=1))
    assert content_of(passed) == " two dos"


def test_choice_that_has_ended_ends_once() -> None:
    transcript = sent(ROLE, *said("one"), chunk({}, finish="stop"), chunk({"content": "u"}, index=1))
    assert transcript.can_restart(REQUEST)
    again = [*said("one"), chunk({}, finish="stop"), chunk({"content": "uno"}, index=1)]
    _, rest = spliced(transcript, "restart", *again, chunk({}, index=1, finish="stop"), DONE)
    assert [body["choices"][0]["index"] for body in bodies(rest)] == [1, 1]
    assert rest.endswith(DONE)


def test_choice_that_continues_after_its_end_diverges() -> None:
    transcript = sent(ROLE, *said("one"), chunk({}, finish="stop"), chunk({"content": "u"}, index=1))
    splice, rest = spliced(transcript, "restart", *said("one", " two"))
    assert (rest, splice.has_diverged) == (b"", True)


def test_choice_that_runs_ahead_for_ever_diverges() -> None:
    transcript = sent(ROLE, *said("one"), chunk({"content": "uno"}, index=1))
    splice, rest = spliced(transcript, "restart", *said("one" + "x" * MAX_TEXT))
    assert (rest, splice.has_diverged) == (b"", False)
    assert splice.feed(*said("x" * (MAX_KEPT_BYTES - MAX_TEXT))) == b""
    assert splice.has_diverged


def test_empty_chunks_are_not_held_for_ever() -> None:
    splice, _ = spliced(sent(ROLE, *said("one")), "restart", chunk({"unknown": "x"}))
    assert not splice.has_diverged
    assert splice.feed(chunk({"unknown": "x" * MAX_KEPT_BYTES})) == b""
    assert splice.has_diverged


# usage and cost


def test_usage_is_the_sum_of_all_streams() -> None:
    transcript = sent(ROLE, *said("one ", "two"))
    rest = [*said(" three", " four", number=2), END]
    _, passed = spliced(transcript, "prefill", *rest, counted(12, 3, prompt_tokens_details={"cached_tokens": 4}), DONE)
    usage = bodies(passed)[-1]["usage"]
    # The first stream has a prompt of ten and two pieces, which are part of the second stream's prompt.
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (22, 5, 27)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert transcript.usage == Usage(22, 5)
    assert transcript.wasted_tokens == 0


def test_intermediate_usage_is_summed_too() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    first = event(id="a", choices=[{"index": 0, "delta": {"content": "one"}}], usage=usage)
    second = event(id="b", choices=[{"index": 0, "delta": {"content": " two"}}], usage={**usage, "prompt_tokens": 11})
    _, rest = spliced(sent(first, *said(" and")), "prefill", second)
    assert bodies(rest)[0]["usage"] == {"prompt_tokens": 21, "completion_tokens": 3, "total_tokens": 24}


def test_last_finish_reason_of_the_provider_counts() -> None:
    _, rest = spliced(sent(ROLE, *said("one")), "prefill", *said(" ", "two", "three"), END, counted(11, 1))
    assert bodies(rest)[-1]["usage"]["completion_tokens"] == 2


def test_usage_of_groq_is_found_and_rewritten() -> None:
    transcript = sent(ROLE, *said("one"))
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 11, "completion_tokens": 4, "total_time": 0.5}
    last = event(id="b", choices=[end], x_groq={"id": "req", "usage": usage})
    _, rest = spliced(transcript, "prefill", *said(" two"), last)
    x_groq = bodies(rest)[-1]["x_groq"]
    assert x_groq == {"id": "req", "usage": {"prompt_tokens": 21, "completion_tokens": 5, "total_time": 0.5}}


def test_repeated_tokens_are_wasted() -> None:
    transcript = sent(ROLE, *said("one", " two"))
    spliced(transcript, "restart", *said("one", " two", " three"), END, counted(10, 3), DONE)
    assert transcript.usage == Usage(20, 5)
    assert transcript.wasted_tokens == 2


def test_tokens_held_when_a_stream_died_are_wasted() -> None:
    transcript = sent(ROLE, *said("one two three", " four"))
    spliced(transcript, "instruction", *said("one two", " three"))
    assert transcript.wasted_tokens == 2
    assert transcript.usage == Usage(None, 4)
    assert transcript.text == "one two three four"


def test_long_stream_is_recorded_in_order() -> None:
    words = [f"word{at} " for at in range(2000)]
    transcript = sent(ROLE, *said(*words))
    assert transcript.request(REQUEST, "prefill", "plain")["messages"][-1]["content"] == "".join(words).rstrip()
    assert transcript.usage == Usage(None, 2000)


def test_stream_that_is_too_long_to_be_recorded_is_given_up() -> None:
    transcript = sent(ROLE, *said("one two three"))
    noise = Random(1)
    size = 2 * MAX_KEPT_BYTES // 100
    for _ in range(40):
        transcript.feed(chunk({}, obfuscation=noise.randbytes(size // 2).hex()))
    assert resume_modes(transcript) == ("prefill", "instruction")
    transcript = sent(ROLE, *said("one two three"))
    for _ in range(150):
        transcript.feed(chunk({}, obfuscation=noise.randbytes(size // 2).hex()))
    assert resume_modes(transcript) == ()
    assert not transcript.can_restart(REQUEST)


def test_stream_that_is_given_up_takes_no_more_memory_and_is_not_resumed_from_its_middle() -> None:
    transcript = sent(ROLE, *said("one two three"))
    noise = Random(1)
    tracemalloc.start()
    try:
        for _ in range(30):
            transcript.feed(chunk({}, obfuscation=noise.randbytes(MAX_KEPT_BYTES // 10).hex()))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < MAX_KEPT_BYTES
    for piece in said(" four five six"):
        transcript.feed(piece)
    assert resume_modes(transcript) == ()
    assert not transcript.can_restart(REQUEST)


def test_text_that_is_too_long_to_be_resumed_is_not_recorded() -> None:
    transcript = sent(ROLE, *said("one"))
    spliced(transcript, "prefill", *said("x" * MAX_TEXT))
    spliced(transcript, "prefill", *said("x" * 10, "y" * 10))
    assert transcript.text == "one"
    assert resume_modes(transcript) == ()
