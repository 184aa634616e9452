"""Quick checks of events: does one have content, and can it be a JSON object?

The meaning of an event in a wire format is in `dialects.openai` and `dialects.anthropic`.
"""

from __future__ import annotations

import re

KEEP_ALIVE = re.compile(r"(?:\w+[.-])?(?:ping|keep[-_.]?alive|heart[-_.]?beat)", re.IGNORECASE)
"""Names that servers and proxies give to events that only keep a connection open."""
_LABELS = frozenset({"format", "index", "role", "type"})
# Lines that are an object, the name of an event, or no data at all. A line after a byte order mark may be anything.
_PLAIN_LINES = re.compile(rb"(?:(?:data: ?\{.*\}|event: ?+(?!error).*|[^de\xef\n].*|)\r?\n)*+")


def has_content(value: object, depth: int = 8) -> bool:
    """True if a delta's value adds anything. Labels alone, such as the index of a tool call, add nothing."""
    if isinstance(value, dict) and depth:
        return any(name not in _LABELS and has_content(part, depth - 1) for name, part in value.items())
    if isinstance(value, list) and depth:
        return any(has_content(part, depth - 1) for part in value)
    return bool(value)


def is_plain(block: bytes) -> bool:
    """True if certainly no event in `block` is garbled or named `error`; False if this quick check cannot decide."""
    has_no_lone_cr = block.find(b"\r") < 0 or block.count(b"\r") == block.count(b"\r\n")
    return has_no_lone_cr and _PLAIN_LINES.fullmatch(block) is not None


def is_garbled(name: str, data: bytes, *, is_whole: bool) -> bool:
    """True if an event's data cannot be the expected object."""
    data = data.strip()
    if not data or data == b"[DONE]" or name == "error":
        return False
    return not data.startswith(b"{") or (is_whole and not data.endswith(b"}"))
