"""Scans a large JSON document as it passes: reads it as a series of small documents, so that little of it is ever kept.

Owns where a document may be cut, and what must surround a part to make it a valid document. The parts are read by
`proxy.request_body.model_field`, so that the same documents are valid however they arrive.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from llm_guard.proxy.gc_pause import uncollected
from llm_guard.proxy.request_body.fields import FIELDS, BodyFields
from llm_guard.proxy.request_body.input_counter import InputCount
from llm_guard.proxy.request_body.model_field import (
    body_fields,
    invalid_json,
    is_naming,
    json_fields,
    names_more_models,
    read_json,
    span_of_model,
)

_READ_BYTES = 1 << 14
"""Bytes that must have arrived before the next part is read, so that little is read twice."""
_LONG_BYTES = 4096
_STAND_IN = b"~" * 300
"""Replaces what has been read of a long string: too long for a model, and for the name of any field of interest."""
_MAX_GAP_BYTES = 1 << 17
"""Most bytes without a comma or a bracket, long strings aside: white space, or a number that never ends."""
_MAX_STRINGS = 4
"""Such a gap contains at most two strings: a field's name and its value."""
_MAX_DEPTH = 1024
_STRUCTURE = (b",", b"[", b"]", b"{", b"}")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_RUNS = re.compile(rb"([\[{]+)|[\]}]+")
_LIST = ord("[")
_CLOSING = {_LIST: b"]", ord("{"): b"}"}
_ESCAPED_BYTES = 12
"""The longest escape sequence: a surrogate pair."""


class JsonScanner:
    """Scans one document in pieces of 32 KiB at most. Each is read in a few milliseconds, also a hostile one."""

    def __init__(self) -> None:
        self._rest = b""
        """The bytes since the last cut; of a long string only the end."""
        self._unread = 0
        self._size = 0
        self._open: list[int] = []
        """The brackets that are open at the last cut."""
        self._is_new = True
        """True if the innermost of them is still empty."""
        self._fields: dict[str, Any] = {}
        self._model_in: tuple[bytes, int] | None = None
        """The part that contains the model, as a document, and the offset in the body at which that document would
        begin."""
        self._has_name = self._is_model_doubled = False
        self._inputs = InputCount()

    def feed(self, piece: bytes) -> None:
        """Scans the next piece. Raises BadRequest."""
        self._rest += piece
        self._size += len(piece)
        self._unread += len(piece)
        if self._unread >= _READ_BYTES:
            self._unread = 0
            uncollected(self._read_on)

    def end(self) -> BodyFields:
        """Ends the document, and returns its fields. Raises BadRequest."""
        self._inputs.begin_part(len(self._open), is_new=self._is_new)
        uncollected(self._read, self._before_part(), self._rest, b"")
        asked = self._inputs.corrected(body_fields(json_fields(self._fields)))
        return replace(asked, is_model_doubled=True) if self._is_model_doubled else asked

    def span_of_model(self) -> tuple[int, int]:
        """Returns the span of the model's value in the body, of a document that has one. Raises BadRequest if it cannot
        be determined."""
        assert self._model_in is not None  # noqa: S101  # `end` has found a model
        document, at = self._model_in
        start, end = span_of_model(document)
        return at + start, at + end

    def _read_on(self) -> None:
        # Without the escaped quotes, every quote begins or ends a string.
        plain = self._rest.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        parts = plain.split(b'"')
        cut = _last_cut(parts, len(plain))
        if cut:
            before = self._before_part()
            self._inputs.begin_part(len(self._open), is_new=self._is_new)
            self._enter(b"".join(parts[::2]))
            self._is_new = plain[cut - 1] in _CLOSING
            self._read(before, self._rest[:cut], self._behind_part())
            self._rest = self._rest[cut:]
        if len(parts) % 2 == 0:
            self._shorten(plain[cut:])
        if len(self._rest) > _MAX_GAP_BYTES:
            raise invalid_json(f"no comma or bracket within {_MAX_GAP_BYTES} bytes")

    def _read(self, before: bytes, part: bytes, behind: bytes) -> None:
        """Reads a part as a document."""
        document, begins_at = before + part + behind, self._size - len(self._rest) - len(before)
        value = read_json(document, begins_at)
        if type(value) is dict:
            self._fields.update((name, value[name]) for name in FIELDS if name in value)
            self._inputs.feed(value)
            if any(is_naming(name) for name in value):
                self._is_model_doubled |= self._has_name or names_more_models(document)
                self._has_name = True
            if "model" in value:
                self._model_in = document, begins_at

    def _before_part(self) -> bytes:
        """Returns what opens all open brackets. One that is not empty gets an element, so that a comma may follow."""
        if not self._open:
            return b"" if self._is_new else b"[]"  # after a complete document only white space is valid
        *outer, innermost = self._open
        opening = b"".join(b"[" if bracket == _LIST else b'{"":' for bracket in outer)
        if self._is_new:
            return opening + (b"[" if innermost == _LIST else b"{")
        return opening + (b"[[]" if innermost == _LIST else b'{"":[]')

    def _behind_part(self) -> bytes:
        return b"".join(_CLOSING[bracket] for bracket in reversed(self._open))

    def _enter(self, outside_strings: bytes) -> None:
        """Updates the open brackets. Mismatched ones are detected when the part is read."""
        brackets = outside_strings.translate(None, _NOT_BRACKETS)
        for _ in range(8):  # after that mostly long runs are left
            brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        for run in _RUNS.finditer(brackets):
            if run[1]:
                self._open += run[1]
            else:
                del self._open[-len(run[0]) :]
        if len(self._open) > _MAX_DEPTH:
            raise invalid_json("it is nested too deeply")

    def _shorten(self, plain: bytes) -> None:
        """Reads and replaces the beginning of a long string that is not complete yet."""
        start = plain.rfind(b'"') + 1
        if len(plain) - start > _LONG_BYTES:
            end = start + _whole_characters(plain[start:])
            read_json(b'["' + self._rest[start:end] + b'"]', self._size - len(plain) + start - 2)
            self._rest = self._rest[:start] + _STAND_IN + self._rest[end:]


def _last_cut(parts: list[bytes], end: int) -> int:
    """Returns the position before the last comma or after the last bracket in a text that was split at its quotes; 0:
    there is none."""
    for index in range(len(parts) - 1, -1, -1):
        begin = end - len(parts[index])
        if index % 2 == 0:
            at = max(parts[index].rfind(mark) for mark in _STRUCTURE)
            if at >= 0:
                return begin + at + (parts[index][at] != ord(","))
        elif len(parts) - index > 2 * _MAX_STRINGS:
            raise invalid_json("a string directly follows another string")
        end = begin - 1
    return 0


def _whole_characters(text: bytes) -> int:
    """Returns the length of the longest beginning of a string that ends between two characters, however the string
    continues."""
    end = len(text)
    escape = text.rfind(b"\\", max(0, end - _ESCAPED_BYTES))
    if escape >= 0:  # it may be the second half of a surrogate pair
        is_second = text[max(0, escape - 6) : escape][:3].lower() == b"\\ud"
        end = escape - 6 if is_second else escape
    for back in range(1, min(4, end) + 1):
        if text[end - back] < 0x80:
            break
        if text[end - back] >= 0xC0:
            return end - back
    return end
