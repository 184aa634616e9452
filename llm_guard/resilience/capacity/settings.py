"""Settings of a deployment's capacity (`resilience.capacity.gate`): its concurrency limit, its pace and its wait
queue."""

from __future__ import annotations

from dataclasses import dataclass

from llm_guard.resilience.capacity.concurrency_limit import LimiterSettings
from llm_guard.resilience.units import Count, Seconds


@dataclass(frozen=True, slots=True)
class CapacitySettings(LimiterSettings):
    """Durations in seconds."""

    pacing: bool = True
    """True: learn the provider's rate from its headers and 429s, and keep below it."""
    max_queue: Count = 1000
    """Most calls that may wait."""
    queue_timeout: Seconds = 30.0
    """The longest time for which a call waits."""
