"""Each field of the request formats has a class: the formats are read from the types of the official SDKs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typing_extensions
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)

from llm_guard.dialects.translation import endpoints, loss_table
from llm_guard.dialects.translation.loss_table import CHAT_ROWS, MESSAGES_ROWS, LossRow, row_of
from llm_guard.dialects.translation.responses_loss_table import RESPONSES_ROWS, loss_of_type
from tests.fakes.typed_requests import alternatives, members

PACKAGE = Path(endpoints.__file__).parent
REQUESTS = {
    "chat": (CHAT_ROWS, (CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)),
    "messages": (MESSAGES_ROWS, (MessageCreateParamsNonStreaming, MessageCreateParamsStreaming)),
    "responses": (RESPONSES_ROWS, (ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming)),
}
LOSS_NAMES = {row.name or row.path for rows, _ in REQUESTS.values() for row in rows if row.kind != "same"}
ROLES = ("messages",)
"""Fields whose objects are told apart by `role`: their members are the same for all roles here."""


def fields(rows: tuple[LossRow, ...], kind: Any, path: str, seen: frozenset[Any]) -> Iterator[str]:
    """Yields the path of each field below a type, except below those that a row covers."""
    for one in alternatives(kind):
        if typing_extensions.is_typeddict(one):
            if one in seen:
                continue
            named = members(one)
            yield from _members(rows, named, f"{path}{_mark(named, path)}", seen | {one})
        elif isinstance(one, type) and hasattr(one, "model_fields"):
            continue  # a response's block, which the SDK accepts as well
        else:
            inner = typing_extensions.get_args(one)
            for part in inner[:1] if len(inner) == 1 else ():
                if not isinstance(part, str | int | bool):
                    yield from fields(rows, part, path, seen)


def _members(rows: tuple[LossRow, ...], named: dict[str, Any], path: str, seen: frozenset[Any]) -> Iterator[str]:
    for name, kind in named.items():
        place = f"{path}.{name}" if path else name
        yield place
        row = row_of(rows, place)
        if row is None or (row.kind == "same" and not row.covers_all) or row.when:
            yield from fields(rows, kind, place, seen)


def _mark(named: dict[str, Any], path: str) -> str:
    """Returns the type of an object in brackets, if it has one."""
    kind = alternatives(named["type"]) if "type" in named and path not in ROLES else ()
    literals = [one for part in kind for one in typing_extensions.get_args(part) if isinstance(one, str)]
    return f"[{literals[0]}]" if literals else ""


@pytest.mark.parametrize("name", REQUESTS)
def test_each_field_has_a_class(name: str) -> None:
    rows, kinds = REQUESTS[name]
    found = list(dict.fromkeys(path for kind in kinds for path in fields(rows, kind, "", frozenset())))
    assert len(found) > 90
    assert [path for path in found if row_of(rows, path) is None] == []


@pytest.mark.parametrize(("path", "kind", "name"), [
    ("seed", "hint", "seed"), ("n", "promise", ""), ("tools[custom].custom.name", "promise", "custom_tools"),
    ("messages.content[input_audio].input_audio.data", "promise", "input_audio"),
    ("messages.content[text].prompt_cache_breakpoint.mode", "hint", "prompt_cache_breakpoint"),
    ("response_format[json_schema].json_schema.schema.anything", "same", ""), ("zzz", None, ""),
])  # fmt: skip
def test_row_of_a_field_is_its_own_or_that_of_what_is_around_it(path: str, kind: str | None, name: str) -> None:
    row = row_of(CHAT_ROWS, path)
    assert (row.kind if row else None) == kind
    assert row is None or row.name in (name, "")


def test_row_of_a_message_covers_all_provider_tools() -> None:
    row = row_of(MESSAGES_ROWS, "tools[web_search_20260318].user_location[approximate].city")
    assert row is not None
    assert row.name == "web_search"
    assert loss_table.promise_of_tool("web_fetch_2") == "web_fetch"
    assert loss_table.promise_of_tool("future_1") == "provider_tools"


@pytest.mark.parametrize(("path", "kind", "name"), [
    ("input[web_search_call].action[search].query", "promise", "web_search"),
    ("input[reasoning].id", "hint", "reasoning_items"),
    ("input[function_call].caller[direct].type", "hint", "caller"),
    ("tools[local_shell].type", "promise", "local_shell"),
    ("input[message].content[input_text].prompt_cache_breakpoint.ttl", "hint", "prompt_cache_breakpoint"),
    ("tools[custom].format[grammar].syntax", "hint", "tool_grammar"),
    ("input[program].code", "promise", "unknown_items"),
    ("tools[function].parameters.properties", "same", ""), ("store", "promise", ""), ("zzz", None, ""),
])  # fmt: skip
def test_row_of_a_field_of_a_responses_request(path: str, kind: str | None, name: str) -> None:
    row = row_of(RESPONSES_ROWS, path)
    assert (row.kind if row else None) == kind
    assert row is None or row.name in (name, path)


def test_tools_and_items_that_openai_defines_have_one_name() -> None:
    kinds = ("web_search_preview_2025_03_11", "mcp_list_tools", "local_shell_call_output", "shell", "shellfish")
    found = [loss_of_type(kind, "other") for kind in kinds]
    assert found == ["web_search", "mcp", "local_shell", "shell", "other"]


def test_each_name_that_the_code_records_is_in_the_table() -> None:
    recorded = {name for path in PACKAGE.glob("*.py") for name in _recorded(path)}
    assert len(recorded) > 25
    assert recorded - LOSS_NAMES == set()


def _recorded(path: Path) -> Iterator[str]:
    """Yields the literal names in calls of `hint` and `promise`, and in the tables of names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("hint", "promise")
        ):
            parts = [node.args[0]] if node.args else []
            if parts and isinstance(parts[0], ast.IfExp):
                parts = [parts[0].body, parts[0].orelse]
            yield from (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(("_NAMES", "_UNKNOWN")):
            values = node.value.values if isinstance(node.value, ast.Dict) else [node.value]
            yield from (value.value for value in values if isinstance(value, ast.Constant))  # type: ignore[misc]


def test_lists_name_each_loss_once() -> None:
    hints, promises = loss_table.lists("hint", CHAT_ROWS), loss_table.lists("promise", CHAT_ROWS)
    assert len(set(hints)) == len(hints)
    assert {"seed", "detail"} < set(hints)
    assert {"n", "custom_tools"} < set(promises)
