"""`upstreams.X.api_keys`: several keys for one upstream.

Defines how a key is written. Which one a call is sent with is decided in `resilience.retry.key_selection`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from llm_guard.config.fields import AlsoWritten, Secret, Strict, wrong

MOST_KEYS = 64
"""Bounded, because a call that every key refuses is sent once with each."""


def _short_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", name):
        raise wrong("must have 1 to 32 letters, digits, dots, dashes and underscores")
    return name


class ApiKeyConfig(Strict):
    """A key, or `{name, key}`. The name stands for the key in logs and on the operator's pages."""

    name: Annotated[str, AfterValidator(_short_name)] | None = None
    """None: its position in the list, from 1."""
    key: Secret = Field(repr=False)
    """The provider's key."""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: object) -> object:
        return {"key": value} if isinstance(value, str) else value


def _check(keys: tuple[ApiKeyConfig, ...]) -> tuple[ApiKeyConfig, ...]:
    if len(keys) > MOST_KEYS:
        raise wrong(f"has more than {MOST_KEYS} keys")
    names = names_of(keys)
    for at, key in enumerate(keys):
        if key.key in [other.key for other in keys[:at]]:
            raise wrong(f"has the same key twice, the second time as {names[at]}")
        if names[at] in names[:at]:
            raise wrong(f"has two keys named {names[at]}")
    return keys


def names_of(keys: tuple[ApiKeyConfig, ...]) -> list[str]:
    """Name of each key."""
    return [key.name or str(position) for position, key in enumerate(keys, 1)]


ApiKeys = Annotated[
    tuple[Annotated[ApiKeyConfig, AlsoWritten({"type": "string", "minLength": 1})], ...], AfterValidator(_check)
]
