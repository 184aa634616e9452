"""Writes the head of an upstream request with framing of its own (RFC 9112, section 6).

Guarantees that the head is exactly one request, with any header values from a client or the config. `proxy.headers`
decides which headers are forwarded.
"""

from __future__ import annotations

import re

from llm_guard.proxy.http_client.errors import unsendable

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = frozenset({"host", "content-length", "transfer-encoding"})
_NAMES_KEPT = 1024
_NOTHING = ("", "", "")

_sound_names: set[str] = set()
"""Header names that passed the check; bounded, because clients choose them. Never contains `Upgrade`, so that each use
of it is noticed."""


class RequestHeaders:
    """Headers of requests to an upstream, without those that frame them. They are never changed, so requests may share
    them: those of one client's connection usually have the same headers, and the same target."""

    __slots__ = ("_beginning", "_begins", "is_upgrade", "pairs")

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs
        self.is_upgrade = False
        """True if they ask for an upgrade; known after `beginning`."""
        self._begins = _NOTHING
        """Method, target and host of the latest head."""
        self._beginning = b""

    def beginning(self, method: str, target: str, host: str) -> bytes:
        """Returns a head without the body's framing and its end. Raises UpstreamError."""
        begins = (method, target, host)
        if begins != self._begins:
            self._beginning = self._written(method, target, host)
            self._begins = begins
        return self._beginning

    def _written(self, method: str, target: str, host: str) -> bytes:
        if method not in _METHODS or target[:1] != "/" or " " in target:
            raise unsendable("its method or its target is not valid")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
        for name, value in self.pairs:
            if name not in _sound_names:
                self.is_upgrade |= _check_name(name)
            lines.append(f"{name}: {value}")
        # One check over all lines, so that none can be missed.
        text = "".join(lines)
        if "\r" in text or "\n" in text or "\0" in text:
            raise unsendable("a header or its target has a control character")
        lines.append("")
        try:
            return "\r\n".join(lines).encode("latin-1")
        except UnicodeEncodeError:
            raise unsendable("a header or its target has a character beyond latin-1") from None


def request_head(method: str, target: str, host: str, headers: RequestHeaders, body_size: int | None) -> bytes:
    """Returns the head. Only Host and the body's framing are added: its length, or chunked if `body_size` is None.

    Raises UpstreamError (INTERNAL) if the result would not be exactly one request; nothing is sent then.
    """
    beginning = headers.beginning(method, target, host)
    if body_size is None:
        return beginning + b"Transfer-Encoding: chunked\r\n\r\n"
    if body_size or method in _METHODS_WITH_BODY:
        return b"%bContent-Length: %d\r\n\r\n" % (beginning, body_size)
    return beginning + b"\r\n"


def _check_name(name: str) -> bool:
    """Returns True for `Upgrade`; raises UpstreamError for an invalid name, or one that would frame the request."""
    lower = name.lower()
    if not _TOKEN.fullmatch(name) or lower in _FRAMING:
        raise unsendable("a header's name is not valid")
    if lower == "upgrade":
        return True
    if len(_sound_names) < _NAMES_KEPT and len(name) <= 64:
        _sound_names.add(name)
    return False
