"""The effective value of each key, and the line of the config file that sets it.

A key that neither its own section nor `defaults` sets has its built-in default.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llm_guard.config.loader import config_in, text_in
from llm_guard.config.models import Config, Rules
from llm_guard.config.redaction import shown_section
from llm_guard.config.yaml_source import ConfigError, Document, KeyPath, dotted, read_document

KeyOrigin = Literal["file", "default", "other"]
_RULES = frozenset(Rules.model_fields)
_UNSET = object()


@dataclass(frozen=True, slots=True)
class EffectiveKey:
    """One key of the running config."""

    key: str
    """For example `models.gpt-4.timeout.total`."""
    value: Any
    """Durations in seconds, sizes in bytes; a secret is masked."""
    origin: KeyOrigin
    """file: a line sets it. default: built in. other: the file as it is now has another value."""
    set_by: str | None = None
    """The key in the file that sets it, for example `defaults.timeout.total`; None: no line does."""
    line: int | None = None
    """Line of `set_by`, from 1."""


@dataclass(frozen=True, slots=True)
class EffectiveSections:
    """Keys of the running config, in the order of the config classes."""

    keys: tuple[EffectiveKey, ...]
    problem: str | None
    """Why no lines are known; None: they are."""


def effective_keys(
    config: Config, sections: Iterable[KeyPath], path: Path | None, env: Mapping[str, str] = os.environ
) -> EffectiveSections:
    """Returns all keys of these sections of the running config. Reads its file again, `path`; None: it did not come
    from one. Raises KeyError for an entry that does not exist."""
    sections = tuple(sections)
    leaves = [leaf for section in sections for leaf in _leaves(shown_section(config, section), section)]
    if path is None:
        return _without_lines(leaves, "the config did not come from a file")
    try:
        document = read_document(text_in(path), str(path), env)
        present = _values(config_in(document), sections)
    except ConfigError as error:
        return _without_lines(leaves, f"the file is invalid now: {error.problems[0]}")
    keys = (_effective(document, key, value, present.get(key, _UNSET) == value) for key, value in leaves)
    return EffectiveSections(tuple(keys), None)


def _values(config: Config, sections: Iterable[KeyPath]) -> dict[KeyPath, Any]:
    found: dict[KeyPath, Any] = {}
    for section in sections:
        with contextlib.suppress(KeyError):  # an entry that the file as it is now lacks
            found |= _leaves(shown_section(config, section), section)
    return found


def _without_lines(leaves: Iterable[tuple[KeyPath, Any]], problem: str) -> EffectiveSections:
    return EffectiveSections(tuple(EffectiveKey(dotted(key), value, "other") for key, value in leaves), problem)


def _effective(document: Document, path: KeyPath, value: object, is_of_file: bool) -> EffectiveKey:
    if not is_of_file:
        return EffectiveKey(dotted(path), value, "other")
    place = _setting(document, path)
    if place is None:
        return EffectiveKey(dotted(path), value, "default")
    return EffectiveKey(dotted(path), value, "file", dotted(place), document.lines[place])


def _setting(document: Document, path: KeyPath) -> KeyPath | None:
    """Returns the key of the file that sets the value: its own, a shorter one that sets the whole section by one value,
    or that of `defaults`."""
    own = _nearest(document, path)
    if own is None and path[0] == "models" and path[2] in _RULES:
        return _nearest(document, ("defaults", *path[2:]))
    return own


def _nearest(document: Document, path: KeyPath) -> KeyPath | None:
    place = path
    while place and place not in document.lines:
        place = place[:-1]
    is_section = place != path and isinstance(_value_at(document, place), dict)
    return None if is_section or not place else place


def _value_at(document: Document, path: KeyPath) -> Any:
    value: Any = document.data
    for step in path:
        value = value[step]
    return value


def _leaves(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yields the keys and their values. A list is one value, unless its members are sections."""
    if isinstance(tree, dict) and tree:
        members: Iterable[tuple[str | int, Any]] = tree.items()
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
        members = enumerate(tree)
    else:
        yield path, tree
        return
    for key, member in members:
        yield from _leaves(member, (*path, key))
