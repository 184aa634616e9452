"""The last that an engine has printed.

Owns how much of it is kept, and that it can be shown: no control characters, no secret that we gave it. Does not own
where it comes from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

LINES = 100
CHARS = 500
"""Of a line."""
_MASK = "***"
_SHORTEST_SECRET = 6
"""Shorter ones are words, and to mask them tells more than it hides."""


class Tail:
    """Bytes in, lines out. What is not text is shown as such."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._begun = b""
        self._secrets = sorted((each for each in secrets if len(each) >= _SHORTEST_SECRET), key=len, reverse=True)

    def feed(self, data: bytes) -> None:
        # Not all of a flood is taken apart: the first piece may then be many lines, and is not looked at.
        *whole, begun = (self._begun + data).rsplit(b"\n", LINES + 1)
        for line in whole[-LINES:]:
            self._lines.append(self._shown(line))
        self._begun = begun[: 8 * CHARS]  # one without an end must not grow

    def lines(self) -> tuple[str, ...]:
        """The latest last."""
        begun = (self._shown(self._begun),) if self._begun else ()
        return (*self._lines, *begun)[-LINES:]

    def _shown(self, line: bytes) -> str:
        text = line.decode(errors="replace").rstrip("\r")
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        text = text[:CHARS]
        return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)
