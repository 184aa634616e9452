"""Reads a Messages request into the canonical form."""

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
from llm_guard.dialects.translation.loss_table import (
    MESSAGES_FIELDS,
    WHOLE_MESSAGES_FIELDS,
    note_losses,
    promise_of_tool,
)
from llm_guard.dialects.translation.losses import Losses
from llm_guard.dialects.translation.message_content import (
    MessageContent,
    media_of_source,
    note_unknown,
    number_or_none,
    objects_in,
    text_of,
)

_NAMES = {
    "cache_control": "cache_control", "citations": "citations", "context": "document_context", "caller": "caller",
    "toolset_name": "caller", "transformations": "image_transformations", "strict": "strict",
    "eager_input_streaming": "eager_input_streaming", "input_examples": "input_examples",
}  # fmt: skip
_UNKNOWN = "caller"
_TEXT = frozenset({"type", "text"})
_BLOCK = frozenset({
    "type", "text", "source", "title", "content", "id", "name", "input", "tool_use_id", "is_error", "citations",
})  # fmt: skip
_TOOL = frozenset({"type", "name", "description", "input_schema", "defer_loading", "allowed_callers"})
_THOUGHTS = ("thinking", "redacted_thinking")


def read_messages_request(body: JsonObject) -> CanonicalRequest:
    """Returns the request. Raises UnreadableRequestError if it does not have the form of a Messages request."""
    request = CanonicalRequest(continues_last_turn=True)
    losses = request.losses
    note_losses(body, MESSAGES_FIELDS, WHOLE_MESSAGES_FIELDS, losses)
    request.system = _system(body.get("system"), losses)
    for index, message in enumerate(objects_in(body.get("messages"), "messages")):
        _read_message(message, request, index)
    _read_tools(body, request)
    _read_output(body.get("output_config"), request)
    _read_limits(body, request)
    return request


def _system(system: object, losses: Losses) -> list[str]:
    if system is None or isinstance(system, str):
        return [system] if system else []
    return [block.text for block in _contents(system, losses, "system") if isinstance(block, TextBlock)]


def _read_message(message: JsonObject, request: CanonicalRequest, index: int) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        place = f"messages[{index}].role"
        raise UnreadableRequestError(place, f"`{place}` must be user or assistant")
    if role == "assistant":
        request.has_signed_thinking = False
    if isinstance(content, str):
        blocks: list[ConversationBlock] = [TextBlock(content)] if content else []
    else:
        blocks, place = [], f"messages[{index}].content"
        for number, part in enumerate(objects_in(content, place)):
            blocks += _block(part, request, f"{place}[{number}]")
    request.turns.append(ConversationTurn(role, blocks))


def _block(part: JsonObject, request: CanonicalRequest, place: str) -> list[ConversationBlock]:
    """Returns the blocks for a block of the conversation; none if a chat cannot express it."""
    kind, losses = part.get("type"), request.losses
    if kind == "tool_use":
        note_unknown(part, _BLOCK, losses, _NAMES, _UNKNOWN)
        arguments = part.get("input")
        arguments = arguments if isinstance(arguments, dict) else {}
        call_id, name = text_of(part.get("id"), f"{place}.id"), text_of(part.get("name"), f"{place}.name")
        return [ToolCallBlock(call_id, name, arguments)]
    if kind == "tool_result":
        note_unknown(part, _BLOCK, losses, _NAMES, _UNKNOWN)
        content = _contents(part.get("content"), losses, place)
        call_id = text_of(part.get("tool_use_id"), f"{place}.tool_use_id")
        return [ToolResultBlock(call_id, content, part.get("is_error") is True)]
    if kind in _THOUGHTS:
        request.has_signed_thinking = request.has_signed_thinking or bool(part.get("signature") or part.get("data"))
        losses.hint("thinking_blocks")
        return []
    return [*_content(part, losses, place)]


def _contents(content: object, losses: Losses, place: str) -> list[MessageContent]:
    """Returns the blocks of a system prompt, a tool's result or a document. Empty texts are left out."""
    if content is None:
        return []
    if isinstance(content, str):
        return [TextBlock(content)] if content else []
    found: list[MessageContent] = []
    for index, part in enumerate(objects_in(content, f"{place}.content")):
        found += _content(part, losses, f"{place}.content[{index}]")
    return found


