"""What engines have written: the last lines of a process, and the parts of a container's log.

Source: Docker Engine API 1.57, ContainerAttach, "Stream format"; Podman uses the same format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

LINES = 100
CHARS = 500
"""Maximum length of a line."""
_MASK = "***"
_SHORTEST_SECRET = 6
"""Shorter values are ordinary words; masking them would reveal more than it hides."""


class Tail:
    """Collects bytes and returns the last lines as text. Undecodable bytes become replacement characters."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._begun = b""
        self._secrets = sorted((secret for secret in secrets if len(secret) >= _SHORTEST_SECRET), key=len, reverse=True)

    def feed(self, data: bytes) -> None:
        # Splits only the last lines of a flood: the first piece may then hold many lines, and is dropped.
        *whole, begun = (self._begun + data).rsplit(b"\n", LINES + 1)
        for line in whole[-LINES:]:
            self._lines.append(self._shown(line))
        self._begun = begun[: 8 * CHARS]  # an endless line must not grow

    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        begun = (self._shown(self._begun),) if self._begun else ()
        return (*self._lines, *begun)[-LINES:]

    def _shown(self, line: bytes) -> str:
        text = line.decode(errors="replace").rstrip("\r")
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        text = text[:CHARS]
        return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


SHOWN_LINES = 20
"""Lines that are read from a daemon's log: as many as the admin API shows."""
_HEADER_BYTES = 8
"""Of each part: the number of its stream, three zeros, and its length in four bytes."""


def lines_of(log: bytes) -> tuple[str, ...]:
    """The last lines of a log that was read as a whole."""
    tail = Tail()
    tail.feed(log)
    return tail.lines()[-SHOWN_LINES:]


def without_headers(log: bytes) -> bytes:
    """Content of a container's log. The log of a container with a terminal has no headers and is returned unchanged."""
    parts, at = [], 0
    while _is_header(log[at : at + _HEADER_BYTES]):
        begin = at + _HEADER_BYTES
        at = begin + int.from_bytes(log[begin - 4 : begin])
        parts.append(log[begin:at])
    return b"".join((*parts, log[at:]))


def _is_header(head: bytes) -> bool:
    """Streams are 0, 1 and 2: input, output and errors."""
    return len(head) == _HEADER_BYTES and head[0] <= 2 and head[1:4] == bytes(3)
