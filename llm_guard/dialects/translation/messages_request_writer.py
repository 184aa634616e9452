"""Writes a canonical request as a Messages request."""

from __future__ import annotations

from llm_guard.dialects.translation.canonical import (
    CanonicalRequest,
    ConversationBlock,
    ConversationTurn,
    JsonObject,
    RequestTarget,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    texts_of,
)
from llm_guard.dialects.translation.identifiers import NameMap
from llm_guard.dialects.translation.losses import Losses
from llm_guard.dialects.translation.message_content import messages_block
from llm_guard.dialects.translation.reasoning import budget_for, claude_effort, claude_thinking, is_off, takes_sampling
from llm_guard.dialects.translation.tool_schemas import output_schema, tool_schema
from llm_guard.dialects.translation.wire_json import object_of

_NO_ARGUMENTS = ("", "null")
_OPENING = "<system-reminder>\nThe assistant begins this conversation.\n</system-reminder>"
_INVALID_JSON = "INVALID_JSON"
"""Member for arguments that are not JSON (platform.claude.com, "Fine-grained tool streaming")."""


def write_messages_request(
    request: CanonicalRequest, target: RequestTarget, names: NameMap, ids: NameMap, losses: Losses
) -> JsonObject:
    """Returns the request. `names` and `ids` learn the names and ids on the wire, `losses` what the request loses."""
    body: JsonObject = {"model": target.model, "max_tokens": _max_tokens(request, target, losses)}
    system, messages = "\n\n".join(request.system), _messages(request.turns, names, ids)
    if system and messages:
        body["system"] = system
    body["messages"] = _begun_by_user(messages, system)
    if request.tools:
        body["tools"] = [_tool(tool, names, losses) for tool in request.tools]
        if (choice := _tool_choice(request, names)) is not None:
            body["tool_choice"] = choice
    is_thinking = _write_reasoning(request, target, body, losses)
    _write_sampling(request, body, losses, is_free=not is_thinking and takes_sampling(target.model))
    if request.output is not None:
        schema = output_schema(request.output.schema, losses)
        body.setdefault("output_config", {})["format"] = {"type": "json_schema", "schema": schema}
    if request.is_stream:
        body["stream"] = True
    return body


def _max_tokens(request: CanonicalRequest, target: RequestTarget, losses: Losses) -> int:
    wanted = request.max_tokens if request.max_tokens is not None else target.default_max_tokens
    if target.most_tokens is None or wanted <= target.most_tokens:
        return wanted
    if request.max_tokens is not None:
        losses.hint("max_tokens")
    return target.most_tokens


def _write_sampling(request: CanonicalRequest, body: JsonObject, losses: Losses, *, is_free: bool) -> None:
    """`is_free`: the model takes sampling parameters."""
    if request.stops:
        _write_stops(request.stops, body, losses)
    if request.temperature is not None:
        if is_free:
            body["temperature"] = min(request.temperature, 1)
        if request.temperature > 1 or (request.temperature != 1 and not is_free):
            losses.hint("temperature")
    if request.top_p is not None:
        if not is_free or request.temperature is not None:  # newer models refuse both together
            if request.top_p != 1:
                losses.hint("top_p")
        else:
            body["top_p"] = request.top_p


def _write_stops(stops: list[str], body: JsonObject, losses: Losses) -> None:
    if written := [stop for stop in stops if stop.strip()]:
        body["stop_sequences"] = written
    if len(written) < len(stops):
        losses.hint("stop")


def _write_reasoning(request: CanonicalRequest, target: RequestTarget, body: JsonObject, losses: Losses) -> bool:
    """Sets effort and thinking. Returns whether the model thinks, which excludes sampling parameters and forced tools.

    A turn that continues after tool calls must begin with the thinking that led to them, which only the provider that
    wrote it can sign: thinking stays off in it."""
    if request.effort is None:
        return False
    means, effort = claude_thinking(target.model), claude_effort(request.effort)
    if means == "none" or effort is None:
        if not is_off(request.effort):
            losses.hint("reasoning_effort")
        return False
    if means in ("adaptive", "effort"):
        body["output_config"] = {"effort": effort}
    choice = request.tool_choice
    is_forced = choice is not None and choice.mode in ("any", "named")
    if is_forced or _is_in_tool_turn(request.turns):
        return False
    if means == "adaptive":
        body["thinking"] = {"type": "adaptive"}
        return True
    budget = budget_for(effort, body["max_tokens"])
    if budget is None:
        losses.hint("reasoning_effort")
        return False
    body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return True


def _is_in_tool_turn(turns: list[ConversationTurn]) -> bool:
    for turn in reversed(turns):
        if turn.role == "assistant":
            return False
        if any(isinstance(block, ToolResultBlock) for block in turn.blocks):
            return True
    return False