def _content(part: JsonObject, losses: Losses, place: str) -> list[MessageContent]:
    kind = part.get("type")
    if len(part) > len(_TEXT):
        note_unknown(part, _BLOCK, losses, _NAMES, _UNKNOWN)
    if kind == "text":
        if part.get("citations"):
            losses.hint("citations")
        text = text_of(part.get("text"), f"{place}.text")
        return [TextBlock(text)] if text else []
    if kind in ("image", "document"):
        return _media(kind, part, losses, place)
    if kind == "search_result":
        return _search_result(part, losses, place)
    if kind == "server_tool_use" or str(kind).endswith("_tool_result"):
        losses.promise("server_tools", place)
    elif kind == "container_upload":
        losses.promise("container_upload", place)
    else:
        losses.promise("unknown_content", f"{place} ({str(kind)[:40]})")
    return []


def _media(kind: str, part: JsonObject, losses: Losses, place: str) -> list[MessageContent]:
    _note_citations(part, losses, place)
    source = part.get("source")
    if isinstance(source, dict) and source.get("type") == "content":
        return _contents(source.get("content"), losses, f"{place}.source")
    media = media_of_source(kind, part, losses, place)
    return [media] if media is not None else []


def _search_result(part: JsonObject, losses: Losses, place: str) -> list[MessageContent]:
    """Returns a search result as text, with its title and source before it."""
    _note_citations(part, losses, place)
    head = "\n".join(text for key in ("title", "source") if isinstance(text := part.get(key), str) and text)
    found = _contents(part.get("content"), losses, place)
    return [TextBlock(head), *found] if head else found


def _note_citations(part: JsonObject, losses: Losses, place: str) -> None:
    citations = part.get("citations")
    if isinstance(citations, dict) and citations.get("enabled"):
        losses.promise("citations_enabled", place)


def _read_tools(body: JsonObject, request: CanonicalRequest) -> None:
    losses = request.losses
    for index, tool in enumerate(objects_in(body.get("tools") or [], "tools")):
        kind = tool.get("type")
        if kind not in (None, "custom"):
            losses.promise(promise_of_tool(str(kind)), f"tools[{index}]")
            continue
        note_unknown(tool, _TOOL, losses, _NAMES, _UNKNOWN)
        if tool.get("defer_loading"):
            losses.promise("defer_loading", f"tools[{index}]")
        if tool.get("allowed_callers") not in (None, ["direct"]):
            losses.promise("allowed_callers", f"tools[{index}]")
        name = text_of(tool.get("name"), f"tools[{index}].name")
        request.tools.append(
            ToolDefinition(name, tool.get("description"), tool.get("input_schema") or {}, tool.get("strict"))
        )
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return
    request.tool_choice = _choice(choice)
    if choice.get("disable_parallel_tool_use"):
        request.is_parallel = False


def _choice(choice: JsonObject) -> ToolChoice:
    match choice.get("type"):
        case "auto" | "any" | "none" as mode:
            return ToolChoice(mode)
        case "tool":
            return ToolChoice("named", text_of(choice.get("name"), "tool_choice.name"))
        case _:
            pass
    raise UnreadableRequestError("tool_choice.type", "`tool_choice.type` must be auto, any, tool or none")


def _read_output(config: object, request: CanonicalRequest) -> None:
    if not isinstance(config, dict):
        return
    wanted = config.get("format")
    if isinstance(wanted, dict):
        schema = wanted.get("schema")
        if wanted.get("type") != "json_schema" or not isinstance(schema, dict):
            raise UnreadableRequestError("output_config.format", "`output_config.format` must be a json_schema")
        request.output = OutputSchema(schema)
    effort = config.get("effort")
    request.effort = effort if isinstance(effort, str) else None
    for name in config.keys() - {"format", "effort"}:
        request.losses.promise(name)


def _read_limits(body: JsonObject, request: CanonicalRequest) -> None:
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise UnreadableRequestError("max_tokens", "`max_tokens` must be a number")
    request.max_tokens = limit
    request.temperature = number_or_none(body.get("temperature"), "temperature")
    request.top_p = number_or_none(body.get("top_p"), "top_p")
    stops = body.get("stop_sequences")
    request.stops = [text_of(text, "stop_sequences") for text in stops] if isinstance(stops, list) else []
    thinking = body.get("thinking")
    if isinstance(thinking, dict):
        budget = thinking.get("budget_tokens")
        if thinking.get("type") not in ("enabled", "adaptive", "disabled"):
            request.losses.hint("thinking")
        is_off = thinking.get("type") == "disabled"
        request.thinking_budget = 0 if is_off else budget if isinstance(budget, int) else None
        if thinking.get("type") == "adaptive" and request.effort is None:
            request.effort = "high"  # Anthropic's default
        if thinking.get("display") is not None:
            request.losses.hint("thinking_display")
    request.is_stream = body.get("stream") is True
