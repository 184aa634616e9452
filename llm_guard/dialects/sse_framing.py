"""Boundaries of the events in a stream (WHATWG HTML, server-sent events): line ends, comments, maximum length.

The content of events is parsed in `dialects.sse`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_EVENT_BYTES = 1 << 20
"""An event longer than this is passed on as it arrives; only its beginning is read."""

CUT_END_BYTES = 3
"""Maximum number of bytes at the end of a chunk that can be the first half of a boundary."""

# The group is written out twice: with a repeated group `re` does not optimise for the first characters, and takes 2.5
# us for an event instead of 0.9.
END_OF_EVENT = re.compile(rb"(?:\n|\r\n?+)(?:\n|\r\n?+)[\r\n]*")
# A comment too long to buffer until its line ends counts as the beginning of an event.
COMMENTS = re.compile(rb"(?::[^\r\n]{0,%d}+(?:\r\n|\n|\r(?!\n)))+" % (MAX_EVENT_BYTES + CUT_END_BYTES - 1))


def spans(block: bytes) -> Iterator[tuple[int, int]]:
    """Yields the start of each event that ends in `block`, and the start of the line ends that terminate it.

    Empty lines and comments in front belong to no event: they are passed on even before the event is complete."""
    start = len(block) - len(block.lstrip(b"\r\n"))
    for end in END_OF_EVENT.finditer(block, start):
        comments = COMMENTS.match(block, start) if block.startswith(b":", start) else None
        yield comments.end() if comments else start, end.start()
        start = end.end()


def last_boundary(block: bytes) -> int:
    """End of the last complete event of `block`; 0 if there is none."""
    if b"\r" not in block:
        at = block.rfind(b"\n\n")
        return at + 2 if at >= 0 else 0
    last = 0
    for end in END_OF_EVENT.finditer(block):
        last = end.end()
    return last
