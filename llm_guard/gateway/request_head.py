"""What goes out before a body: the head of a request, framed afresh (RFC 9112, section 6).

Owns what may stand in a head: whatever a client or a config has put in, it is one request. Does not own which headers
travel (`gateway.headers`).
"""

from __future__ import annotations

import re

from llm_guard.gateway.upstream_error import unsendable

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = frozenset({"host", "content-length", "transfer-encoding"})
_NAMES_KEPT = 1024

_sound_names: set[str] = set()
"""Names that have been checked, bounded: clients choose them. `Upgrade` is never among them, so that it is seen."""


def request_head(
    method: str, target: str, host: str, headers: list[tuple[str, str]], body_size: int | None
) -> tuple[bytes, bool]:
    """The head, with the length of the body and nothing else of our own, and whether it asks for an upgrade. A body of
    unknown length (None) is chunked.

    Raises UpstreamError (INTERNAL) for what would not be one request: it never reaches the wire.
    """
    if method not in _METHODS or target[:1] != "/" or " " in target:
        raise unsendable("its method or its target is not valid")
    is_upgrade = False
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    for name, value in headers:
        if name not in _sound_names:
            is_upgrade |= _check_name(name)
        lines.append(f"{name}: {value}")
    if body_size is None:
        lines.append("Transfer-Encoding: chunked")
    elif body_size or method in _METHODS_WITH_BODY:
        lines.append(f"Content-Length: {body_size}")
    # All lines at once, so that nothing that stands in one can be forgotten: 0.2 us.
    text = "".join(lines)
    if "\r" in text or "\n" in text or "\0" in text:
        raise unsendable("a header or its target has a control character")
    lines.append("\r\n")
    try:
        return "\r\n".join(lines).encode("latin-1"), is_upgrade
    except UnicodeEncodeError:
        raise unsendable("a header or its target has a character beyond latin-1") from None


def _check_name(name: str) -> bool:
    """Whether it is `Upgrade`; raises UpstreamError for what is no name, or frames the request."""
    lower = name.lower()
    if not _TOKEN.fullmatch(name) or lower in _FRAMING:
        raise unsendable("a header's name is not valid")
    if lower == "upgrade":
        return True
    if len(_sound_names) < _NAMES_KEPT and len(name) <= 64:
        _sound_names.add(name)
    return False
