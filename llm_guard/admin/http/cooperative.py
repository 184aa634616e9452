"""Pauses in long scans, so that requests of operators do not delay calls."""

from __future__ import annotations

from llm_guard.clock import Clock

LOOKS = 1000
"""Steps without a pause. A step takes about a microsecond."""


class CooperativePauses:
    """Pauses of one request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks = 0

    async def after(self, looks: int) -> None:
        """Counts steps, and yields to the event loop when a pause is due."""
        self._looks += looks
        if self._looks >= LOOKS:
            self._looks = 0
            await self._clock.sleep(0)
