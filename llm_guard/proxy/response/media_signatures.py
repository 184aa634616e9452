"""Recognises bodies that cannot be audio by their first bytes, independent of their content type.

Owns the signatures of other formats. `proxy.response.unary` decides how much of a body is read for this.
"""

from __future__ import annotations

import re

from llm_guard.resilience.classification.invalid_response import media_type, page_in

_NOT_IN_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_AUDIO = (b"ID3", b"RIFF", b"OggS", b"fLaC")
"""Signatures of audio formats that consist of printable characters, as a text could."""
_TEXT_BEFORE_BINARY = re.compile(
    rb"\s*--[^\r\n\x00-\x1f]{1,200}\r?\n(?:[\w-]+:|\r?\n)"  # multipart (RFC 2046, section 5.1.1)
    rb"|\s*(?:HTTP/\d|(?:content|mime)-[a-z-]+:)",  # a message inside a message
    re.IGNORECASE,
)
_OTHER_FORMATS = (
    b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"%PDF-", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd", b"\x7fELF", b"SQLite format 3", b"7z\xbc\xaf\x27\x1c", b"BZh9", b"\xfd7zXZ\x00",
)  # fmt: skip
"""Signatures of images, documents, archives and programs. None is shorter than three bytes: raw PCM may begin with any
two."""
_OTHER_TYPES = ("multipart/", "image/", "font/", "model/", "message/")
"""Media types that no server declares for audio, not even by mistake."""
_RIFF_BYTES = 12
_UTF_16 = re.compile(rb"\xff\xfe(?:[\t\n\r -~]\x00){4}|\xfe\xff(?:\x00[\t\n\r -~]){4}")
_SIGNATURE_BYTES = 16
_ASCII_SHARE = 0.7
_ASCII = bytes([*b"\t\n\r", *range(32, 127)])


def may_be_audio(head: bytes, content_type: str) -> bool | None:
    """Returns whether a body that begins like this may be passed on as audio. None: more of it must be read."""
    if _is_other_format(head, content_type):
        return False
    return None if _is_text(head) or _is_part_of_signature(head) else True


def _is_part_of_signature(head: bytes) -> bool:
    if len(head) >= _SIGNATURE_BYTES:
        return False
    if head[:4] == b"RIFF" or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return len(head) < _RIFF_BYTES
    return any(signature.startswith(head) for signature in _OTHER_FORMATS)


def _is_other_format(head: bytes, content_type: str) -> bool:
    """Returns whether a body is declared or recognised as binary data that is not audio."""
    if media_type(content_type).startswith(_OTHER_TYPES):
        return True
    if head[:4] == b"RIFF" and head[8:12] in (b"WEBP", b"AVI "):
        return True
    if head.startswith(_OTHER_FORMATS) or _UTF_16.match(head) is not None:
        return True
    return _TEXT_BEFORE_BINARY.match(head) is not None


def _is_text(head: bytes) -> bool:
    """Returns whether bytes are the beginning of a text."""
    if page_in(head, "") is not None:
        return True
    if not head or head.startswith(_AUDIO) or _NOT_IN_TEXT.search(head) is not None:
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and len(head) - error.start < 4:
            return True
        ascii_bytes = len(head) - len(head.translate(None, _ASCII))
        return ascii_bytes >= _ASCII_SHARE * len(head)  # text in Latin-1
    return True
