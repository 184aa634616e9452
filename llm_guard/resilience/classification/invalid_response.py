"""Failures of responses that have a success status but are not what the endpoint returns, with words for the log.

`proxy.response.unary` decides when a response is wrong. No words of a body are repeated, except the title of an HTML
page, which names the login page or the proxy that a wrong `base_url` leads to.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Literal

from llm_guard.outcome import Failure, FailureKind

InvalidReason = Literal["cut", "empty", "encoding", "shape", "stream", "text", "unary"]
"""`stream`: an event stream that was not requested. `unary`: no event stream although one was requested."""

_HEAD_BYTES = 4096
_BOM = b"\xef\xbb\xbf"
_MAX_TITLE_CHARS = 80
_MAX_TYPE_CHARS = 60
_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<!--.{0,1000}?-->\s*)?<(?:!doctype\s+html|html|head|body|title)\b",
    re.IGNORECASE | re.DOTALL,
)
_TITLE = re.compile(rb"<title[^<>]{0,200}>([^<]{0,400})", re.IGNORECASE)
_WORDS: dict[InvalidReason, str] = {
    "cut": "with truncated JSON",
    "empty": "with an empty body",
    "encoding": "in an encoding that was not requested or is not what it claims to be",
    "shape": "with other JSON",
    "stream": "with an event stream, which was not requested",
    "text": "with text",
    "unary": "without the event stream that was requested",
}


@dataclass(frozen=True, slots=True)
class ObservedResponse:
    """The reported parts of a response."""

    status: int
    content_type: str
    """The header as received."""
    size: int
    """Bytes of the body that have arrived."""
    head: bytes
    """The beginning of the body, decoded."""


def wrong_answer(seen: ObservedResponse, expected: str, fault: InvalidReason) -> Failure:
    """Returns the failure of an attempt that got this instead of `expected` (`a chat completion`).

    A wrong shape is not evidence about the health of a deployment; truncated JSON is.
    """
    page = page_in(seen.head, seen.content_type) if fault in ("text", "unary") else None
    words = _WORDS[fault] if page is None else page
    media = media_type(seen.content_type) or "no content type"
    detail = f"answered {seen.status} {words} ({media}, {seen.size} bytes) instead of {expected}"
    if page is not None:
        return Failure(FailureKind.MISROUTED, f"{detail}: check base_url", is_after_head=True)
    if fault == "cut":
        return Failure(FailureKind.TRUNCATED, detail, is_after_head=True)
    return Failure(FailureKind.MALFORMED, detail, is_after_head=True, is_shape_only=True)


def page_in(head: bytes, content_type: str) -> str | None:
    """Describes the HTML page that a body begins with, with its title; None if it is not one."""
    head = head[:_HEAD_BYTES]
    is_page = _HTML.match(head) is not None
    if not is_page and not (media_type(content_type) == "text/html" and head.removeprefix(_BOM).lstrip()[:1] == b"<"):
        return None
    found = _TITLE.search(head)
    title = html.unescape(found[1].decode("utf-8", "replace")) if found is not None else ""
    title = " ".join("".join(char if char.isprintable() else " " for char in title).split())
    return f'with an HTML page titled "{title[:_MAX_TITLE_CHARS]}"' if title else "with an HTML page"


def media_type(content_type: str) -> str:
    """Returns type and subtype in lower case, without parameters; "" if it is not a media type."""
    media = content_type.partition(";")[0].strip().lower()
    return media[:_MAX_TYPE_CHARS] if media.isascii() and media.isprintable() and " " not in media else ""
