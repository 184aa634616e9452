"""Tools of Responses requests. A custom tool, which is called with a text, becomes a function with one string; a tool
of a namespace becomes a function whose name begins with that of the namespace."""

from __future__ import annotations

from llm_guard.dialects.translation.canonical import (
    CUSTOM_INPUT,
    CanonicalRequest,
    JsonObject,
    ToolChoice,
    ToolDefinition,
    ToolOrigin,
    UnreadableRequestError,
)
from llm_guard.dialects.translation.losses import Losses
from llm_guard.dialects.translation.message_content import joined, objects_in, text_of
from llm_guard.dialects.translation.responses_loss_table import loss_of_type

_CUSTOM_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The complete input of the tool."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
_MODES = ("auto", "none", "required")


def tool_name(name: str, namespace: str | None) -> str:
    """Returns the name of a tool among all tools of a request."""
    return f"{namespace}__{name}" if namespace else name


def read_tools(body: JsonObject, request: CanonicalRequest) -> None:
    """Reads the tools, and which of them the response has to call. Raises UnreadableRequestError."""
    _read_list(body.get("tools"), "tools", None, request)
    parallel = body.get("parallel_tool_calls")
    request.is_parallel = parallel if isinstance(parallel, bool) else None
    request.tool_choice = _choice(body.get("tool_choice"), request)


def _read_list(tools: object, place: str, namespace: str | None, request: CanonicalRequest) -> None:
    for index, tool in enumerate(objects_in(tools or [], place)):
        at, kind = f"{place}[{index}]", tool.get("type")
        if kind in ("function", "custom"):
            _read_tool(tool, at, namespace, request)
        elif kind == "namespace" and namespace is None:
            _read_list(tool.get("tools"), f"{at}.tools", text_of(tool.get("name"), f"{at}.name"), request)
        else:
            request.losses.promise(loss_of_type(str(kind), "provider_tools"), f"{at} ({str(kind)[:40]})")


def _read_tool(tool: JsonObject, place: str, namespace: str | None, request: CanonicalRequest) -> None:
    _note_promises(tool, place, request.losses)
    own = text_of(tool.get("name"), f"{place}.name")
    name, is_custom = tool_name(own, namespace), tool.get("type") == "custom"
    if is_custom or namespace:
        request.tool_origins[name] = ToolOrigin(own, namespace, is_custom)
    description = tool.get("description")
    description = description if isinstance(description, str) else None
    if is_custom:
        grammar = _grammar(tool.get("format"), request.losses)
        description = joined((description or "", grammar), "\n\n")
        request.tools.append(ToolDefinition(name, description, _CUSTOM_SCHEMA))
    else:
        request.tools.append(ToolDefinition(name, description, tool.get("parameters") or {}, tool.get("strict")))


def _note_promises(tool: JsonObject, place: str, losses: Losses) -> None:
    if tool.get("async"):
        losses.promise("async_tools", place)
    if tool.get("defer_loading"):
        losses.promise("defer_loading", place)
    if tool.get("allowed_callers") not in (None, ["direct"]):
        losses.promise("allowed_callers", place)
    if tool.get("output_schema") is not None:
        losses.hint("output_schema")


def _grammar(form: object, losses: Losses) -> str:
    """Returns a text for the model with the grammar of a custom tool's input, which other providers do not enforce."""
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return ""
    losses.hint("tool_grammar")
    return f"The input must match this {form.get('syntax')} grammar:\n{form.get('definition')}"


def _choice(choice: object, request: CanonicalRequest) -> ToolChoice | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice not in _MODES:
            raise UnreadableRequestError("tool_choice", "`tool_choice` is not known")
        return ToolChoice("any" if choice == "required" else "none" if choice == "none" else "auto")
    if not isinstance(choice, dict):
        raise UnreadableRequestError("tool_choice", "`tool_choice` must be a string or an object")
    kind = choice.get("type")
    if kind in ("function", "custom"):
        namespace = choice.get("namespace")
        named = tool_name(text_of(choice.get("name"), "tool_choice.name"), namespace or None)
        return ToolChoice("named", named)
    if kind == "allowed_tools":
        return _allowed(choice, request)
    request.losses.promise(loss_of_type(str(kind), "provider_tools"), "tool_choice")
    return None


def _allowed(choice: JsonObject, request: CanonicalRequest) -> ToolChoice:
    """Leaves only the allowed tools: no other dialect has a way to restrict them that all providers support."""
    allowed = objects_in(choice.get("tools") or [], "tool_choice.tools")
    names = {tool_name(str(tool.get("name")), tool.get("namespace")) for tool in allowed}
    request.tools = [tool for tool in request.tools if tool.name in names]
    return ToolChoice("any" if choice.get("mode") == "required" else "auto")
