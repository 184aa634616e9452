"""Where the events of a stream begin and end (WHATWG HTML, server-sent events).

Owns line ends, comments and the longest event. Does not own what an event says (`dialect.sse`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_EVENT_BYTES = 1 << 20
"""An event longer than this is passed on as it comes; only its beginning is read."""

CUT_END_BYTES = 3
"""The last bytes of a chunk may be so many of the first half of a boundary."""

# Written out twice: of a repeated group re does not learn the first characters, and takes 2.5 us for an event, not 0.9.
END_OF_EVENT = re.compile(rb"(?:\n|\r\n?+)(?:\n|\r\n?+)[\r\n]*")
# A comment that is too long to be held until its line ends is the beginning of an event.
COMMENTS = re.compile(rb"(?::[^\r\n]{0,%d}+(?:\r\n|\n|\r(?!\n)))+" % (MAX_EVENT_BYTES + CUT_END_BYTES - 1))


def spans(block: bytes) -> Iterator[tuple[int, int]]:
    """Where each event that ends in `block` begins, and where its end-of-event lines do.

    Empty lines and comments in front belong to none: they are passed on before the event is there, if it comes later.
    """
    start = len(block) - len(block.lstrip(b"\r\n"))
    for end in END_OF_EVENT.finditer(block, start):
        comments = COMMENTS.match(block, start) if block.startswith(b":", start) else None
        yield comments.end() if comments else start, end.start()
        start = end.end()


def last_boundary(block: bytes) -> int:
    """Where the last complete event of `block` ends; 0 when none does."""
    if b"\r" not in block:
        at = block.rfind(b"\n\n")
        return at + 2 if at >= 0 else 0
    last = 0
    for end in END_OF_EVENT.finditer(block):
        last = end.end()
    return last
