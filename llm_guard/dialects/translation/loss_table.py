"""The table of losses of chats and Messages: one row for each field of both request schemas, with its class.

A path names members with dots, and the type of an object with brackets: `messages.content[image_url].image_url.detail`.
`*` stands for any text without a dot, and at the beginning for any objects around a field. A row covers all below it if
it is a hint or a promise, or says so. The readers of requests look up fields at the top of a request here, and record
deeper ones by the names in this table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from llm_guard.dialects.translation.losses import Losses, LossKind


@dataclass(frozen=True, slots=True)
class LossRow:
    """One field, or all that match a pattern."""

    path: str
    kind: LossKind = "same"
    name: str = ""
    """Name of the loss; empty: the path."""
    when: str = ""
    """For which values it is one; empty: for all but `neutral`."""
    neutral: tuple[Any, ...] = ()
    """Values with which nothing is lost."""
    covers_all: bool = False
    """True if everything below is the same."""


def same_rows(*paths: str, covers_all: bool = False) -> tuple[LossRow, ...]:
    return tuple(LossRow(path, covers_all=covers_all) for path in paths)


def hint_rows(*paths: str, name: str = "") -> tuple[LossRow, ...]:
    return tuple(LossRow(path, "hint", name or path) for path in paths)


def promise_rows(*paths: str, name: str = "") -> tuple[LossRow, ...]:
    return tuple(LossRow(path, "promise", name or path) for path in paths)


CHAT_ROWS: tuple[LossRow, ...] = (
    *same_rows("model", "messages", "messages.role", "messages.content", "messages.tool_call_id", "stream"),
    *same_rows("messages.content[text].*", "messages.content[refusal].*", "messages.refusal"),
    *same_rows("messages.content[image_url].type", "messages.content[image_url].image_url"),
    *same_rows(
        "messages.content[image_url].image_url.url", "messages.content[file].type", "messages.content[file].file"
    ),
    *same_rows("messages.content[file].file.file_data", "messages.content[file].file.filename"),
    *same_rows(
        "messages.tool_calls",
        "messages.tool_calls[function].*",
        "messages.tool_calls[function].function.*",
        "max_tokens",
        "max_completion_tokens",
        "top_p",
    ),
    *same_rows("parallel_tool_calls", "stop", "stream_options", "stream_options.include_usage", "tool_choice", "tools"),
    *same_rows("temperature", "reasoning_effort"),
    *same_rows(
        "tool_choice[function].*",
        "tool_choice[function].function.name",
        "tool_choice[allowed_tools].*",
        "tool_choice[allowed_tools].allowed_tools.*",
        "tools[function].type",
        "tools[function].function",
    ),
    *same_rows("tools[function].function.name", "tools[function].function.description"),
    *same_rows("tools[function].function.parameters", covers_all=True),
    *same_rows("response_format", "response_format[text].*", "response_format[json_schema].type"),
    *same_rows("response_format[json_schema].json_schema"),
    *same_rows("response_format[json_schema].json_schema.name", "response_format[json_schema].json_schema.description"),
    *same_rows("response_format[json_schema].json_schema.strict"),
    *same_rows("response_format[json_schema].json_schema.schema", covers_all=True),
    LossRow("stop", "hint", when="whitespace alone"),
    LossRow("tools[function].function.parameters", "hint", "schema_composition", when="anyOf and the like at its root"),
    LossRow("response_format[json_schema].json_schema.schema", "hint", "schema_limits", when="bounds and patterns"),
    LossRow("response_format[json_schema].json_schema.schema", "promise", "open_schema", when="objects with any keys"),
    LossRow("messages", "hint", "reasoning_content", when="with fields that the API description lacks"),
    LossRow("temperature", "hint", when="above 1, with thinking, or for models after Claude Opus 4.6", neutral=(None,)),
    LossRow("reasoning_effort", "hint", when="for models without it"),
    LossRow("tools[function].function.strict", "hint", "strict"),
    LossRow("messages.content[image_url].image_url.detail", "hint", "detail", neutral=("auto",)),
    *hint_rows("messages.name", name="name"),
    LossRow("frequency_penalty", "hint", neutral=(0,)),
    LossRow("presence_penalty", "hint", neutral=(0,)),
    LossRow("logit_bias", "hint", neutral=({},)),
    LossRow("metadata", "hint", neutral=({},)),
    LossRow("service_tier", "hint", neutral=("auto", "default")),
    LossRow("verbosity", "hint", neutral=("medium",)),
    *hint_rows(
        "seed", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"
    ),
    *hint_rows("*.prompt_cache_breakpoint", name="prompt_cache_breakpoint"),
    *hint_rows("stream_options.include_obfuscation", name="include_obfuscation"),
    LossRow("n", "promise", when="above 1", neutral=(1,)),
    LossRow("logprobs", "promise", neutral=(False,)),
    LossRow("top_logprobs", "promise", neutral=(0,)),
    LossRow("store", "promise", neutral=(False,)),
    LossRow("modalities", "promise", neutral=(["text"],)),
    LossRow("functions", "promise", neutral=([],)),
    LossRow("function_call", "promise", neutral=("auto", "none")),
    *promise_rows("audio", "prediction", "web_search_options", "moderation"),
    *promise_rows("messages.audio", name="audio"),
    *promise_rows("messages.function_call", name="functions"),
    *promise_rows("messages.content[input_audio]", name="input_audio"),
    *promise_rows("messages.content[file].file.file_id", name="file_id"),
    *promise_rows("messages.tool_calls[custom]", "tool_choice[custom]", "tools[custom]", name="custom_tools"),
    *promise_rows("response_format[json_object]", name="json_object"),
    *promise_rows("response_format[*]", name="output_format"),
    *promise_rows("messages.content[*]", name="unknown_content"),
    *promise_rows("tools[*]", name="provider_tools"),
    LossRow("max_tokens", "hint", "max_tokens", when="above the model's limit"),
    LossRow("messages.content[image_url].image_url.url", "promise", "image_format", when="no JPEG, PNG, GIF or WebP"),
    LossRow("messages.content[file].file.file_data", "promise", "file_format", when="neither PDF nor text"),
)
"""A chat request for a Messages endpoint."""

MESSAGES_ROWS: tuple[LossRow, ...] = (
    *same_rows(
        "model", "messages", "messages.role", "messages.content", "system", "max_tokens", "stream", "temperature"
    ),
    *same_rows(
        "top_p", "thinking", "thinking[disabled].*", "thinking[enabled].type", "thinking[enabled].budget_tokens"
    ),
    *same_rows(
        "thinking[enabled]",
        "thinking[adaptive]",
        "thinking[disabled]",
        "thinking[adaptive].type",
        "output_config",
        "output_config.effort",
        "output_config.format",
    ),
    *same_rows("output_config.format[json_schema].type", "tool_choice", "tool_choice[auto].*", "tool_choice[any].*"),
    *same_rows(
        "tool_choice[tool].*",
        "tool_choice[none].*",
        "tools",
        "tools[custom].name",
        "tools[custom].description",
        "tools[custom].type",
    ),
    *same_rows("output_config.format[json_schema].schema", "tools[custom].input_schema", covers_all=True),
    *same_rows(
        "system[text].*", "*.content[text].text", "*.content[text].type", "stop_sequences", "*.content[image].type"
    ),
    *same_rows("*.content[image].source", "*.content[image].source[base64].*", "*.content[image].source[url].*"),
    *same_rows("*.content[document].type", "*.content[document].title", "*.content[document].source"),
    *same_rows("*.content[document].source[base64].*", "*.content[document].source[text].*"),
    *same_rows("*.content[document].source[content].type", "*.content[document].source[content].content"),
    *same_rows("*.content[search_result].type", "*.content[search_result].title", "*.content[search_result].source"),
    *same_rows("*.content[search_result].content", "messages.content[tool_use].id", "messages.content[tool_use].name"),
    *same_rows("messages.content[tool_use].type", "messages.content[tool_result].type"),
    *same_rows("messages.content[tool_use].input", covers_all=True),
    *same_rows("messages.content[tool_result].tool_use_id", "messages.content[tool_result].content"),
    *same_rows("messages.content[tool_result].is_error"),
    LossRow("temperature", "hint", when="for reasoning models of OpenAI"),
    LossRow("top_p", "hint", when="for reasoning models of OpenAI"),
    LossRow("thinking", "hint", when="for models without reasoning_effort"),
    *hint_rows("thinking[*]", name="thinking"),
    LossRow("effort", "hint", when="for models without reasoning_effort"),
    *hint_rows("cache_control", "metadata", "top_k", "context_management", "container", "speed", "fallbacks"),
    *hint_rows("diagnostics", "billing_policy", "fallback_credit_token", "compaction", "user_profile_id"),
    *hint_rows("*.cache_control", name="cache_control"),
    *hint_rows("thinking[enabled].display", "thinking[adaptive].display", name="thinking_display"),
    *hint_rows("messages.content[thinking]", "messages.content[redacted_thinking]", name="thinking_blocks"),
    *hint_rows("system[text].citations", "*.content[text].citations", name="citations"),
    *hint_rows("*.content[document].context", name="document_context"),
    *hint_rows("*.content[image].transformations", name="image_transformations"),
    *hint_rows("messages.content[tool_use].toolset_name", "messages.content[tool_use].caller", name="caller"),
    *hint_rows("messages.content[tool_result].toolset_name", name="caller"),
    *hint_rows("tools[custom].strict", name="strict"),
    *hint_rows("tools[custom].eager_input_streaming", name="eager_input_streaming"),
    *hint_rows("tools[custom].input_examples", name="input_examples"),
    LossRow("service_tier", "hint", neutral=("auto", "standard_only")),
    LossRow("tools[custom].defer_loading", "promise", "defer_loading", neutral=(False,)),
    LossRow("tools[custom].allowed_callers", "promise", "allowed_callers", neutral=(["direct"],)),
    LossRow("mcp_servers", "promise", neutral=([],)),
    LossRow("stop_sequences", "promise", when="more than 4"),
    LossRow("messages", "promise", "prefill", when="ending in a turn of the assistant, for models that cannot go on"),
    *promise_rows("inference_geo", "thread", "workspace_id"),
    *promise_rows("*.content[image].source[file]", "*.content[document].source[file]", name="file_id"),
    *promise_rows("*.content[document].source[url]", name="document_url"),
    *promise_rows("*.content[document].citations", "*.content[search_result].citations", name="citations_enabled"),
    *promise_rows("messages.content[container_upload]", name="container_upload"),
    *promise_rows("messages.content[server_tool_use]", "messages.content[*_tool_result]", name="server_tools"),
    *promise_rows("*.content[*]", name="unknown_content"),
    *promise_rows("tools[web_search*]", name="web_search"),
    *promise_rows("tools[web_fetch*]", name="web_fetch"),
    *promise_rows("tools[code_execution*]", name="code_execution"),
    *promise_rows("tools[tool_search*]", name="tool_search"),
    *promise_rows("tools[bash*]", "tools[text_editor*]", "tools[memory*]", "tools[computer*]", name="provider_tools"),
    *promise_rows("tools[*]", name="provider_tools"),
)
"""A Messages request for a chat endpoint."""


def top_fields(rows: Iterable[LossRow]) -> Mapping[str, LossRow]:
    """Returns the rows of the fields at the top of a request. The first row of a field decides."""
    found: dict[str, LossRow] = {}
    for row in rows:
        if not any(mark in row.path for mark in ".[*"):
            found.setdefault(row.path, row)
    return found


def note_losses(body: Mapping[str, Any], fields: Mapping[str, LossRow], whole: frozenset[str], losses: Losses) -> None:
    """Records what is lost of the fields at the top of a request. `whole`: the names of those of which nothing is."""
    if whole.issuperset(body):
        return
    for name, value in body.items():
        row = fields.get(name)
        if row is None:
            losses.promise(name)
        elif row.kind != "same" and value is not None and value not in row.neutral:
            (losses.hint if row.kind == "hint" else losses.promise)(row.name or row.path)


def whole_fields(fields: Mapping[str, LossRow]) -> frozenset[str]:
    return frozenset(name for name, row in fields.items() if row.kind == "same")


CHAT_FIELDS = top_fields(CHAT_ROWS)
MESSAGES_FIELDS = top_fields(MESSAGES_ROWS)
WHOLE_CHAT_FIELDS = whole_fields(CHAT_FIELDS)
WHOLE_MESSAGES_FIELDS = whole_fields(MESSAGES_FIELDS)


def row_of(rows: Iterable[LossRow], path: str) -> LossRow | None:
    """Returns the row that decides about a field: its own, else that of the nearest object around it which covers it;
    None if the table lacks it."""
    by_path = list(rows)
    own = _best(by_path, path)
    if own is not None:
        return own
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        for above in (".".join(parts[:length]), ".".join(parts[:length]).rpartition("[")[0]):
            row = _best(by_path, above) if above else None
            if row is not None and (row.kind != "same" or row.covers_all) and not row.when:
                return row
    return None


def _best(rows: list[LossRow], path: str) -> LossRow | None:
    exact = [row for row in rows if row.path == path]
    if exact:
        return exact[0]
    pattern = [row for row in rows if "*" in row.path and _pattern(row.path).fullmatch(path)]
    return max(pattern, key=lambda row: len(row.path), default=None)


@cache
def _pattern(path: str) -> re.Pattern[str]:
    beginning, rest = (r"(?:.*\.)?", path[2:]) if path.startswith("*.") else ("", path)
    return re.compile(beginning + re.escape(rest).replace(r"\*", "[^.]*"))


def promise_of_tool(kind: str) -> str:
    """Returns the name of the loss of a tool that the provider defines, by its type."""
    path = f"tools[{kind}]"
    row = _best([row for row in MESSAGES_ROWS if row.path.startswith("tools[")], path)
    return row.name if row is not None else "provider_tools"


def lists(kind: Literal["hint", "promise"], rows: Iterable[LossRow]) -> tuple[str, ...]:
    """Returns the names of all losses of a class, in the order of the table."""
    return tuple(dict.fromkeys(row.name or row.path for row in rows if row.kind == kind))
