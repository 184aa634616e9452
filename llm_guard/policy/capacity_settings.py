"""The settings of a deployment's capacity: its limit of calls at once, its pace and its queue.

Owns no behaviour (`policy.gate`).
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_guard.policy.limiter import LimiterSettings
from llm_guard.policy.units import Count, Seconds


@dataclass(frozen=True, slots=True)
class CapacitySettings(LimiterSettings):
    """Durations in seconds."""

    pacing: bool = True
    """Learn the provider's rate from its headers and 429s, and keep below it."""
    queue: Count = 1000
    """Calls that wait at most."""
    queue_wait: Seconds = 30.0
    """The longest a call waits."""
