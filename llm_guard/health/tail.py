"""The last lines of an engine's output, made safe to display: no control characters, and no secret from its
environment.
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
        self._secrets = sorted((each for each in secrets if len(each) >= _SHORTEST_SECRET), key=len, reverse=True)

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
