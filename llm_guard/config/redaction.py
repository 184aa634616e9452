"""A config that can be displayed, or the difference between two; every secret is masked.

A value is secret if its field says `repr=False`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from llm_guard.config.fields import key_of
from llm_guard.config.models import Config
from llm_guard.config.yaml_source import KeyPath, dotted
from llm_guard.outcome import FailureKind

MASK = "***"

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Change of one key, or of a whole section."""

    key: str
    """For example `models.gpt-4.timeout.total`."""
    how: Literal["added", "removed", "changed"]
    before: str | float | bool | None
    after: str | float | bool | None
    """Both null for a whole section; masked if secret."""


@dataclass(frozen=True, slots=True)
class _Secret:
    value: object


def shown(config: Config) -> dict[str, Any]:
    """The complete config with defaults. Durations in seconds, sizes in bytes; a secret that is not set is null."""
    masked: dict[str, Any] = _masked(_tree(config))
    return masked


def shown_section(config: Config, section: KeyPath) -> Any:
    """A section like `("server",)`, or an entry like `("models", "gpt-4")`, as `shown` has it. Raises KeyError if there
    is no such entry."""
    name, *entry = section
    part = getattr(config, str(name))
    return _masked(_tree(part[entry[0]] if entry else part))


def digest(config: Config) -> str:
    """Digest that distinguishes configs, but not their secrets: it must not allow guessing one."""
    return hashlib.sha256(json.dumps(shown(config), sort_keys=True).encode()).hexdigest()[:12]


def key_changes(before: Config, after: Config) -> list[KeyChange]:
    """Changes in the order of the file. A change that models inherit is listed once, at `defaults`."""
    found = dict(_differences(_tree(before), _tree(after), ()))
    inherited = [
        path for path, change in found.items() if path[0] == "models" and _is_same(found.get(_origin(path)), change)
    ]  # fmt: skip
    return [change for path, change in found.items() if path not in inherited]


def _origin(path: KeyPath) -> KeyPath:
    """The key that is inherited: `models.X.timeout.idle` comes from `defaults.timeout.idle`."""
    return ("defaults", *path[2:])


def _is_same(one: KeyChange | None, other: KeyChange) -> bool:
    return one is not None and dataclasses.replace(one, key=other.key) == other


def _tree(value: object, *, is_secret: bool = False) -> Any:
    """Plain data, with secrets wrapped."""
    if isinstance(value, dict):
        return {str(key): _tree(member, is_secret=is_secret) for key, member in value.items()}
    if is_secret:
        return None if value is None else _Secret(value)
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        return {name: _tree(getattr(value, name), is_secret=field.repr is False) for name, field in fields}
    if dataclasses.is_dataclass(value):
        fields_of = dataclasses.fields(value)
        return {key_of(field.name): _tree(getattr(value, field.name)) for field in fields_of}
    if isinstance(value, tuple | list | frozenset | set):
        members = sorted(value) if isinstance(value, frozenset | set) else value
        return [_tree(member) for member in members]
    if isinstance(value, enum.Enum):
        return value.label if isinstance(value, FailureKind) else value.name
    return value


def _masked(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _masked(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_masked(value) for value in tree]
    return MASK if isinstance(tree, _Secret) else tree


def _differences(before: Any, after: Any, path: KeyPath) -> Iterator[tuple[KeyPath, KeyChange]]:
    if isinstance(before, list) and isinstance(after, list):
        before, after = dict(enumerate(before)), dict(enumerate(after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _differences(before.get(key, _ABSENT), after.get(key, _ABSENT), (*path, key))
    elif before is _ABSENT:
        yield path, KeyChange(dotted(path), "added", None, _leaf(after))
    elif after is _ABSENT:
        yield path, KeyChange(dotted(path), "removed", _leaf(before), None)
    elif before != after:
        yield path, KeyChange(dotted(path), "changed", _leaf(before), _leaf(after))


def _leaf(tree: Any) -> Any:
    return None if isinstance(tree, dict | list) else _masked(tree)
