"""What a wrong token costs: a second of its own request's time.

Owns how long that is, and how many requests wait at once. A right token never comes here: behind a proxy all requests
have one address, so a limit by address would lock operators out.
"""

from __future__ import annotations

from llm_guard.clock import Clock

WRONG_TOKEN_S = 1.0
MOST_WAITING = 20
"""So that guesses hold no more than a few connections."""


class Penalty:
    """Of all requests of one gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting = 0

    async def serve(self) -> bool:
        """Returns True after a second; False at once if too many wait already."""
        if self._waiting >= MOST_WAITING:
            return False
        self._waiting += 1
        try:
            await self._clock.sleep(WRONG_TOKEN_S)
        finally:
            self._waiting -= 1
        return True
