"""What a request is, as strictly as RFC 9112 allows: who accepts more than this accepts what others read otherwise.

Owns the bytes of requests, to make them and to take them apart. Deliberately not the parser of the gateway.
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
    """Bytes that no strict reader takes for a request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; the names of its fields in lower case, its body without chunks."""

    method: bytes
    target: bytes
    minor: int
    """Of its version: 1.0 or 1.1."""
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        """Of every field of this name, in their order."""
        return [value for key, value in self.fields if key == name]


def head(line: bytes, *fields: bytes) -> bytes:
    """A request's head of exactly these lines."""
    return b"\r\n".join((line, *fields, b"", b""))


def chunked(*parts: bytes, trailer: bytes = b"") -> bytes:
    """A body in these chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailer + b"\r\n"


def requests_in(data: bytes) -> list[Request]:
    """All whole requests up to the first thing that is none; what RFC 9112, sections 2.2 and 3, lets a server forgive
    before the target is forgiven."""
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
    """The request that begins at `at`, and where it ends; None while it is incomplete. Raises Unframed."""
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
