"""The configuration reference: every key of the config, with its type, its default and its meaning."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from llm_guard.admin.http.schema_docs import yaml_texts
from llm_guard.config.alerts import WebhookRate
from llm_guard.config.fields import Port, key_of
from llm_guard.config.models import Config, Rules
from llm_guard.outcome import FailureKind
from llm_guard.resilience import units

_REQUIRED = object()
_COMPUTED = object()
"""Default that depends on other keys."""
_TYPES: tuple[tuple[object, str], ...] = (
    (units.Seconds, "duration"),
    (units.Pause, "duration or `0s`"),
    (units.OptionalSeconds, "duration or null"),
    (units.Size, "size"),
    (units.OptionalSize, "size or null"),
    (units.Ratio, "number from 0 to 1"),
    (units.Count, "whole number, at least 1"),
    (units.OptionalCount, "whole number, at least 1, or null"),
    (units.Spread, "number from 0 to 1, `full`, `equal` or `decorrelated`"),
    (units.Factor, "number, at least 1"),
    (units.Rate, "number, at least 0"),
    (units.Concurrency, "whole number, `adaptive` or null"),
    (Port, "port"),
    (WebhookRate, "rate, such as `30/m`"),
)
_PLAIN = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text", FailureKind: "failure kind"}
_DURATIONS = (("h", 3600), ("m", 60), ("s", 1))
_SIZES = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


@dataclass(frozen=True, slots=True)
class Key:
    """One key, or a section with keys below it."""

    path: str
    """For example `server.max_body`; `NAME` for a name that users choose, `[]` for an item of a list."""
    type: str
    default: str | None
    """None: the key is required."""
    text: str
    is_section: bool


def all_keys() -> Iterator[Key]:
    """Yields all keys in the order of the file. Those that a model may set too are listed once, below `defaults`."""
    yield from _keys_of(Config, "", _Defaults(Config, None))


def page() -> str:
    """Returns the reference as Markdown: a heading for each section, and an entry for each key."""
    return "\n".join(_section(key) if key.is_section else _entry(key) for key in all_keys())


def _section(key: Key) -> str:
    level = "##" if "." not in key.path else "###"
    default = f"\n\nDefault: {key.default}." if key.default else ""
    return f"\n{level} {key.path} {{ #{_anchor(key.path)} }}\n\n{key.text}{default}\n"


def _entry(key: Key) -> str:
    default = "required" if key.default is None else f"default {key.default}"
    name = f'<span id="{_anchor(key.path)}">`{key.path}`</span>'
    return f"{name}\n:   <small>{key.type} · {default}</small>\n\n    {key.text}\n"


def _anchor(path: str) -> str:
    return path.replace("[]", "")


class _Defaults:
    """Defaults of a class's fields: those of an instance, where the section that holds it has one."""

    def __init__(self, kind: type, instance: object | None) -> None:
        self._instance = instance
        self._fields: dict[str, FieldInfo | dataclasses.Field[Any]] = (
            dict(kind.model_fields)
            if issubclass(kind, BaseModel)
            else {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # a dataclass
        )

    @property
    def names(self) -> Iterable[str]:
        """Names of the fields, in their order."""
        return self._fields

    def of(self, name: str) -> object:
        if self._instance is not None:
            return getattr(self._instance, name)
        field = self._fields[name]
        if isinstance(field, FieldInfo):
            if field.is_required():
                return _REQUIRED
            if field.default_factory_takes_validated_data:
                return _COMPUTED
            return field.get_default(call_default_factory=True)
        if field.default is not dataclasses.MISSING:
            return field.default
        return _REQUIRED if field.default_factory is dataclasses.MISSING else field.default_factory()


def _keys_of(kind: type, prefix: str, defaults: _Defaults) -> Iterator[Key]:
    """Yields the keys of a section, and then the sections in it."""
    hints, texts = typing.get_type_hints(kind, include_extras=True), yaml_texts(kind)
    sections = []
    for name in defaults.names:
        if prefix == "models.NAME." and name in Rules.model_fields:
            continue
        path, hint, default, text = prefix + key_of(name), hints[name], defaults.of(name), texts.get(name, "")
        inner, suffix = _inner(hint)
        if inner is None:
            yield Key(path, _type(hint), _value(default, hint), text, is_section=False)
        else:
            sections.append((path, hint, default, text, inner, suffix))
    for path, hint, default, text, inner, suffix in sections:
        is_whole = isinstance(default, inner)
        about = "\n\n".join(dict.fromkeys(part for part in (text, yaml_texts(inner)[""]) if part))
        yield Key(path, _type(hint), None if is_whole else _value(default, hint), about, is_section=True)
        yield from _keys_of(inner, f"{path}{suffix}.", _Defaults(inner, default if is_whole else None))


def _inner(hint: object) -> tuple[type | None, str]:
    """Returns the settings class in a type, and what stands for a name or a position in the path: `.NAME`, `[]`."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if isinstance(hint, type) and (issubclass(hint, BaseModel) or dataclasses.is_dataclass(hint)):
        return hint, ""
    if origin is dict:
        return _inner(arguments[1])[0], ".NAME"
    if origin is tuple:
        return _inner(arguments[0])[0], "[]"
    if origin in (typing.Annotated, types.UnionType, typing.Union):
        found = [pair for each in arguments if (pair := _inner(each))[0] is not None]
        return found[0] if found else (None, "")
    return None, ""


def _type(hint: object) -> str:
    for kind, name in _TYPES:
        if hint == kind:
            return name
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return " or ".join(filter(None, [", ".join(f"`{each}`" for each in arguments[:-1]), f"`{arguments[-1]}`"]))
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if each is type(None) else _type(each) for each in arguments)
    if origin in (tuple, frozenset):
        return "list"
    if origin is not None:
        return "mapping"
    return _PLAIN.get(hint, "section") if isinstance(hint, type) else "text"


def _value(value: object, hint: object) -> str | None:
    """Returns a default as it is written in the file; None: the key is required."""
    if value is _REQUIRED:
        return None
    if value is _COMPUTED:
        return "as described"
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float) and any(hint == kind for kind in (units.Seconds, units.Pause)):
        return f"`{_duration(value)}`"
    if isinstance(value, float) and hint == WebhookRate:
        return f"`{60 * value:g}/m`"
    if isinstance(value, int) and hint == units.Size:
        return f"`{_size(value)}`"
    if isinstance(value, float | int):
        return f"`{value:g}`"
    if isinstance(value, tuple | frozenset | dict | types.MappingProxyType):
        inside = ", ".join(map(str, value))
        return f"`{{{inside}}}`" if isinstance(value, dict) else f"`[{inside}]`"
    return f"`{value}`"


def _duration(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit, length in _DURATIONS:
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def _size(count: int) -> str:
    for unit, length in _SIZES:
        if count >= length and count % length == 0:
            return f"{count // length}{unit}"
    return str(count)
