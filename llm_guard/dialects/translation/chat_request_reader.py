"""Reads a chat request into the canonical form."""

from __future__ import annotations

from llm_guard.dialects.translation.canonical import (
    CanonicalRequest,
    ConversationBlock,
    ConversationTurn,
    JsonObject,
    OutputSchema,
    TextBlock,
    ToolCallBlock,
    ToolChoice,
    ToolDefinition,
    ToolResultBlock,
    UnreadableRequestError,
)
from llm_guard.dialects.translation.loss_table import CHAT_FIELDS, WHOLE_CHAT_FIELDS, note_losses
from llm_guard.dialects.translation.losses import Losses
from llm_guard.dialects.translation.message_content import (
    MessageContent,
    document_of_file,
    media_of_url,
    note_unknown,
    number_or_none,
    objects_in,
    text_of,
)

_NAMES = {"prompt_cache_breakpoint": "prompt_cache_breakpoint", "name": "name", "detail": "detail"}
_UNKNOWN = "reasoning_content"
"""Name of losses of members that are not in the API description; the reasoning of a past response is the most frequent
one."""
_TEXT = frozenset({"type", "text"})
_MESSAGE = frozenset({"role", "content", "tool_calls", "tool_call_id", "refusal", "audio", "function_call"})
_STREAM_OPTIONS = frozenset({"include_usage"})


def read_chat_request(body: JsonObject) -> CanonicalRequest:
    """Returns the request. Raises UnreadableRequestError if it does not have the form of a chat request."""
    request = CanonicalRequest()
    losses = request.losses
    note_losses(body, CHAT_FIELDS, WHOLE_CHAT_FIELDS, losses)
    for index, message in enumerate(objects_in(body.get("messages"), "messages")):
        _read_message(message, request, f"messages[{index}]")
    _read_tools(body, request)
    _read_output(body.get("response_format"), request)
    _read_limits(body, request)
    return request


def _read_message(message: JsonObject, request: CanonicalRequest, place: str) -> None:
    losses = request.losses
    note_unknown(message, _MESSAGE, losses, _NAMES, _UNKNOWN)
    match message.get("role"):
        case "user":
            request.turns.append(ConversationTurn("user", [*_contents(message.get("content"), losses, place)]))
        case "assistant":
            request.turns.append(ConversationTurn("assistant", _of_assistant(message, losses, place)))
        case "system" | "developer":
            contents = _contents(message.get("content"), losses, place)
            texts = [block.text for block in contents if isinstance(block, TextBlock)]
            if not request.turns:
                request.system += texts
            elif texts:
                request.turns.append(ConversationTurn("system", [TextBlock(text) for text in texts]))
        case "tool":
            call_id = text_of(message.get("tool_call_id"), f"{place}.tool_call_id")
            content = _contents(message.get("content"), losses, place)
            request.turns.append(ConversationTurn("user", [ToolResultBlock(call_id, content)]))
        case "function":
            losses.promise("functions", place)
        case _:
            raise UnreadableRequestError(f"{place}.role", f"`{place}.role` is not a role of a chat")


def _of_assistant(message: JsonObject, losses: Losses, place: str) -> list[ConversationBlock]:
    blocks: list[ConversationBlock] = [*_contents(message.get("content"), losses, place)]
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        blocks.append(TextBlock(refusal))
    if message.get("audio") is not None:
        losses.promise("audio", place)
    if message.get("function_call") is not None:
        losses.promise("functions", place)
    for index, call in enumerate(objects_in(message.get("tool_calls") or [], f"{place}.tool_calls")):
        at = f"{place}.tool_calls[{index}]"
        if call.get("type", "function") != "function":
            losses.promise("custom_tools", at)
            continue
        function = call.get("function")
        if not isinstance(function, dict):
            raise UnreadableRequestError(f"{at}.function", f"`{at}.function` must be an object")
        arguments = function.get("arguments")
        arguments = arguments if isinstance(arguments, str | dict) else ""
        call_id, name = text_of(call.get("id"), f"{at}.id"), text_of(function.get("name"), f"{at}.function.name")
        blocks.append(ToolCallBlock(call_id, name, arguments))
    return blocks


def _contents(content: object, losses: Losses, place: str) -> list[MessageContent]:
    """Returns the blocks of a message's content. Empty texts are left out: Anthropic refuses them."""
    if content is None:
        return []
    if isinstance(content, str):
        return [TextBlock(content)] if content else []
    found: list[MessageContent] = []
    for index, part in enumerate(objects_in(content, f"{place}.content")):
        block = _content(part, losses, f"{place}.content[{index}]")
        if block is not None:
            found.append(block)
    return found


