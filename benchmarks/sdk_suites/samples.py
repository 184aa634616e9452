"""Example values for the types with which an SDK describes its API's answers.

Every field gets a value, optional ones too, so that an answer shows the client all that the API may send.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import pydantic
import typing_extensions

JsonValue = Any
"""A value that json.dumps accepts."""

_FULL_DEPTH = 6
"""Nested types below which optional fields and list elements are left out: some types contain themselves."""
_SCALARS: dict[object, JsonValue] = {
    str: "string",
    pydantic.StrictStr: "string",
    bool: True,
    int: 1,
    float: 1.5,
    datetime: "2026-01-02T03:04:05Z",
    date: "2026-01-02",
    bytes: "AAAA",
    object: {"name": "value"},
    Any: {"name": "value"},
    None: None,
    types.NoneType: None,
}
_UNIONS = (Union, types.UnionType)
_ALIAS = typing_extensions.TypeAliasType


class NoSampleError(Exception):
    """A type for which there is no example; the message is the type."""


def sample(annotation: Any, depth: int = 0) -> JsonValue:
    """An example of the type as JSON; raises NoSampleError."""
    if isinstance(annotation, _ALIAS):
        return sample(annotation.__value__, depth)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if isinstance(origin, _ALIAS):  # a generic alias
        return sample(origin.__value__, depth)
    if origin is Annotated or origin is typing.ClassVar:
        return sample(arguments[0], depth)
    if origin is Literal:
        return arguments[0]
    if origin in _UNIONS:
        return _union(arguments, depth)
    if isinstance(annotation, TypeVar):
        return sample(annotation.__bound__ or object, depth)
    if isinstance(origin, type):
        return _instance(origin, annotation, arguments, depth)
    raise NoSampleError(repr(annotation))


def events(annotation: Any) -> list[JsonValue]:
    """The events of a model's successful stream; for other streams one event of each kind, including errors."""
    found = {_kind(variant): variant for variant in _variants(annotation)}
    kinds = next((course for course in _COURSES if found.keys() >= set(course)), tuple(found))
    return [sample(found[kind]) for kind in kinds]


_COURSES = (
    (
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ),
    ("response.created", "response.output_text.delta", "response.completed"),
    ("transcript.text.delta", "transcript.text.done"),
    ("speech.audio.delta", "speech.audio.done"),
    ("image_generation.partial_image", "image_generation.completed"),
    ("image_edit.partial_image", "image_edit.completed"),
    ("thread.run.created", "thread.message.delta", "thread.run.completed"),
)


def _variants(annotation: Any) -> Iterable[Any]:
    """The members of a union, nested ones too."""
    if isinstance(annotation, _ALIAS):
        yield from _variants(annotation.__value__)
    elif get_origin(annotation) is Annotated:
        yield from _variants(get_args(annotation)[0])
    elif get_origin(annotation) in _UNIONS:
        for argument in get_args(annotation):
            yield from _variants(argument)
    else:
        yield annotation


def _kind(variant: Any) -> str:
    """An event's `type`, or its counterpart in a thread's event."""
    fields = getattr(variant, "model_fields", {})
    for name in ("type", "event"):
        values = get_args(fields[name].annotation) if name in fields else ()
        if values:
            return str(values[0])
    return ""


def _union(arguments: Sequence[Any], depth: int) -> JsonValue:
    present = [argument for argument in arguments if argument is not types.NoneType]
    if len(present) < len(arguments) and depth > _FULL_DEPTH:
        return None
    return sample(present[0], depth)


def _instance(origin: type, annotation: Any, arguments: Sequence[Any], depth: int) -> JsonValue:
    if issubclass(origin, pydantic.BaseModel):
        return _model(origin if not isinstance(annotation, type) else annotation, depth)
    if issubclass(origin, Mapping):
        return {"name": sample(arguments[1], depth + 1)} if arguments and depth <= _FULL_DEPTH else {}
    if issubclass(origin, Iterable):
        return [sample(arguments[0], depth + 1)] if arguments and depth <= _FULL_DEPTH else []
    raise NoSampleError(repr(annotation))


def _model(model: type[pydantic.BaseModel], depth: int) -> JsonValue:
    """An object with every field, or beyond the full depth with the required ones."""
    return {
        field.alias or name: sample(field.annotation, depth + 1)
        for name, field in model.model_fields.items()
        if depth <= _FULL_DEPTH or field.is_required()
    }
