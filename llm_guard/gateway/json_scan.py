"""A large JSON document as it passes: read as a series of small ones, so that little of it is ever kept.

Owns where a document may be cut, and what has to stand around a part of it to make that a document of its own. Does not
own the reading (`gateway.model_field`): what is valid there is valid here, however the document comes.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from llm_guard.gateway.asked import FIELDS, Asked
from llm_guard.gateway.doubled import is_naming, names_more_models
from llm_guard.gateway.input_count import InputCount
from llm_guard.gateway.model_field import asked_of, invalid_json, read_json, span_of_model
from llm_guard.gateway.uncollected import uncollected

_READ_BYTES = 1 << 14
"""So much must have come for the next part: what has to be read twice is then a small share."""
_LONG_BYTES = 4096
_STAND_IN = b"~" * 300
"""For what has been read of a long string: too long for a model, and for the name of a field that is looked for."""
_MAX_GAP_BYTES = 1 << 17
"""Without a comma or a bracket, long strings aside: white space, or a number that never ends."""
_MAX_STRINGS = 4
"""In such a gap there are two at most: a field's name and its value."""
_MAX_DEPTH = 1024
_STRUCTURE = (b",", b"[", b"]", b"{", b"}")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_RUNS = re.compile(rb"([\[{]+)|[\]}]+")
_LIST = ord("[")
_CLOSING = {_LIST: b"]", ord("{"): b"}"}
_ESCAPED_BYTES = 12
"""The longest escape: a pair of surrogates."""


class JsonScan:
    """Fed the pieces of one document, of 32 KiB at most; each is read in a few milliseconds, whatever it holds."""

    def __init__(self) -> None:
        self._rest = b""
        """What has come since the last cut; only the end of a long string."""
        self._unread = 0
        self._size = 0
        self._open: list[int] = []
        """The brackets that are open at the last cut."""
        self._is_new = True
        """Nothing stands in the innermost of them."""
        self._fields: dict[str, Any] = {}
        self._model_in: tuple[bytes, int] | None = None
        """The part that has the model, as a document, and where in the body that would begin."""
        self._has_name = self._is_model_doubled = False
        self._inputs = InputCount()

    def feed(self, piece: bytes) -> None:
        """The next piece; raises BadRequest."""
        self._rest += piece
        self._size += len(piece)
        self._unread += len(piece)
        if self._unread >= _READ_BYTES:
            self._unread = 0
            uncollected(self._read_on)

    def end(self) -> Asked:
        """What the document asks for, which is whole; raises BadRequest."""
        self._inputs.begin_part(len(self._open), is_new=self._is_new)
        uncollected(self._read, self._before_part(), self._rest, b"")
        asked = self._inputs.corrected(asked_of(self._fields))
        return replace(asked, is_model_doubled=True) if self._is_model_doubled else asked

    def span_of_model(self) -> tuple[int, int]:
        """Where in the body the model's value stands, of a document that has one; raises BadRequest when it cannot be
        told."""
        assert self._model_in is not None  # noqa: S101  # `end` has told of a model
        document, at = self._model_in
        start, end = span_of_model(document)
        return at + start, at + end

    def _read_on(self) -> None:
        # Without the quotes that are escaped, every one begins or ends a string.
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
            raise invalid_json(f"there is no comma or bracket for {_MAX_GAP_BYTES} bytes")

    def _read(self, before: bytes, part: bytes, behind: bytes) -> None:
        """The beginning of what has come, as a document."""
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
        """Opens what is open; where something stood in it already, something stands in it."""
        if not self._open:
            return b"" if self._is_new else b"[]"  # behind the whole, nothing but white space is valid
        *outer, innermost = self._open
        opening = b"".join(b"[" if bracket == _LIST else b'{"":' for bracket in outer)
        if self._is_new:
            return opening + (b"[" if innermost == _LIST else b"{")
        return opening + (b"[[]" if innermost == _LIST else b'{"":[]')

    def _behind_part(self) -> bytes:
        return b"".join(_CLOSING[bracket] for bracket in reversed(self._open))

    def _enter(self, outside_strings: bytes) -> None:
        """Notes the brackets. Whether each is closed by its like is seen when the part is read."""
        brackets = outside_strings.translate(None, _NOT_BRACKETS)
        for _ in range(8):  # then hardly any are left but long runs
            brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        for run in _RUNS.finditer(brackets):
            if run[1]:
                self._open += run[1]
            else:
                del self._open[-len(run[0]) :]
        if len(self._open) > _MAX_DEPTH:
            raise invalid_json("it is nested too deeply")

    def _shorten(self, plain: bytes) -> None:
        """Reads what has come of a string that goes on, if it is long."""
        start = plain.rfind(b'"') + 1
        if len(plain) - start > _LONG_BYTES:
            end = start + _whole_characters(plain[start:])
            read_json(b'["' + self._rest[start:end] + b'"]', self._size - len(plain) + start - 2)
            self._rest = self._rest[:start] + _STAND_IN + self._rest[end:]


def _last_cut(parts: list[bytes], end: int) -> int:
    """Before the last comma, or behind the last bracket, of a text that quotes take apart; 0: there is none."""
    for index in range(len(parts) - 1, -1, -1):
        begin = end - len(parts[index])
        if index % 2 == 0:
            at = max(parts[index].rfind(mark) for mark in _STRUCTURE)
            if at >= 0:
                return begin + at + (parts[index][at] != ord(","))
        elif len(parts) - index > 2 * _MAX_STRINGS:
            raise invalid_json("a string follows on a string")
        end = begin - 1
    return 0


def _whole_characters(text: bytes) -> int:
    """How much of the beginning of a string ends between two characters, whatever follows."""
    end = len(text)
    escape = text.rfind(b"\\", max(0, end - _ESCAPED_BYTES))
    if escape >= 0:  # it may be the second of a pair of surrogates
        is_second = text[max(0, escape - 6) : escape][:3].lower() == b"\\ud"
        end = escape - 6 if is_second else escape
    for back in range(1, min(4, end) + 1):
        if text[end - back] < 0x80:
            break
        if text[end - back] >= 0xC0:
            return end - back
    return end
