"""The table of losses of Responses requests. All that is run by the provider, or stored there, is a promise."""

from __future__ import annotations

from llm_guard.dialects.translation.loss_table import (
    LossRow,
    hint_rows,
    promise_rows,
    same_rows,
    top_fields,
    whole_fields,
)

_CONTENT = ("input[message].content", "input[function_call_output].output", "input[custom_tool_call_output].output")
_CALLS = ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
_HOSTED = (
    "web_search", "file_search", "code_interpreter", "image_generation", "computer", "mcp", "local_shell", "shell",
    "apply_patch", "tool_search",
)  # fmt: skip
"""Tools that OpenAI defines. Their types, and those of their items, begin with these names."""
_TOOL_MEMBERS = "tools[function]", "tools[custom]", "tools[namespace].tools[function]", "tools[namespace].tools[custom]"


def _content_rows(content: str) -> tuple[LossRow, ...]:
    return (
        *same_rows(content, f"{content}[input_text].type", f"{content}[input_text].text"),
        *same_rows(f"{content}[input_image].type"),
        *same_rows(f"{content}[input_image].image_url", f"{content}[input_file].type"),
        *same_rows(f"{content}[input_file].file_data", f"{content}[input_file].filename"),
        LossRow(f"{content}[input_image].detail", "hint", "detail", neutral=("auto",)),
        *hint_rows(f"{content}[input_file].detail", name="detail"),
        *promise_rows(f"{content}[input_image].file_id", f"{content}[input_file].file_id", name="file_id"),
        *promise_rows(f"{content}[input_file].file_url", name="document_url"),
        *promise_rows(f"{content}[*]", name="unknown_content"),
    )


def _call_rows(item: str) -> tuple[LossRow, ...]:
    members = ("type", "id", "call_id", "name", "namespace", "status", "arguments", "input", "output")
    return (
        *same_rows(*(f"input[{item}].{member}" for member in members)),
        *hint_rows(f"input[{item}].caller", f"input[{item}].async", name="caller"),
    )


def _hosted_rows(name: str) -> tuple[LossRow, ...]:
    return promise_rows(f"tools[{name}*]", f"tool_choice[{name}*]", f"input[{name}_*]", name=name)


def _tool_rows(tool: str) -> tuple[LossRow, ...]:
    return (
        *same_rows(f"{tool}.type", f"{tool}.name", f"{tool}.description"),
        LossRow(f"{tool}.async", "promise", "async_tools", neutral=(False,)),
        LossRow(f"{tool}.defer_loading", "promise", "defer_loading", neutral=(False,)),
        LossRow(f"{tool}.allowed_callers", "promise", "allowed_callers", neutral=(["direct"],)),
        *same_rows(f"{tool}.parameters", covers_all=True),
        *hint_rows(f"{tool}.strict", name="strict"),
        *hint_rows(f"{tool}.output_schema", name="output_schema"),
        *same_rows(f"{tool}.format", f"{tool}.format[text].type"),
        *hint_rows(f"{tool}.format[grammar]", name="tool_grammar"),
    )


