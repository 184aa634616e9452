"""Settings of a deployment's capacity (`resilience.capacity.gate`): its concurrency limit, its pace and its wait
queue."""

from __future__ import annotations

from dataclasses import dataclass

from llm_guard.resilience.units import Concurrency, Count, OptionalSeconds, Seconds


@dataclass(frozen=True, slots=True)
class LimiterSettings:
    """`latency_threshold` is in seconds. A minimum above the maximum counts as the maximum."""

    concurrency: Concurrency = None
    """None: no limit; a number: that limit; adaptive: learned, within the bounds below."""
    min_concurrency: Count = 4
    """Lower bound of `adaptive`."""
    max_concurrency: Count = 1000
    """Upper bound of `adaptive`."""
    latency_threshold: OptionalSeconds = None
    """A response slower than this is a sign of overload; None: one slower than usual is."""


@dataclass(frozen=True, slots=True)
class CapacitySettings(LimiterSettings):
    """Durations in seconds."""

    pacing: bool = True
    """True: learn the provider's rate from its headers and 429s, and keep below it."""
    max_queue: Count = 1000
    """Most calls that may wait."""
    queue_timeout: Seconds = 30.0
    """The longest time for which a call waits."""