def _tool(tool: ToolDefinition, names: NameMap, losses: Losses) -> JsonObject:
    written: JsonObject = {"name": names.wire(tool.name), "input_schema": tool_schema(tool.schema, losses)}
    if tool.description:
        written["description"] = tool.description
    if tool.is_strict:
        losses.hint("strict")
    return written


def _tool_choice(request: CanonicalRequest, names: NameMap) -> JsonObject | None:
    """Returns the choice; None for the default. A limit to one call is no reason to make any."""
    choice = request.tool_choice
    mode = choice.mode if choice is not None else "auto"
    if mode == "none":
        return {"type": "none"}
    if request.is_parallel is not False and (choice is None or mode == "auto"):
        return {"type": "auto"} if choice is not None else None
    written: JsonObject = {"type": "tool" if mode == "named" else mode}
    if mode == "named" and choice is not None:
        written["name"] = names.wire(choice.name)
    if request.is_parallel is False:
        written["disable_parallel_tool_use"] = True
    return written


def _messages(turns: list[ConversationTurn], names: NameMap, ids: NameMap) -> list[JsonObject]:
    """Returns the messages: neighbours of one role are merged, and all results of a turn come first in the message
    after it."""
    merged: list[tuple[str, list[ConversationBlock]]] = []
    last = ""
    for turn in turns:
        role, blocks = turn.role, turn.blocks
        if role == "system":
            role, blocks = "user", [_reminder(text) for text in texts_of(blocks)]
        if role == last:
            merged[-1] = (role, [*merged[-1][1], *blocks])
        elif blocks:
            merged.append((role, blocks))
            last = role
    calls = _CallIds(ids)
    return _without_trailing_space([_message(role, blocks, names, calls) for role, blocks in merged])


def _reminder(text: str) -> TextBlock:
    return TextBlock(f"<system-reminder>\n{text}\n</system-reminder>")


def _message(role: str, blocks: list[ConversationBlock], names: NameMap, calls: _CallIds) -> JsonObject:
    if len(blocks) == 1 and isinstance(first := blocks[0], TextBlock):
        return {"role": role, "content": first.text}
    written = [_block(block, names, calls) for block in blocks]
    if role == "user":
        written.sort(key=lambda block: block["type"] != "tool_result")
    return {"role": role, "content": written}


def _without_trailing_space(messages: list[JsonObject]) -> list[JsonObject]:
    """Anthropic refuses a beginning of a response that ends in whitespace."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        return messages
    content = last["content"]
    if isinstance(content, str):
        trimmed = content.rstrip()
        return [*messages[:-1], {**last, "content": trimmed}] if trimmed else messages[:-1]
    if content[-1]["type"] == "text":
        text = content[-1]["text"].rstrip()
        content = [*content[:-1], {"type": "text", "text": text}] if text else content[:-1]
        return [*messages[:-1], {**last, "content": content}]
    return messages


def _begun_by_user(messages: list[JsonObject], system: str) -> list[JsonObject]:
    """Returns messages of which the first is the user's, as Anthropic requires. A chat may have instructions alone, or
    begin with a greeting of the assistant."""
    if system and not messages:
        return [{"role": "user", "content": system}]
    if messages and messages[0]["role"] == "assistant":
        return [{"role": "user", "content": _OPENING}, *messages]
    return messages


class _CallIds:
    """Ids of calls on the wire. Some servers begin with the same ids in each response, and Anthropic refuses an id
    that a conversation has twice: a result belongs to the last call before it."""

    def __init__(self, ids: NameMap) -> None:
        self._ids = ids
        self._uses: dict[str, int] = {}

    def begin(self, call_id: str) -> str:
        """Returns the id of a call."""
        self._uses[call_id] = self._uses.get(call_id, -1) + 1
        return self.of(call_id)

    def of(self, call_id: str) -> str:
        """Returns the id for a result."""
        uses = self._uses.get(call_id, 0)
        return self._ids.wire(f"{call_id}\0{uses}" if uses else call_id)


def _block(block: ConversationBlock, names: NameMap, calls: _CallIds) -> JsonObject:
    if isinstance(block, ToolCallBlock):
        wire = calls.begin(block.id)
        return {"type": "tool_use", "id": wire, "name": names.wire(block.name), "input": _arguments(block.arguments)}
    if isinstance(block, ToolResultBlock):
        result: JsonObject = {"type": "tool_result", "tool_use_id": calls.of(block.id)}
        if block.content:
            result["content"] = [messages_block(part) for part in block.content]
        if block.is_error:
            result["is_error"] = True
        return result
    return messages_block(block)


def _arguments(arguments: str | JsonObject) -> JsonObject:
    """Returns the arguments as an object: an empty one for none, and a text that is no object as Anthropic expects
    it."""
    if isinstance(arguments, dict):
        return arguments
    if arguments.strip() in _NO_ARGUMENTS:
        return {}
    found = object_of(arguments)
    return {_INVALID_JSON: arguments} if found is None else found
