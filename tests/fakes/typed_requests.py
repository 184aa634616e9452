"""Checks requests against the types of the official SDKs, which are generated from the providers' API descriptions: no
unknown member at any depth, no missing one, and every value of its type."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

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

_DEPRECATED = frozenset({"temperature", "top_p", "top_k"})
"""Fields of Messages that the API description still has, and the SDK's types do not."""
_LISTS = (list, Iterable, Sequence)
_WRAPPERS = (typing_extensions.Required, typing_extensions.NotRequired, typing.Required, typing.NotRequired)


def problems_of(body: Mapping[str, Any]) -> list[str]:
    """Returns the problems of a request: of the Responses API if it has an input, for Messages if its model is a
    Claude, else for a chat."""
    is_stream = body.get("stream") is True
    if "input" in body:
        kind: Any = ResponseCreateParamsStreaming if is_stream else ResponseCreateParamsNonStreaming
    elif str(body.get("model", "")).startswith("claude"):
        body = {name: value for name, value in body.items() if name not in _DEPRECATED}
        kind = MessageCreateParamsStreaming if is_stream else MessageCreateParamsNonStreaming
    else:
        kind = CompletionCreateParamsStreaming if is_stream else CompletionCreateParamsNonStreaming
    return list(_problems(body, kind, ""))


@cache
def members(kind: Any) -> dict[str, Any]:
    """Returns the types of a TypedDict's members."""
    return typing_extensions.get_type_hints(kind, include_extras=False)


def plain(kind: Any) -> Any:
    """Returns a type without aliases and marks."""
    while True:
        if hasattr(kind, "__value__"):
            kind = kind.__value__
        elif typing_extensions.get_origin(kind) in (*_WRAPPERS, typing.Annotated):
            kind = typing_extensions.get_args(kind)[0]
        else:
            return kind


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Returns the members of a union; a type alone for any other."""
    kind = plain(kind)
    if typing_extensions.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(one for part in typing_extensions.get_args(kind) for one in alternatives(part))
    return (kind,)


def _problems(value: Any, kind: Any, place: str) -> Iterator[str]:
    found: list[str] = []
    for one in alternatives(kind):
        here = list(_problems_with(value, one, place))
        if not here:
            return
        # The alternative with the deepest problem is the one that was meant.
        if not found or max(map(len, here)) > max(map(len, found)):
            found = here
    yield from found


def _problems_with(value: Any, kind: Any, place: str) -> Iterator[str]:
    origin = typing_extensions.get_origin(kind)
    if kind in (Any, object):
        return
    if kind is None or kind is type(None):
        yield from () if value is None else (f"{place} is not null",)
    elif origin is typing_extensions.Literal or origin is typing.Literal:
        if value not in typing_extensions.get_args(kind):
            yield f"{place} is {value!r}"
    elif typing_extensions.is_typeddict(kind):
        yield from _problems_of_members(value, kind, place)
    elif origin is dict or origin is Mapping:
        yield from () if isinstance(value, dict) else (f"{place} is no object",)
    elif origin in _LISTS or "SequenceNotStr" in str(kind):
        if not isinstance(value, list):
            yield f"{place} is no list"
        else:
            inner = typing_extensions.get_args(kind)[0]
            for index, item in enumerate(value):
                yield from _problems(item, inner, f"{place}[{index}]")
    elif kind is float:
        yield from () if isinstance(value, int | float) and not isinstance(value, bool) else (f"{place} is no number",)
    elif kind in (str, bool, int):
        yield from () if type(value) is kind else (f"{place} is no {kind.__name__}",)
    else:
        yield f"{place} cannot be checked: {kind}"


def _problems_of_members(value: Any, kind: Any, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place} is no object"
        return
    known = members(kind)
    config = getattr(kind, "__pydantic_config__", {})
    for name, item in value.items():
        if name in known:
            yield from _problems(item, known[name], f"{place}.{name}")
        elif config.get("extra") != "allow":
            yield f"{place}.{name} is unknown"
    yield from (f"{place}.{name} is missing" for name in kind.__required_keys__ if name not in value)
