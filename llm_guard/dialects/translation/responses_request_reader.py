"""Reads a Responses request into the canonical form. `responses_tools` reads its tools, `responses_items` its input."""

from __future__ import annotations

from llm_guard.dialects.translation.canonical import CanonicalRequest, JsonObject, OutputSchema, UnreadableRequestError
from llm_guard.dialects.translation.loss_table import note_losses
from llm_guard.dialects.translation.message_content import note_unknown, number_or_none
from llm_guard.dialects.translation.responses_items import read_input
from llm_guard.dialects.translation.responses_loss_table import RESPONSES_FIELDS, WHOLE_RESPONSES_FIELDS
from llm_guard.dialects.translation.responses_tools import read_tools

_NOT_ECHOED = frozenset({"input", "stream", "stream_options", "include", "model", "client_metadata"})
_TEXT_NAMES = {"verbosity": "verbosity"}
_REASONING_NAMES = {
    "summary": "reasoning_summary", "generate_summary": "reasoning_summary", "mode": "reasoning_mode",
    "context": "reasoning_mode",
}  # fmt: skip
_MOST_DEPTH = 200
"""Levels of what a response repeats."""
_LOGPROBS = "message.output_text.logprobs"
_DEFAULT_VERBOSITY = "medium"


def read_responses_request(body: JsonObject) -> CanonicalRequest:
    """Returns the request. Raises UnreadableRequestError if it does not have the form of a Responses request."""
    request = CanonicalRequest()
    _note_fields(body, request)
    instructions = body.get("instructions")
    if isinstance(instructions, str) and instructions:
        request.system.append(instructions)
    elif instructions not in (None, ""):
        raise UnreadableRequestError("instructions", "`instructions` must be a string")
    read_tools(body, request)
    read_input(body.get("input"), request)
    _read_text(body.get("text"), request)
    _read_limits(body, request)
    request.echoed = {name: value for name, value in body.items() if name not in _NOT_ECHOED}
    if _is_deep(request.echoed, _MOST_DEPTH):
        raise UnreadableRequestError("", "it is nested too deeply")
    if body.get("tools"):
        request.echoed["tools"] = [_echoed_tool(tool) for tool in body["tools"]]
    return request


def _echoed_tool(tool: JsonObject) -> JsonObject:
    """Returns a tool with the members that a request may omit, and a response may not."""
    return {"parameters": None, "strict": False, **tool} if tool.get("type") == "function" else tool


def _is_deep(value: object, levels: int) -> bool:
    """Returns whether a value has more levels. A response that cannot be written must not count as the upstream's
    failure."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deep(item, levels - 1) for item in inner)


def _note_fields(body: JsonObject, request: CanonicalRequest) -> None:
    losses = request.losses
    note_losses(body, RESPONSES_FIELDS, WHOLE_RESPONSES_FIELDS, losses)
    included = body.get("include")
    if isinstance(included, list) and _LOGPROBS in included:
        losses.promise("logprobs", "include")
    options = body.get("stream_options")
    if isinstance(options, dict):
        obfuscation = {"include_obfuscation"} if options.get("include_obfuscation") is False else set()
        note_unknown(options, frozenset(obfuscation), losses, {}, "include_obfuscation")


def _read_text(text: object, request: CanonicalRequest) -> None:
    if not isinstance(text, dict):
        return
    is_usual = text.get("verbosity") == _DEFAULT_VERBOSITY
    known = frozenset({"format", "verbosity"} if is_usual else {"format"})
    note_unknown(text, known, request.losses, _TEXT_NAMES, "verbosity")
    wanted = text.get("format")
    if not isinstance(wanted, dict) or wanted.get("type") in (None, "text"):
        return
    if wanted["type"] != "json_schema":
        request.losses.promise("json_object" if wanted["type"] == "json_object" else "output_format")
        return
    schema, name = wanted.get("schema"), wanted.get("name")
    request.output = OutputSchema(
        schema if isinstance(schema, dict) else {},
        name if isinstance(name, str) else "response",
        wanted.get("description"),
        wanted.get("strict") is True,
    )


def _read_limits(body: JsonObject, request: CanonicalRequest) -> None:
    limit = body.get("max_output_tokens")
    request.max_tokens = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
    request.temperature = number_or_none(body.get("temperature"), "temperature")
    request.top_p = number_or_none(body.get("top_p"), "top_p")
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict):
        effort = reasoning.get("effort")
        request.effort = effort if isinstance(effort, str) else None
        note_unknown(reasoning, frozenset({"effort"}), request.losses, _REASONING_NAMES, "reasoning_mode")
    request.is_stream = body.get("stream") is True
