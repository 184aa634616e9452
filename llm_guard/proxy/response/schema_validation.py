"""Reads a unary JSON response once: whether it is complete, matches its endpoint's schema, and reports an error.

The schemas are in `dialects.response_schemas`; `resilience.classification.invalid_response` decides what follows from a
fault. msgspec skips what a schema does not name, so that a response of 16 MiB of embeddings creates no objects.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeGuard

import msgspec

from llm_guard.dialects.response_schemas import Items, Member, ResponseSchema, has_ended_badly, is_error_answer, reports
from llm_guard.proxy.response.item_validation import NULL, ChatMessage, ItemCheck, Object

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
