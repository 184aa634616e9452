"""Input items of Responses requests: messages, calls of tools and their results. Items of other kinds belong to what
the provider runs or stores itself."""

from __future__ import annotations

from llm_guard.dialects.translation.canonical import (
    CUSTOM_INPUT,
    CanonicalRequest,
    ConversationBlock,
    ConversationTurn,
    JsonObject,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnreadableRequestError,
)
from llm_guard.dialects.translation.losses import Losses
from llm_guard.dialects.translation.message_content import (
    MessageContent,
    document_of_file,
    media_of_url,
    note_unknown,
    objects_in,
    text_of,
)
from llm_guard.dialects.translation.responses_loss_table import loss_of_type
from llm_guard.dialects.translation.responses_tools import tool_name

_NAMES = {
    "prompt_cache_breakpoint": "prompt_cache_breakpoint", "phase": "phase", "detail": "detail", "caller": "caller",
    "async": "caller",
}  # fmt: skip
_UNKNOWN = "annotations"
_MESSAGE = frozenset({"type", "id", "status", "role", "content"})
_CALL = frozenset({
    "type", "id", "status", "call_id", "name", "namespace", "arguments", "input", "output",
})  # fmt: skip
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def read_input(given: object, request: CanonicalRequest) -> None:
    """Reads the input of a request. Raises UnreadableRequestError."""
    if isinstance(given, str):
        request.turns.append(ConversationTurn("user", [TextBlock(given)] if given else []))
        return
    for index, item in enumerate(objects_in(given, "input")):
        _read_item(item, request, f"input[{index}]")


def _read_item(item: JsonObject, request: CanonicalRequest, place: str) -> None:
    losses = request.losses
    match item.get("type", "message" if "role" in item else None):
        case "message":
            _read_message(item, request, place)
        case "function_call" | "custom_tool_call" as kind:
            note_unknown(item, _CALL, losses, _NAMES, "caller")
            request.turns.append(ConversationTurn("assistant", [_call(item, kind, place)]))
        case "function_call_output" | "custom_tool_call_output":
            note_unknown(item, _CALL, losses, _NAMES, "caller")
            call_id = text_of(item.get("call_id"), f"{place}.call_id")
            result = ToolResultBlock(call_id, _contents(item.get("output"), losses, f"{place}.output"))
            request.turns.append(ConversationTurn("user", [result]))
        case "reasoning":
            losses.hint("reasoning_items")
        case "item_reference":
            losses.promise("item_reference", place)
        case "compaction" | "compaction_trigger":
            losses.promise("compaction", place)
        case kind:
            losses.promise(loss_of_type(str(kind), "unknown_items"), f"{place} ({str(kind)[:40]})")


def _read_message(item: JsonObject, request: CanonicalRequest, place: str) -> None:
    note_unknown(item, _MESSAGE, request.losses, _NAMES, _UNKNOWN)
    contents = _contents(item.get("content"), request.losses, f"{place}.content")
    role, texts = item.get("role"), [block.text for block in contents if isinstance(block, TextBlock)]
    if role != "user" and len(texts) < len(contents):
        request.losses.promise("attachments", f"{place}.content")
    match role:
        case "system" | "developer":
            if not request.turns:
                request.system += texts
            elif texts:
                request.turns.append(ConversationTurn("system", [TextBlock(text) for text in texts]))
        case "user" | "assistant" as role:
            request.turns.append(ConversationTurn(role, [*contents]))
        case _:
            raise UnreadableRequestError(f"{place}.role", f"`{place}.role` is not a role of a conversation")


def _call(item: JsonObject, kind: str, place: str) -> ConversationBlock:
    call_id, namespace = text_of(item.get("call_id"), f"{place}.call_id"), item.get("namespace")
    name = tool_name(text_of(item.get("name"), f"{place}.name"), namespace if isinstance(namespace, str) else None)
    if kind == "custom_tool_call":
        return ToolCallBlock(call_id, name, {CUSTOM_INPUT: text_of(item.get("input"), f"{place}.input")})
    return ToolCallBlock(call_id, name, text_of(item.get("arguments"), f"{place}.arguments"))


def _contents(content: object, losses: Losses, place: str) -> list[MessageContent]:
    """Returns the blocks of a message or of a result. Empty texts are left out: Anthropic refuses them."""
    if content is None:
        return []
    if isinstance(content, str):
        return [TextBlock(content)] if content else []
    found: list[MessageContent] = []
    for index, part in enumerate(objects_in(content, place)):
        block = _content(part, losses, f"{place}[{index}]")
        if block is not None:
            found.append(block)
    return found


def _content(part: JsonObject, losses: Losses, place: str) -> MessageContent | None:
    kind = part.get("type")
    if (member := _TEXTS.get(str(kind))) is not None:
        text = text_of(part.get(member), f"{place}.{member}")
        _note_annotations(part, losses)
        return TextBlock(text) if text else None
    if kind == "input_image":
        return _image(part, losses, place)
    if kind == "input_file":
        return _file(part, losses, place)
    losses.promise("unknown_content", f"{place} ({str(kind)[:40]})")
    return None


def _note_annotations(part: JsonObject, losses: Losses) -> None:
    """An empty list of annotations, as in nearly all messages, is no loss."""
    for name in part.keys() - {"type", "text", "refusal"}:
        if part[name] not in (None, []):
            losses.hint(_NAMES.get(name, _UNKNOWN))


def _image(part: JsonObject, losses: Losses, place: str) -> MessageContent | None:
    if part.get("detail") not in (None, "auto"):
        losses.hint("detail")
    note_unknown(part, frozenset({"type", "detail", "image_url", "file_id"}), losses, _NAMES, _UNKNOWN)
    if part.get("file_id"):
        losses.promise("file_id", place)
        return None
    return media_of_url(text_of(part.get("image_url"), f"{place}.image_url"), losses, place)


def _file(part: JsonObject, losses: Losses, place: str) -> MessageContent | None:
    members = frozenset({"type", "file_id", "file_data", "file_url", "filename"})
    note_unknown(part, members, losses, _NAMES, _UNKNOWN)
    if part.get("file_url"):
        losses.promise("document_url", place)
        return None
    return document_of_file(part, losses, place)