def _content(part: JsonObject, losses: Losses, place: str) -> MessageContent | None:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        text = text_of(part.get(kind), f"{place}.{kind}")
        if len(part) > len(_TEXT):
            note_unknown(part, _TEXT | {"refusal"}, losses, _NAMES, _UNKNOWN)
        return TextBlock(text) if text else None
    note_unknown(part, frozenset({"type", "image_url", "input_audio", "file"}), losses, _NAMES, _UNKNOWN)
    if kind == "image_url":
        return _image(part.get("image_url"), losses, place)
    if kind == "file":
        file = part.get("file")
        if not isinstance(file, dict):
            raise UnreadableRequestError(f"{place}.file", f"`{place}.file` must be an object")
        return document_of_file(file, losses, place)
    if kind == "input_audio":
        losses.promise("input_audio", place)
    else:
        losses.promise("unknown_content", f"{place} ({str(kind)[:40]})")
    return None


def _image(image: object, losses: Losses, place: str) -> MessageContent | None:
    fields = image if isinstance(image, dict) else {"url": image}
    if fields.get("detail") not in (None, "auto"):
        losses.hint("detail")
    return media_of_url(text_of(fields.get("url"), f"{place}.image_url.url"), losses, place)


def _read_tools(body: JsonObject, request: CanonicalRequest) -> None:
    losses = request.losses
    for index, tool in enumerate(objects_in(body.get("tools") or [], "tools")):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            losses.promise("custom_tools" if tool.get("type") == "custom" else "provider_tools", f"tools[{index}]")
        elif not isinstance(function, dict):
            raise UnreadableRequestError(f"tools[{index}].function", f"`tools[{index}].function` must be an object")
        else:
            name = text_of(function.get("name"), f"tools[{index}].function.name")
            schema, strict = function.get("parameters") or {}, function.get("strict")
            request.tools.append(ToolDefinition(name, function.get("description"), schema, strict))
    parallel, choice = body.get("parallel_tool_calls"), body.get("tool_choice")
    request.is_parallel = parallel if isinstance(parallel, bool) else None
    if choice is not None:
        request.tool_choice = _choice(choice, request)


def _choice(choice: object, request: CanonicalRequest) -> ToolChoice | None:
    if choice == "auto":
        return ToolChoice("auto")
    if choice == "none":
        return ToolChoice("none")
    if choice == "required":
        return ToolChoice("any")
    fields = choice if isinstance(choice, dict) else {}
    match fields.get("type"):
        case "function" if isinstance(fields.get("function"), dict):
            return ToolChoice("named", text_of(fields["function"].get("name"), "tool_choice.function.name"))
        case "allowed_tools" if isinstance(fields.get("allowed_tools"), dict):
            return _allowed(fields["allowed_tools"], request)
        case "custom":
            request.losses.promise("custom_tools", "tool_choice")
            return None
        case _:
            pass
    raise UnreadableRequestError("tool_choice", "`tool_choice` is not known")


def _allowed(allowed: JsonObject, request: CanonicalRequest) -> ToolChoice:
    """Leaves only the allowed tools: a Messages request has no other way to restrict them."""
    tools = objects_in(allowed.get("tools") or [], "tool_choice.allowed_tools.tools")
    names = {(tool.get("function") or {}).get("name") for tool in tools}
    request.tools = [tool for tool in request.tools if tool.name in names]
    return ToolChoice("any" if allowed.get("mode") == "required" else "auto")


def _read_output(wanted: object, request: CanonicalRequest) -> None:
    if not isinstance(wanted, dict) or wanted.get("type") in (None, "text"):
        return
    described = wanted.get("json_schema")
    if wanted["type"] != "json_schema" or not isinstance(described, dict):
        request.losses.promise("json_object" if wanted["type"] == "json_object" else "output_format")
        return
    schema = described.get("schema")
    name, is_strict = described.get("name"), described.get("strict") is True
    request.output = OutputSchema(
        schema if isinstance(schema, dict) else {}, name or "response", described.get("description"), is_strict
    )


def _read_limits(body: JsonObject, request: CanonicalRequest) -> None:
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    request.max_tokens = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
    request.temperature = number_or_none(body.get("temperature"), "temperature")
    request.top_p = number_or_none(body.get("top_p"), "top_p")
    stop, effort = body.get("stop"), body.get("reasoning_effort")
    if stop is not None:
        stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
        request.stops = [text_of(text, "stop") for text in stops]
    request.effort = effort if isinstance(effort, str) else None
    request.is_stream = body.get("stream") is True
    options = body.get("stream_options")
    if isinstance(options, dict):
        request.wants_usage = options.get("include_usage") is True
        note_unknown(options, _STREAM_OPTIONS, request.losses, {}, "include_obfuscation")
