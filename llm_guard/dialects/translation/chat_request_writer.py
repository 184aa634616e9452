"""Writes a canonical request as a chat request."""

from __future__ import annotations

from typing import Any

from llm_guard.dialects.openai import token_limit_field
from llm_guard.dialects.translation.canonical import (
    CanonicalRequest,
    ConversationBlock,
    ConversationTurn,
    JsonObject,
    MediaBlock,
    RequestTarget,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    texts_of,
)
from llm_guard.dialects.translation.identifiers import NameMap
from llm_guard.dialects.translation.losses import Losses
from llm_guard.dialects.translation.message_content import MessageContent, chat_part, joined
from llm_guard.dialects.translation.reasoning import chat_effort, is_reasoning_model
from llm_guard.dialects.translation.tool_schemas import is_strict, tool_schema
from llm_guard.dialects.translation.wire_json import encode

_MOST_STOPS = 4
"""OpenAI's limit."""
_FLAGS = ("prefix", "partial")


def write_chat_request(
    request: CanonicalRequest, target: RequestTarget, names: NameMap, ids: NameMap, losses: Losses
) -> JsonObject:
    """Returns the request. `names` and `ids` learn the names and ids on the wire, `losses` what the request loses."""
    messages: list[JsonObject] = []
    if request.system:
        messages.append({"role": "system", "content": "\n\n".join(request.system)})
    for turn in _merged(request.turns):
        messages += _messages(turn, names, ids)
    body: JsonObject = {"model": target.model, "messages": messages}
    if request.continues_last_turn:
        _continue_beginning(request, target, body, losses)
    if request.max_tokens is not None:
        limit = min(request.max_tokens, target.most_tokens or request.max_tokens)
        body[_limit_field(target)] = limit
        if limit < request.max_tokens:
            losses.hint("max_tokens")
    if request.tools:
        body["tools"] = [_tool(tool, names, losses) for tool in request.tools]
        _write_tool_choice(request, body, names)
    _write_sampling(request, target, body, losses)
    if request.output is not None:
        schema = request.output.schema
        described = {"name": request.output.name, "schema": schema, "strict": is_strict(schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": described}
    if request.is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _limit_field(target: RequestTarget) -> str:
    """Returns the field for the output limit. The address of a reasoning model of OpenAI may say nothing."""
    if is_reasoning_model(target.model, target.family):
        return "max_completion_tokens"
    return token_limit_field(target.family)


def _continue_beginning(request: CanonicalRequest, target: RequestTarget, body: JsonObject, losses: Losses) -> None:
    """Marks a last message of the assistant, which Messages always continue, in the way of the deployment."""
    last = body["messages"][-1] if body["messages"] else {}
    if last.get("role") != "assistant" or "tool_calls" in last:
        return
    if target.prefill == "none":
        losses.promise("prefill", f"messages[{len(request.turns) - 1}]")
    elif target.prefill in _FLAGS:
        last[target.prefill] = True
    elif target.prefill == "continue_final_message":
        body |= {"continue_final_message": True, "add_generation_prompt": False}


def _write_sampling(request: CanonicalRequest, target: RequestTarget, body: JsonObject, losses: Losses) -> None:
    if request.stops:
        body["stop"] = request.stops
    if len(request.stops) > _MOST_STOPS:
        losses.promise("stop_sequences")
    reasons = is_reasoning_model(target.model, target.family)
    for name, value in (("temperature", request.temperature), ("top_p", request.top_p)):
        if value is None or value == 1:
            continue
        if reasons:
            losses.hint(name)
        else:
            body[name] = value
    effort = chat_effort(request.effort, request.thinking_budget)
    if effort is None:
        return
    if reasons:
        body["reasoning_effort"] = effort
    else:
        losses.hint("effort" if request.effort is not None and request.thinking_budget is None else "thinking")


def _tool(tool: ToolDefinition, names: NameMap, losses: Losses) -> JsonObject:
    function: JsonObject = {"name": names.wire(tool.name), "parameters": tool_schema(tool.schema, losses)}
    if tool.description:
        function["description"] = tool.description
    if tool.is_strict:
        losses.hint("strict")
    return {"type": "function", "function": function}


def _write_tool_choice(request: CanonicalRequest, body: JsonObject, names: NameMap) -> None:
    choice = request.tool_choice
    if choice is not None:
        named = {"type": "function", "function": {"name": names.wire(choice.name)}} if choice.mode == "named" else None
        body["tool_choice"] = named or ("required" if choice.mode == "any" else choice.mode)
    if request.is_parallel is False and (choice is None or choice.mode != "none"):
        body["parallel_tool_calls"] = False


def _merged(turns: list[ConversationTurn]) -> list[ConversationTurn]:
    """Returns the turns with neighbours of one role as one: the results of a turn's calls must follow it at once."""
    merged: list[ConversationTurn] = []
    for turn in turns:
        if merged and merged[-1].role == turn.role != "system":
            merged[-1] = ConversationTurn(turn.role, [*merged[-1].blocks, *turn.blocks])
        else:
            merged.append(turn)
    return merged


def _messages(turn: ConversationTurn, names: NameMap, ids: NameMap) -> list[JsonObject]:
    if turn.role == "system":
        return [{"role": "system", "content": "\n\n".join(texts_of(turn.blocks))}] if turn.blocks else []
    if turn.role == "assistant":
        return _of_assistant(turn.blocks, names, ids)
    return _of_user(turn.blocks, ids)


def _of_assistant(blocks: list[ConversationBlock], names: NameMap, ids: NameMap) -> list[JsonObject]:
    calls = [
        {
            "id": ids.wire(block.id),
            "type": "function",
            "function": {"name": names.wire(block.name), "arguments": _arguments(block.arguments)},
        }
        for block in blocks
        if isinstance(block, ToolCallBlock)
    ]
    text = "".join(texts_of(blocks))
    if not calls:
        return [{"role": "assistant", "content": text}] if text else []
    return [{"role": "assistant", "content": text or None, "tool_calls": calls}]


def _arguments(arguments: str | JsonObject) -> str:
    return arguments or "{}" if isinstance(arguments, str) else encode(arguments).decode()


def _of_user(blocks: list[ConversationBlock], ids: NameMap) -> list[JsonObject]:
    """Returns the results as messages of their own, and then all else. A chat has only text in results: their images
    and documents go into the user's message."""
    messages: list[JsonObject] = []
    others: list[MessageContent] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            wire = ids.wire(block.id)
            media = [part for part in block.content if isinstance(part, MediaBlock)]
            if media:
                others += [TextBlock(f"Attachments of the tool result {wire}:"), *media]
            messages.append({"role": "tool", "tool_call_id": wire, "content": _result_text(block, bool(media))})
        elif not isinstance(block, ToolCallBlock):
            others.append(block)
    if others:
        messages.append({"role": "user", "content": _user_content(others)})
    return messages


def _result_text(block: ToolResultBlock, has_media: bool) -> str:
    """Returns a result as text. A chat has no field for a failed tool: the text says it."""
    text = joined((part.text for part in block.content if isinstance(part, TextBlock)), "\n\n")
    if has_media:
        text = joined((text, "(The attachments follow in the next message.)"), "\n\n")
    if block.is_error:
        return f"Error: {text}" if text else "Error"
    return text


def _user_content(blocks: list[MessageContent]) -> Any:
    texts = texts_of(blocks)
    if len(texts) == len(blocks):
        return "\n\n".join(texts)
    return [chat_part(block) for block in blocks]