RESPONSES_ROWS: tuple[LossRow, ...] = (
    *same_rows("model", "input", "instructions", "stream", "stream_options", "max_output_tokens", "temperature"),
    *same_rows("top_p", "parallel_tool_calls", "reasoning", "reasoning.effort", "text", "tools", "tool_choice"),
    *same_rows("input[message].role", "input[message].type", "input[message].status", "input[message].id"),
    *same_rows("input[message].content[output_text].type", "input[message].content[output_text].text"),
    *same_rows("input[message].content[refusal].*"),
    *(row for content in _CONTENT for row in _content_rows(content)),
    *(row for item in _CALLS for row in _call_rows(item)),
    *same_rows("text.format", "text.format[text].*", "text.format[json_schema].*"),
    *same_rows("text.format[json_schema].schema", covers_all=True),
    *same_rows("tool_choice[function].*", "tool_choice[custom].*", "tool_choice[allowed_tools].*"),
    *same_rows("tools[namespace].type", "tools[namespace].name", "tools[namespace].description"),
    *same_rows("tools[namespace].tools"),
    *(row for tool in _TOOL_MEMBERS for row in _tool_rows(tool)),
    LossRow("tools[function].parameters", "hint", "schema_composition", when="anyOf and the like at its root"),
    LossRow("text.format[json_schema].schema", "hint", "schema_limits", when="bounds and patterns, for Messages"),
    LossRow("text.format[json_schema].schema", "promise", "open_schema", when="objects with any keys, for Messages"),
    LossRow("max_output_tokens", "hint", "max_tokens", when="above the model's limit"),
    LossRow("temperature", "hint", when="above 1, with thinking, or for models without it"),
    LossRow("top_p", "hint", when="for models without it"),
    LossRow("reasoning.effort", "hint", "reasoning_effort", when="for Claude models without it"),
    LossRow("reasoning.effort", "hint", "effort", when="for other models without it"),
    LossRow("metadata", "hint", neutral=({},)),
    LossRow("service_tier", "hint", neutral=("auto", "default")),
    LossRow("truncation", "hint", neutral=("disabled",)),
    LossRow("include", "hint", neutral=([],)),
    LossRow("include", "promise", "logprobs", when="message.output_text.logprobs"),
    LossRow("context_management", "hint", neutral=([],)),
    *hint_rows("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
    *hint_rows("max_tool_calls", "access_programs", "image", "client_metadata"),
    *hint_rows("stream_options.include_obfuscation", name="include_obfuscation"),
    *hint_rows("reasoning.summary", "reasoning.generate_summary", name="reasoning_summary"),
    *hint_rows("reasoning.mode", "reasoning.context", name="reasoning_mode"),
    LossRow("text.verbosity", "hint", "verbosity", neutral=("medium",)),
    *hint_rows("*.prompt_cache_breakpoint", name="prompt_cache_breakpoint"),
    *hint_rows("input[reasoning]", name="reasoning_items"),
    *hint_rows("input[message].phase", name="phase"),
    *hint_rows("input[message].content[output_text].annotations", name="annotations"),
    *hint_rows("input[message].content[output_text].logprobs", name="annotations"),
    LossRow("store", "promise", neutral=(False,)),
    LossRow("background", "promise", neutral=(False,)),
    LossRow("top_logprobs", "promise", neutral=(0,)),
    *promise_rows("previous_response_id", "conversation", "prompt", "moderation"),
    *promise_rows("text.format[json_object]", name="json_object"),
    *promise_rows("text.format[*]", name="output_format"),
    *promise_rows("input[item_reference]", name="item_reference"),
    *promise_rows("input[compaction*]", name="compaction"),
    *(row for name in _HOSTED for row in _hosted_rows(name)),
    *promise_rows("input[*]", name="unknown_items"),
    *promise_rows("tools[*]", "tool_choice[*]", name="provider_tools"),
    LossRow("input[message].content[input_image].image_url", "promise", "image_format", when="no JPEG, PNG, GIF, WebP"),
    LossRow("input[message].content[input_image]", "promise", "attachments", when="not of the user"),
    LossRow("input[message].content[input_file]", "promise", "attachments", when="not of the user"),
    LossRow("input[message].content[input_file].file_data", "promise", "file_format", when="neither PDF nor text"),
)
"""A Responses request for a Messages or a chat endpoint."""

RESPONSES_FIELDS = top_fields(RESPONSES_ROWS)
WHOLE_RESPONSES_FIELDS = whole_fields(RESPONSES_FIELDS)


def loss_of_type(kind: str, other: str) -> str:
    """Returns the name of the loss of a tool or an item that OpenAI defines, by its type; `other` for any else."""
    return next((name for name in _HOSTED if kind == name or kind.startswith(f"{name}_")), other)
