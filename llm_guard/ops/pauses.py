"""Pauses in what takes long: an operator's question must not hold up a call.

Owns when the event loop is given back. Does not own what is looked at.
"""

from __future__ import annotations

from llm_guard.clock import Clock

LOOKS = 1000
"""At once. A look takes about a microsecond."""


class Pauses:
    """Of one question."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks = 0

    async def after(self, looks: int) -> None:
        """So many more were taken: gives the event loop back where that is due."""
        self._looks += looks
        if self._looks >= LOOKS:
            self._looks = 0
            await self._clock.sleep(0)
