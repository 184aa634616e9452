"""Checks of the items of a list in a JSON response that a msgspec type cannot express.

The schemas in `dialects.response_schemas` define the conditions; `proxy.response.schema_validation` reads the response.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from llm_guard.dialects.response_schemas import Items

NULL = msgspec.Raw(b"null")
"""The value of a member that is absent."""
_NOTHING = (b"[]", b"{}", b'""', b"null")
_LONGEST_NOTHING = 4
_VECTOR = re.compile(rb'\s*(?:"[^"]|\[\s*(?:\[|[-+.0-9]|NaN|Infinity))')
"""Matches the beginning of a non-empty text, or of a list of numbers or of lists: some servers return one vector per
token."""


class Object(msgspec.Struct, gc=False):
    """Any JSON object; none of its members is kept."""


class ChatMessage(msgspec.Struct, gc=False):
    """A chat message, as far as is needed to recognise one: Gemini returns only the role when reasoning has used up all
    tokens, and other servers leave the role out."""

    role: Any = None
    content: msgspec.Raw = NULL
    tool_calls: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL
    refusal: msgspec.Raw = NULL
    reasoning_content: msgspec.Raw = NULL
    reasoning: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL

    def says_nothing(self) -> bool:
        """Returns whether it has no output of a model."""
        spoken = (self.content, self.refusal, self.audio, self.reasoning, self.reasoning_content)
        return all(map(_is_null, (*spoken, self.tool_calls, self.function_call)))


class ItemCheck:
    """The checks of one list."""

    def __init__(self, items: Items) -> None:
        self._one_of = items.one_of
        self._vectors = [name for name, member in items.members.items() if member == "vector"]
        self._messages = [name for name, member in items.members.items() if member == "message"]
        self._needed = dict(items.needed)
        self._per_input = items.per_input

    @property
    def is_needed(self) -> bool:
        """True if the list has any condition."""
        return bool(self._one_of or self._vectors or self._messages or self._needed or self._per_input)

    def holds(self, items: Sequence[Any], inputs: int) -> bool:
        """Returns whether each item is valid, and there are enough for this number of inputs; 0: unknown."""
        if self._per_input and not self._has_enough(items, inputs):
            return False
        for item in items:  # noqa: SIM110  # a generator costs more than the check
            if not self._is_good(item):
                return False
        return True

    def _has_enough(self, items: Sequence[Any], inputs: int) -> bool:
        if self._per_input == "some":
            return len(items) >= inputs
        return (not inputs or len(items) == inputs) and _are_numbered([item.index for item in items], inputs)

    def _is_good(self, item: Any) -> bool:
        if self._one_of and _has_none_of(item, self._one_of):
            return False
        if self._needed and _is_null(getattr(item, self._needed.get(item.type, "type"))):
            return False
        for name in self._messages:
            message = getattr(item, name)
            if message.role is None and message.says_nothing():
                return False
        return not self._vectors or _has_vectors(item, self._vectors)


def _has_none_of(item: Any, names: Sequence[str]) -> bool:
    return all(_is_nothing(getattr(item, name)) for name in names)


def _has_vectors(item: Any, names: Sequence[str]) -> bool:
    return all(_is_vector(getattr(item, name)) for name in names)


def _are_numbered(indexes: list[Any], inputs: int) -> bool:
    """Returns whether items are numbered from 0 on, in any order. Gemini leaves out the 0; other servers write 0 for
    each item, in order. The only vector of the only input may have any number: it cannot be another input's."""
    if not any(indexes):
        return True
    numbers = sorted(map(_number, indexes))
    return numbers == list(range(len(numbers))) or (inputs == 1 == len(numbers) and numbers[0] > 0)


def _number(index: Any) -> int:
    return index if type(index) is int else 0 if index is None else -1


def _is_null(value: Any) -> bool:
    return type(value) is msgspec.Raw and bytes(memoryview(value)[:_LONGEST_NOTHING]) == b"null"


def _is_nothing(raw: msgspec.Raw) -> bool:
    value = memoryview(raw)
    return len(value) <= _LONGEST_NOTHING and bytes(value) in _NOTHING


def _is_vector(raw: msgspec.Raw) -> bool:
    """Returns whether JSON is a list of numbers or a non-empty text."""
    return _VECTOR.match(memoryview(raw)) is not None
