"""Reads a unary JSON response once: whether it is complete, matches its endpoint's schema, and reports an error.

The schemas are in `dialects.response_schemas`; `resilience.classification.invalid_response` decides what follows from a
fault. msgspec skips what a schema does not name, so that a response of 16 MiB of embeddings creates no objects; the
checks of items are conditions that a msgspec type cannot express.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeGuard

import msgspec

from llm_guard.dialects.response_schemas import Items, Member, ResponseSchema, has_ended_badly, is_error_answer, reports

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


SchemaFault = Literal["cut", "empty", "shape", "text"]


class Fields(msgspec.Struct, kw_only=True, gc=False):
    """The fields that are read from every JSON response. JSON has no cycles: the garbage collector need not know it."""

    usage: Any = None
    error: Any = None
    object: Any = None
    id: Any = None
    type: Any = None


class ResponseValidator:
    """Reads responses with one schema; None: JSON with no known schema."""

    def __init__(self, shape: ResponseSchema | None) -> None:
        self.shape = shape
        self.is_json = shape is not None and shape.is_json
        members = {} if shape is None else shape.members
        lists = [(name, member) for name, member in members.items() if isinstance(member, Items)]
        self._checks = [(name, ItemCheck(items)) for name, items in lists if ItemCheck(items).is_needed]
        """Checks of the lists with conditions that a type cannot express."""
        self._breaking = [name for name, items in lists if items.may_break_off]
        self._is_resource = shape is None or shape.carries_error
        self._decode = msgspec.json.Decoder(Fields if shape is None else _struct_of(shape)).decode
        self._otherwise = (
            ResponseValidator(replace(shape, members=shape.otherwise, otherwise={})) if _has_other(shape) else None
        )
        self._bare_list = b'{"%b":%%b}' % shape.list_of.encode() if shape is not None and shape.list_of else b""

    def read(self, body: bytes, inputs: int = 0) -> Fields | SchemaFault:
        """Returns the fields of a response with this schema, whether a result or an error, or what is wrong with it.

        `inputs`: number of inputs of the request, each with a result of its own; 0: unknown.
        """
        if self._bare_list and body.lstrip()[:1] == b"[":
            body = self._bare_list % body
        try:
            fields = self._decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            odd = self._read_odd(body, inputs)
            return odd if odd != "shape" or self._otherwise is None else self._otherwise.read(body, inputs)
        except RecursionError:
            return Fields()  # nested too deeply to be read here, but valid
        return self._checked(fields, inputs) if self._checks else fields

    def is_error(self, fields: Fields) -> bool:
        """Returns whether a response with this schema reports an error instead of a result."""
        if self._is_resource:
            return is_error_answer(fields.error, fields.type, fields.object, fields.id)
        if fields.object == "error" or (fields.error is not None and reports(fields.error)):
            return True
        for name in self._breaking:
            for item in getattr(fields, name, ()):
                if item.finish_reason == "stop" and item.native_finish_reason is None and item.error is None:
                    continue  # most choices: nothing to judge
                if has_ended_badly(item.finish_reason, item.native_finish_reason, item.error):
                    return True
        return False

    def _read_odd(self, body: bytes, inputs: int) -> Fields | SchemaFault:
        """Reads JSON that msgspec does not accept, or that does not match the schema, and text that is not JSON."""
        if not body.strip():
            return "empty"
        try:
            fields = self._decode(_plain(body))
        except RecursionError:
            return Fields()
        except msgspec.MsgspecError:
            return "shape"
        except ValueError:
            return "cut" if _is_cut(body) else "text"
        return self._checked(fields, inputs)

    def _checked(self, fields: Fields, inputs: int) -> Fields | SchemaFault:
        """Returns the fields, or "shape" if items are missing or malformed. An error response may lack items."""
        for name, check in self._checks:
            if not check.holds(getattr(fields, name), inputs):
                return fields if self.is_error(fields) else "shape"
        return fields


def value_of(body: bytes) -> Any:
    """Returns the value of a JSON document, with 0 for numbers beyond a float or 64 bits. Raises ValueError,
    RecursionError."""
    text = body.decode("utf-8-sig", "replace")
    return json.loads(text, parse_int=_small_int, parse_float=_small_float, parse_constant=lambda _: 0)


def _has_other(shape: ResponseSchema | None) -> TypeGuard[ResponseSchema]:
    return shape is not None and bool(shape.otherwise)


def _struct_of(shape: ResponseSchema) -> Any:
    members = [(name, _type_of(member)) for name, member in shape.members.items()]
    return msgspec.defstruct("Answer", members, bases=(Fields,), kw_only=True, gc=False)


def _type_of(member: Member | Items) -> Any:
    if not isinstance(member, Items):
        return {"count": int, "message": ChatMessage, "object": Object, "text": str, "vector": msgspec.Raw}[member]
    named: list[Any] = [(name, _type_of(kind)) for name, kind in member.members.items()]
    named += [(name, msgspec.Raw, NULL) for name in {*member.one_of, *member.needed.values()}]
    if member.per_input == "each":
        named.append(("index", Any, 0))
    if member.may_break_off:
        named += [(name, Any, None) for name in ("finish_reason", "native_finish_reason", "error")]
    item = msgspec.defstruct("Item", named, kw_only=True, gc=False)
    return Annotated[list[item], msgspec.Meta(min_length=member.at_least)]  # type: ignore[valid-type]


def _plain(body: bytes) -> bytes:
    """Rewrites valid JSON that msgspec refuses: with a byte order mark, halves of surrogate pairs, numbers of any size,
    another encoding than UTF-8, or the NaN that Python servers write. Raises ValueError."""
    return json.dumps(value_of(body)).encode().replace(b"\\ud", b"\\ue")


def _small_int(digits: str) -> int:
    return int(digits) if len(digits) < 16 else 0


def _small_float(digits: str) -> float:
    value = float(digits)
    return value if abs(value) < 1e300 else 0.0


_skip = msgspec.json.Decoder(msgspec.Raw).decode


def _is_cut(body: bytes) -> bool:
    """Returns whether invalid JSON begins like a document and ends too early."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    body = body.rstrip(b"+-.eE0123456789")  # a number that was cut
    try:
        _skip(body.replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\ue"))
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:
        return False
    return False
