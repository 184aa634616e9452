"""HTTP requests as strictly as RFC 9112 allows: a parser that accepts more can be read differently by another one.

Builds and parses the bytes of requests. Deliberately independent of the gateway's parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/1\.([01])" % _TOKEN)
_FORGIVEN_LINE = re.compile(rb"(%b) +([\x21-\x7e]+) (?:HTTP|RTSP)/1\.([01])" % _TOKEN)
_FIELD = re.compile(rb"(%b):[ \t]*((?:[\x21-\x7e\x80-\xff]+(?:[ \t]+[\x21-\x7e\x80-\xff]+)*)?)[ \t]*" % _TOKEN)
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED))


class Unframed(Exception):
    """Bytes that a strict parser does not accept as a request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request with lower-case field names and a de-chunked body."""

    method: bytes
    target: bytes
    minor: int
    """Minor version: 0 for HTTP/1.0, 1 for HTTP/1.1."""
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        """Returns the values of every field of this name, in order."""
        return [value for key, value in self.fields if key == name]


def head(line: bytes, *fields: bytes) -> bytes:
    """Builds a request head of exactly these lines."""
    return b"\r\n".join((line, *fields, b"", b""))


def chunked(*parts: bytes, trailer: bytes = b"") -> bytes:
    """Encodes a body in these chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailer + b"\r\n"


def requests_in(data: bytes) -> list[Request]:
    """Returns all complete requests up to the first invalid one. Accepts the leniency that RFC 9112, sections 2.2 and
    3, allows a server."""
    found = []
    at = 0
    try:
        while (taken := first_request(data, at, is_forgiving=True)) is not None:
            request, at = taken
            found.append(request)
    except Unframed:
        pass
    return found


def first_request(data: bytes, at: int = 0, *, is_forgiving: bool = False) -> tuple[Request, int] | None:
    """Returns the request that begins at `at` and where it ends; None while it is incomplete. Raises Unframed."""
    while is_forgiving and data[at : at + 1] in (b"\r", b"\n"):
        at += 1
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        return None
    first, *rest = data[at:end].split(b"\r\n")
    line = (_FORGIVEN_LINE if is_forgiving else _LINE).fullmatch(first)
    if line is None:
        raise Unframed(first)
    method, target, minor = line[1], line[2], int(line[3])
    fields = _fields(rest)
    body = _body(data, end + 4, fields, minor)
    return (Request(method, target, minor, fields, body[0]), body[1]) if body is not None else None


def _fields(lines: list[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    found = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise Unframed(line)
        found.append((field[1].lower(), field[2]))
    return tuple(found)


def _body(data: bytes, at: int, fields: tuple[tuple[bytes, bytes], ...], minor: int) -> tuple[bytes, int] | None:
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    lengths = [value for name, value in fields if name == b"content-length"]
    if codings:
        if codings != [b"chunked"] or lengths or minor == 0:
            raise Unframed(b", ".join(codings + lengths))
        return _chunks(data, at)
    if not lengths:
        return b"", at
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
        raise Unframed(b", ".join(lengths))
    end = at + int(lengths[0])
    return (data[at:end], end) if len(data) >= end else None


def _chunks(data: bytes, at: int) -> tuple[bytes, int] | None:
    body = b""
    while (line_end := data.find(b"\r\n", at)) >= 0:
        line = _CHUNK.fullmatch(data, at, line_end)
        if line is None:
            raise Unframed(data[at:line_end])
        size, at = int(line[1], 16), line_end + 2
        if size == 0:
            return _trailer(data, at, body)
        if len(data) < at + size + 2:
            return None
        if data[at + size : at + size + 2] != b"\r\n":
            raise Unframed(b"a chunk longer than its size")
        body += data[at : at + size]
        at += size + 2
    return None


def _trailer(data: bytes, at: int, body: bytes) -> tuple[bytes, int] | None:
    if data.startswith(b"\r\n", at):
        return body, at + 2
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        return None
    _fields(data[at:end].split(b"\r\n"))
    return body, end + 4
