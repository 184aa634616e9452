"""Delays requests with a wrong token by a second.

A limit by address would lock operators out, as behind a proxy all requests have one address. Requests with a valid
token are never delayed.
"""

from __future__ import annotations

from llm_guard.clock import Clock

WRONG_TOKEN_S = 1.0
MOST_WAITING = 20
"""Keeps guesses from occupying more than a few connections."""


class Penalty:
    """Shared by all requests of a gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting = 0

    async def serve(self) -> bool:
        """Returns True after a second; False at once if too many requests are delayed already."""
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            await self._clock.sleep(WRONG_TOKEN_S)
        finally:
            self._waiting -= 1
        return True
