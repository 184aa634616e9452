"""Unary JSON answers, read once: whether they are whole, have their endpoint's shape, and what they report.

Owns the reading. Does not own the shapes (`dialect.shapes`), nor what follows from a fault (`policy.wrong_answer`).
msgspec skips what a shape does not name, so that an answer of 16 MiB of embeddings costs no objects.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec

from llm_guard.dialect.shapes import Items, Member, Shape, has_ended_badly, is_error_answer, reports
from llm_guard.gateway.answer_items import NULL, ItemCheck, Message, Object

Fault = Literal["cut", "empty", "shape", "text"]


class Fields(msgspec.Struct, kw_only=True):
    """What is read of every JSON answer."""

    usage: Any = None
    error: Any = None
    object: Any = None
    id: Any = None
    type: Any = None


class Reader:
    """Reads the answers of one shape; None: JSON of which nothing is known."""

    def __init__(self, shape: Shape | None) -> None:
        self.shape = shape
        self.is_json = shape is not None and shape.is_json
        members = {} if shape is None else shape.members
        lists = [(name, member) for name, member in members.items() if isinstance(member, Items)]
        self._checks = [(name, ItemCheck(items)) for name, items in lists if ItemCheck(items).is_needed]
        """Of lists with conditions that a type cannot hold."""
        self._breaking = [name for name, items in lists if items.may_break_off]
        self._is_resource = shape is None or shape.carries_error
        self._decode = msgspec.json.Decoder(Fields if shape is None else _struct_of(shape)).decode

    def read(self, body: bytes, inputs: int = 0) -> Fields | Fault:
        """The fields of an answer in this shape, be it good or not, else what is wrong with it.

        `inputs`: how many the request has, each with a result of its own; 0: unknown.
        """
        try:
            fields = self._decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._read_odd(body, inputs)
        except RecursionError:
            return Fields()  # nested deeper than can be read here: valid all the same
        return self._checked(fields, inputs) if self._checks else fields

    def is_error(self, fields: Fields) -> bool:
        """Whether an answer in this shape reports an error instead of a result."""
        if self._is_resource:
            return is_error_answer(fields.error, fields.type, fields.object, fields.id)
        if fields.object == "error" or (fields.error is not None and reports(fields.error)):
            return True
        for name in self._breaking:
            for item in getattr(fields, name, ()):
                if has_ended_badly(item.finish_reason, item.native_finish_reason, item.error):
                    return True
        return False

    def _read_odd(self, body: bytes, inputs: int) -> Fields | Fault:
        """JSON that msgspec does not take as it is, or not in this shape; text that is no JSON."""
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

    def _checked(self, fields: Fields, inputs: int) -> Fields | Fault:
        """The fields, unless items are missing or malformed: such an answer may be an error, which has none."""
        for name, check in self._checks:
            if not check.holds(getattr(fields, name), inputs):
                return fields if self.is_error(fields) else "shape"
        return fields


def value_of(body: bytes) -> Any:
    """The value of a JSON document, with numbers beyond a float or 64 bits as 0. Raises ValueError, RecursionError."""
    text = body.decode("utf-8-sig", "replace")
    return json.loads(text, parse_int=_small_int, parse_float=_small_float, parse_constant=lambda _: 0)


def _struct_of(shape: Shape) -> Any:
    members = [(name, _type_of(member)) for name, member in shape.members.items()]
    return msgspec.defstruct("Answer", members, bases=(Fields,), kw_only=True)


def _type_of(member: Member | Items) -> Any:
    if not isinstance(member, Items):
        return {"count": int, "message": Message, "object": Object, "text": str, "vector": msgspec.Raw}[member]
    named: list[Any] = [(name, _type_of(kind)) for name, kind in member.members.items()]
    named += [(name, msgspec.Raw, NULL) for name in {*member.one_of, *member.needed.values()}]
    if member.per_input == "each":
        named.append(("index", Any, 0))
    if member.may_break_off:
        named += [(name, Any, None) for name in ("finish_reason", "native_finish_reason", "error")]
    item = msgspec.defstruct("Item", named, kw_only=True)
    return Annotated[list[item], msgspec.Meta(min_length=member.at_least)]  # type: ignore[valid-type]


def _plain(body: bytes) -> bytes:
    """Valid JSON with what msgspec refuses in it put simply: a byte order mark, halves of surrogate pairs, numbers of
    any size, text in another encoding than UTF-8, and the NaN that Python's servers write. Raises ValueError."""
    return json.dumps(value_of(body)).encode().replace(b"\\ud", b"\\ue")


def _small_int(digits: str) -> int:
    return int(digits) if len(digits) < 16 else 0


def _small_float(digits: str) -> float:
    value = float(digits)
    return value if abs(value) < 1e300 else 0.0


_skip = msgspec.json.Decoder(msgspec.Raw).decode


def _is_cut(body: bytes) -> bool:
    """Whether what is no valid JSON begins like a JSON document and ends too early."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    body = body.rstrip(b"+-.eE0123456789")  # half of a number is no number
    try:
        _skip(body.replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\ue"))
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:
        return False
    return False
