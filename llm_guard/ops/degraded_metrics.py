"""Metrics of degraded modes, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from llm_guard.gateway.degraded import Degraded
from llm_guard.ops.exposition import Family, Row


def degraded_metrics(degraded: Degraded) -> tuple[Family, ...]:
    """Returns the metrics of models with degraded mode in their rules, and of the gateway."""

    def routes() -> Iterator[Row]:
        return (((alias,), int(mode.is_degraded)) for alias, mode in degraded.snapshot().routes.items())

    return (
        Family("llm_guard_degraded", "gauge", "1 while lesser answers are given soon.", ("model",), routes),
        Family(
            "llm_guard_degraded_gateway",
            "gauge",
            "1 while that is so for all models that have any.",
            (),
            lambda: [((), int(degraded.snapshot().is_degraded))],
        ),
    )
