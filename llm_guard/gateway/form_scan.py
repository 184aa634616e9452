"""A multipart/form-data body as it passes: what a few of its fields say, and where the model stands.

Owns the syntax of forms (RFC 7578, RFC 2046 section 5.1), in bodies cut anywhere. Keeps nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from llm_guard.gateway.asked import BadRequest

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
"""Of a field that is read. A longer one is cut, and is still too long for a model."""
_MAX_PARTS = 1024
_MAX_BOUNDARY_BYTES = 70  # RFC 2046, section 5.1.1


class FormScan:
    """Fed the pieces of one body. A part counts once the delimiter behind it has come."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, bytes] = {}
        """The last value of each."""
        self.spans: list[tuple[int, int]] = []
        """Of each model's value in the body: of doubles some servers read the first and some the last."""
        self.fault = ""
        """Why readers may differ on this form; nothing is read behind it."""
        self._delimiter = b"\r\n--" + boundary
        # A line that only begins as one is content, as it is to the readers of servers.
        rest_of_line = rb"(?:(--)|[ \t]{0,%d}\r\n)" % _MAX_PADDING_BYTES
        self._whole_delimiter = re.compile(re.escape(self._delimiter) + rest_of_line)
        self._rest = b"\r\n"  # a body begins where a line does
        self._rest_at = -2
        self._reader = self._read()
        next(self._reader)

    def feed(self, piece: bytes) -> None:
        """The next piece of the body."""
        self._rest += piece
        next(self._reader)

    def _read(self) -> Generator[None, None, None]:
        """Part by part; yields where more of the body is needed."""
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
        """The name of a part whose head begins here, at the end of the delimiter's line."""
        while (end := self._rest.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)) < 0 and len(self._rest) < _MAX_HEAD_BYTES:
            yield
        if end < 0:
            self.fault = f"the head of a part is longer than {_MAX_HEAD_BYTES} bytes"
            return None
        if self._whole_delimiter.search(self._rest, 0, end + 2):
            return None  # a part without a head, whose delimiter is the next to be found
        found = _PART_NAME.search(self._rest, 0, end)
        self._drop(end + 2)  # a content that is left out begins with the next delimiter
        return (found[1] or found[2] or b"").decode("latin-1") if found else None

    def _content(self) -> Generator[None, None, tuple[bytes, int, bool]]:
        """Up to a delimiter: how it begins, where in the body it ends, whether the delimiter was the last one."""
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
    """Of a form's parts; raises BadRequest when the content type names none, or a longer one than is allowed."""
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "boundary" and value:
            found = value.strip('"').encode()
            if len(found) > _MAX_BOUNDARY_BYTES:
                break
            return found
    raise BadRequest(400, "invalid_body", "multipart/form-data without a boundary of 1 to 70 characters")
