"""Conversations go there and back: each turn is served by another provider, and none refuses the history."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from llm_guard.dialects.translation.endpoints import CHAT, MESSAGES
from tests.effort import each_seed
from tests.fakes.strict_providers import (
    refusals_of_anthropic,
    refusals_of_openai,
    refusals_of_responses,
    signature_of,
)
from tests.unit.dialects.translation.conversions import (
    CHAT_TOOL,
    MESSAGES_TOOL,
    RESPONSES_TOOL,
    body_of,
    from_chat,
    from_messages,
    from_responses,
    whole,
)

TURNS = 6
WORDS = ["rain", "Grüße", " two\nlines ", "x" * 50]


def anthropic_answer(random: Random, number: int, *, thinks: bool) -> dict[str, Any]:
    """Returns a message of the strict Anthropic, with signed thinking."""
    content: list[dict[str, Any]] = []
    if thinks:
        thought = random.choice(WORDS)
        content.append({"type": "thinking", "thinking": thought, "signature": signature_of(thought)})
    if random.random() < 0.6:
        content.append({"type": "text", "text": random.choice(WORDS)})
    calls = random.randrange(3)
    content += [
        {"type": "tool_use", "id": f"toolu_{number}_{index}", "name": "weather", "input": {"city": "Oslo"}}
        for index in range(calls)
    ]
    if not calls and (not content or content[-1]["type"] != "text"):
        content.append({"type": "text", "text": random.choice(WORDS)})
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude", "stop_sequence": None}
    stop = "tool_use" if calls else "end_turn"
    return {**head, "content": content, "stop_reason": stop, "usage": {"input_tokens": 1, "output_tokens": 1}}


def openai_answer(random: Random, number: int) -> dict[str, Any]:
    """Returns a completion of a compatible server that begins with the same ids in each response."""
    calls = [
        {
            "id": random.choice([f"call_{index}", f"functions.weather:{index}", "z" * 60 + str(index)]),
            "type": "function",
            "function": {"name": "weather", "arguments": random.choice(["", '{"city": "Oslo"}'])},
        }
        for index in range(random.randrange(3))
    ]
    message: dict[str, Any] = {"role": "assistant", "content": None if calls else random.choice(WORDS)}
    message |= {"tool_calls": calls} if calls else {}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": f"chatcmpl_{number}", "object": "chat.completion", "created": 1, "model": "gpt"}
    return {**head, "choices": [choice], "usage": usage}


PATCH = {"type": "custom", "name": "apply_patch"}


def responses_answer(random: Random, number: int) -> list[dict[str, Any]]:
    """Returns the output of the strict OpenAI, with encrypted reasoning."""
    own, output = f"rs_native_{number}", list[dict[str, Any]]()
    if random.random() < 0.6:
        output.append({"type": "reasoning", "id": own, "summary": [], "encrypted_content": signature_of(own)})
    calls = random.randrange(3)
    if not calls or random.random() < 0.5:
        text = {"type": "output_text", "text": random.choice(WORDS), "annotations": []}
        message = {"type": "message", "id": f"msg_native_{number}", "role": "assistant", "status": "completed"}
        output.append({**message, "content": [text]})
    for index in range(calls):
        call = {"call_id": f"call_{number}_{index}", "status": "completed"}
        if random.random() < 0.3:
            call |= {"type": "custom_tool_call", "id": f"ctc_{number}_{index}", "name": "apply_patch", "input": "*** x"}
            call.pop("status")
        else:
            call |= {"type": "function_call", "id": f"fc_{number}_{index}", "name": "weather", "arguments": "{}"}
        output.append(call)
    return output


@pytest.mark.parametrize("stand_in", ["messages", "chat"])
@each_seed(50, least=25)
def test_responses_go_on_whoever_answers(seed: int, stand_in: str) -> None:
    random = Random(seed)
    history: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": "hi"}]
    for number in range(TURNS):
        settings: dict[str, Any] = {"input": history, "tools": [RESPONSES_TOOL, PATCH], "store": False}
        settings["reasoning"] = {"effort": "medium"}
        assert refusals_of_responses({"model": "gpt-5.5", **settings}) == []
        if number % 2 == seed % 2:
            output = responses_answer(random, number)
        elif stand_in == "messages":
            request = from_responses(settings, MESSAGES, model="claude-sonnet-4-5")
            assert refusals_of_anthropic(body_of(request)) == []
            thinks = "thinking" in body_of(request)
            output = whole(request, _patching(random, anthropic_answer(random, number, thinks=thinks)))["output"]
        else:
            request = from_responses(settings, CHAT, model="gpt-4o")
            assert refusals_of_openai(body_of(request)) == []
            output = whole(request, {**openai_answer(random, number), "id": "always-the-same"})["output"]
        history += output
        calls = [item for item in output if item["type"].endswith("_call")]
        assert all(json.loads(call.get("arguments", "{}")) is not None for call in calls)
        history += [{"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "sun"} for call in calls]
        if not calls:
            history.append({"type": "message", "role": "user", "content": "and?"})


def _patching(random: Random, answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer, with some calls of the custom tool instead."""
    for block in answer["content"]:
        if block["type"] == "tool_use" and random.random() < 0.3:
            block |= {"name": "apply_patch", "input": {"input": "*** x"}}
    return answer


@each_seed(50, least=25)
def test_chat_goes_on_whoever_answers(seed: int) -> None:
    random = Random(seed)
    history: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    for number in range(TURNS):
        settings = {"messages": history, "tools": [CHAT_TOOL], "reasoning_effort": "medium"}
        if number % 2 == seed % 2:
            assert refusals_of_openai({"model": "gpt-4o", **settings}) == []
            answer = openai_answer(random, number)
            for index, call in enumerate(answer["choices"][0]["message"].get("tool_calls", [])):
                call["id"] = f"call_{number}_{index}"  # the client's own provider is OpenAI itself
        else:
            request = from_chat(settings, model="claude-sonnet-4-5")
            assert refusals_of_anthropic(body_of(request)) == []
            answer = whole(request, anthropic_answer(random, number, thinks="thinking" in body_of(request)))
        message = {key: value for key, value in answer["choices"][0]["message"].items() if key != "refusal"}
        history.append(message)
        calls = message.get("tool_calls", [])
        assert all(isinstance(json.loads(call["function"]["arguments"] or "{}"), dict) for call in calls)
        history += [{"role": "tool", "tool_call_id": call["id"], "content": "sun"} for call in calls]
        if not calls:
            history.append({"role": "user", "content": "and?"})


@each_seed(50, least=25)
def test_messages_go_on_whoever_answers(seed: int) -> None:
    random = Random(seed)
    history: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    thinking = {"type": "enabled", "budget_tokens": 2000}
    for number in range(TURNS):
        settings = {"messages": history, "tools": [MESSAGES_TOOL], "thinking": thinking, "max_tokens": 9000}
        if number % 2 == seed % 2:
            assert refusals_of_anthropic({"model": "claude-sonnet-4-5", **settings}) == []
            answer = anthropic_answer(random, number, thinks=True)
        else:
            request = from_messages(settings, model="gpt-5.5")
            assert refusals_of_openai(body_of(request)) == []
            answer = whole(request, openai_answer(random, number))
        history.append({"role": "assistant", "content": answer["content"]})
        uses = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "sun"} for use in uses]
        history.append({"role": "user", "content": results or "and?"})
