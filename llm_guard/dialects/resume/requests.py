"""Requests of Messages and Responses for the rest of a response.

Decides which requests want a response of a certain form, and places the text so far in a request. What is placed there
is decided in `dialects.resume.messages` and `dialects.resume.responses`; the wording is in `dialects.resume.text_join`.
"""

from __future__ import annotations

from typing import Any

from llm_guard.dialects.resume.base import Body, count_of, mapping, text_in

_LEAST_OUTPUT_TOKENS = 16
"""OpenAI refuses a smaller `max_output_tokens` (400, integer_below_min_value)."""


def is_message_shaped(request: Body) -> bool:
    """True if a Messages request wants something that only a complete response is: structured output or a tool call."""
    wanted = mapping(request.get("output_config")).get("format") or request.get("output_format")
    return bool(wanted) or mapping(request.get("tool_choice")).get("type") in ("any", "tool")


def thinks(request: Body) -> bool:
    """True if a Messages request wants thinking."""
    return text_in(mapping(request.get("thinking")), "type") not in ("", "disabled")


def rest_of_message(request: Body, blocks: list[Body], instruction: str | None, pieces: int) -> Body:
    """The Messages request with the response so far, which ends in a text block and has cost `pieces` tokens of text.

    The API requires `max_tokens` above the budget for thinking, which happens again and does not reach the client."""
    messages = request.get("messages")
    messages = _with_answer(messages if isinstance(messages, list) else [], blocks)
    if instruction is not None:
        messages.append({"role": "user", "content": instruction})
    budget = count_of(mapping(request.get("thinking")).get("budget_tokens"))
    return _lessened({**request, "messages": messages}, "max_tokens", pieces, budget + 1)


def is_response_shaped(request: Body) -> bool:
    """True if a Responses request wants something that only a complete response is, or leaves traces at the provider: a
    background run continues without the gateway, and a conversation keeps its input."""
    wanted = mapping(mapping(request.get("text")).get("format")).get("type", "text")
    choice = request.get("tool_choice")
    is_forced = choice == "required" or (isinstance(choice, dict) and choice.get("mode") != "auto")
    return wanted != "text" or is_forced or bool(request.get("background")) or bool(request.get("conversation"))


def rest_of_response(request: Body, text: str, instruction: str, pieces: int) -> Body:
    """The Responses request with the response so far, which has cost `pieces` tokens."""
    own = request.get("input")
    asked: list[Any] = own if isinstance(own, list) else [_item("user", "input_text", own)] if own else []
    answer = _item("assistant", "output_text", text)
    going_on = {**request, "input": [*asked, answer, _item("user", "input_text", instruction)]}
    return _lessened(going_on, "max_output_tokens", pieces, _LEAST_OUTPUT_TOKENS)


def _with_answer(messages: list[Any], blocks: list[Body]) -> list[Any]:
    """Appends the response so far; extends the beginning that the client itself gave, if there is one."""
    last = mapping(messages[-1]) if messages else {}
    own = last.get("content")
    if last.get("role") != "assistant":
        content: object = blocks if len(blocks) > 1 else blocks[0]["text"]
        return [*messages, {"role": "assistant", "content": content}]
    if isinstance(own, str) and len(blocks) == 1:
        return [*messages[:-1], {**last, "content": own + blocks[0]["text"]}]
    begun = [{"type": "text", "text": own}] if isinstance(own, str) else own if isinstance(own, list) else []
    if len(blocks) == 1 and begun and mapping(begun[-1]).get("type") == "text":
        blocks = [{**begun[-1], "text": text_in(begun[-1], "text") + blocks[0]["text"]}]
        begun = begun[:-1]
    return [*messages[:-1], {**last, "content": [*begun, *blocks]}]


def _item(role: str, kind: str, text: object) -> Body:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _lessened(request: Body, name: str, pieces: int, least: int) -> Body:
    """The request with a limit that is reduced by what exists already, to `least` or more, and never raised."""
    limit = count_of(request.get(name))
    return {**request, name: min(limit, max(least, limit - pieces))} if limit else request
