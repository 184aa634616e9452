"""Scans a multipart/form-data body as it passes: reads a few of its fields, and finds where the model is.

Implements the syntax of forms (RFC 7578, RFC 2046 section 5.1) for bodies cut anywhere. Keeps nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from llm_guard.proxy.request_body.fields import BadRequest

_PART_NAME = re.compile(
    rb"""^content-disposition:[ \t]*[\w-]+
    (?:[ \t]*;[ \t]*(?!name=)[\w*-]+=(?:"(?:[^"\\\r\n]|\\.)*"|[^;"\s]*))*  # a file's name may contain `name=`
    [ \t]*;[ \t]*name=(?:"([^"\r\n]*)"|([^;"\s]+))""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_FIELDS = ("model", "stream", "response_format")
_MAX_PADDING_BYTES = 64
_MAX_HEAD_BYTES = 4096
_MAX_VALUE_BYTES = 4096
"""Longest value that is kept of a field. A longer one is cut, and is still too long for a model."""
_MAX_PARTS = 1024
_MAX_BOUNDARY_BYTES = 70  # RFC 2046, section 5.1.1


class MultipartScanner:
    """Scans the pieces of one body. A part counts once the delimiter after it has arrived."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, bytes] = {}
        """The last value of each field."""
        self.spans: list[tuple[int, int]] = []
        """Where the value of each `model` field is in the body: of repeated ones some servers read the first and some
        the last."""
        self.fault = ""
        """Why servers may disagree on this form; the rest of it is not read."""
        self._delimiter = b"\r\n--" + boundary
        # A line that only begins like a delimiter is content, as it is to servers' parsers.
        rest_of_line = rb"(?:(--)|[ \t]{0,%d}\r\n)" % _MAX_PADDING_BYTES
        self._whole_delimiter = re.compile(re.escape(self._delimiter) + rest_of_line)
        self._rest = b"\r\n"  # the first delimiter has no line break before it
        self._rest_at = -2
        self._reader = self._read()
        next(self._reader)

    def feed(self, piece: bytes) -> None:
        """Scans the next piece of the body."""
        self._rest += piece
        next(self._reader)

    def _read(self) -> Generator[None, None, None]:
        """Reads part by part. Yields when more of the body is needed."""
        *_, is_last = yield from self._content()
        parts = 0
        while not is_last and not self.fault:
            parts += 1
            name = yield from self._head()
            start = self._rest_at + 2
            content, end, is_last = yield from self._content()
            if name in _FIELDS:
                self.fields[name] = content[2:]
            if name == "model" and content:
                self.spans.append((start, end))
            if parts > _MAX_PARTS:
                self.fault = f"it has more than {_MAX_PARTS} parts"
        while True:
            self._drop(len(self._rest))
            yield

    def _head(self) -> Generator[None, None, str | None]:
        """Returns the name of a part. Its head begins here, at the end of the delimiter's line."""
        while (end := self._rest.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)) < 0 and len(self._rest) < _MAX_HEAD_BYTES:
            yield
        if end < 0:
            self.fault = f"the head of a part is longer than {_MAX_HEAD_BYTES} bytes"
            return None
        if self._whole_delimiter.search(self._rest, 0, end + 2):
            return None  # a part without a head: its delimiter comes next
        found = _PART_NAME.search(self._rest, 0, end)
        self._drop(end + 2)  # empty content begins with the next delimiter
        return (found[1] or found[2] or b"").decode("latin-1") if found else None

    def _content(self) -> Generator[None, None, tuple[bytes, int, bool]]:
        """Reads up to a delimiter. Returns the beginning of the content, where in the body it ends, and whether this
        was the last delimiter."""
        begins = b""
        held_back = len(self._delimiter) + _MAX_PADDING_BYTES + 2
        while (found := self._find_delimiter()) is None:
            passed = max(0, len(self._rest) - held_back)
            begins += self._rest[: min(passed, _MAX_VALUE_BYTES - len(begins))]
            self._drop(passed)
            yield
        begins += self._rest[: min(found.start(), _MAX_VALUE_BYTES - len(begins))]
        end, is_last = self._rest_at + found.start(), found[1] is not None
        self._drop(found.end() - (0 if is_last else 2))
        return begins, end, is_last

    def _find_delimiter(self) -> re.Match[bytes] | None:
        at = self._rest.find(self._delimiter)
        return self._whole_delimiter.search(self._rest, at) if at >= 0 else None

    def _drop(self, count: int) -> None:
        self._rest = self._rest[count:]
        self._rest_at += count


def boundary(content_type: str) -> bytes:
    """Returns the boundary of a form's parts. Raises BadRequest if the content type has none, or one that is too
    long."""
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "boundary" and value:
            found = value.strip('"').encode()
            if len(found) > _MAX_BOUNDARY_BYTES:
                break
            return found
    raise BadRequest(400, "invalid_body", "multipart/form-data without a boundary of 1 to 70 characters")
