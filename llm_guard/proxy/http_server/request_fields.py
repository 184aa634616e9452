"""The header fields of a request.

Clients send nearly the same fields with each request of a connection, so they are parsed once per connection: see
`RequestFields.next`.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_guard.proxy.call import Headers, SentHeaders
from llm_guard.proxy.caller_digests import CallerDigests, digests_of
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.resilience.memo import Memo

MAX_FIELDS = 128
MAX_LINE_BYTES = 1 << 14
"""Longest accepted target, and longest header."""
_LENGTH = "content-length"

RawFields = list[tuple[bytes, bytes]]


class RequestFields:
    """The fields of one head, and what follows from them alone. They are never changed, so requests may share them."""

    __slots__ = ("_caller", "_length_at", "_raw", "headers", "names", "sent_headers")

    def __init__(self, headers: Headers, names: Mapping[str, str], raw: RawFields | None = None) -> None:
        self.headers = headers
        """The fields in order, with their names as written."""
        self.names = names
        """The first value of each field, by its lower-case name."""
        self._raw = raw
        """The fields as received; None if those of the next request cannot be compared with them."""
        self._length_at = -1
        """Index of Content-Length; -1 if there is none, or several."""
        self._caller: CallerDigests | None = None
        self.sent_headers: dict[str, SentHeaders] | None = {} if raw is not None else None
        """See `Call.sent_headers`."""

    @classmethod
    def read(cls, raw: RawFields, *, is_head_long: bool) -> RequestFields:
        """Parses fields. Raises BadRequest. Lengths are checked only if `is_head_long`: in a short head no field can be
        too long.

        Drops fields with an underscore: to a CGI or WSGI upstream `X_Api_Key` is the same as `X-Api-Key`.
        """
        if len(raw) > MAX_FIELDS:
            raise BadRequest(431, "head_too_large", f"more than {MAX_FIELDS} headers")
        if is_head_long and any(len(name) + len(value) > MAX_LINE_BYTES for name, value in raw):
            raise BadRequest(431, "head_too_large", "a header is too long")
        headers = []
        names: dict[str, str] = {}
        for raw_name, raw_value in raw:
            written, lower = _spellings_of[raw_name]
            if not lower:
                continue
            value = raw_value.decode("latin-1").rstrip(" \t")
            headers.append((written, value))
            if lower not in names:
                names[lower] = value
            elif lower == "host":
                raise BadRequest(400, "invalid_host", "there are two Host headers")
        is_comparable = not is_head_long and len(headers) == len(names) == len(raw)
        fields = cls(tuple(headers), names, raw if is_comparable else None)
        if is_comparable and _LENGTH in names:
            fields._length_at = list(names).index(_LENGTH)
        return fields

    def next(self, raw: RawFields) -> RequestFields | None:
        """Returns the fields of the connection's next request, if they are these but for the value of
        Content-Length. Parsing costs four times as much as this comparison."""
        mine, at = self._raw, self._length_at
        if raw == mine:
            return self
        if mine is None or at < 0 or len(raw) != len(mine):
            return None
        length = raw[at]
        if length[0] != mine[at][0] or raw[:at] != mine[:at] or raw[at + 1 :] != mine[at + 1 :]:
            return None
        return self._with_length(length[1], raw)

    def with_length(self, value: bytes) -> RequestFields:
        """Returns these fields with another value of Content-Length; they must be comparable and have one."""
        mine, at = self._raw or [], self._length_at
        if mine[at][1] == value:
            return self
        return self._with_length(value, [*mine[:at], (mine[at][0], value), *mine[at + 1 :]])

    def _with_length(self, raw_value: bytes, raw: RawFields) -> RequestFields:
        at, value = self._length_at, raw_value.decode("latin-1").rstrip(" \t")
        headers = (*self.headers[:at], (self.headers[at][0], value), *self.headers[at + 1 :])
        fields = RequestFields(headers, {**self.names, _LENGTH: value}, raw)
        fields._length_at, fields._caller, fields.sent_headers = at, self._caller, self.sent_headers
        return fields

    @property
    def caller(self) -> CallerDigests:
        """Digests of the keys and of the account that the fields name."""
        if self._caller is None:
            self._caller = digests_of(self.headers, self.names)
        return self._caller


def _spellings(raw: bytes) -> tuple[str, str]:
    """Returns a header's name as written and in lower case; the latter is "" if the header is to be dropped."""
    written = raw.decode("latin-1")
    return written, "" if "_" in written else written.lower()


_spellings_of = Memo(_spellings)
