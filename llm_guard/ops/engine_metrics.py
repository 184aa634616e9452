"""Metrics of engines. `health.engines` has the values."""

from __future__ import annotations

from typing import get_args

from llm_guard.health.engines import Engines
from llm_guard.ops.exposition import Family
from llm_guard.policy.engine import EngineState

_STATES: tuple[EngineState, ...] = get_args(EngineState)


def engine_metrics(engines: Engines) -> tuple[Family, ...]:
    """Returns the metrics. Without engines there are no samples."""
    return (
        Family(
            "llm_guard_engine_state", "gauge", "1 for the state an engine is in.", ("engine", "state"),
            lambda: (((each.name, name), int(name == each.now.state)) for each in engines.seen() for name in _STATES),
        ),
        Family(
            "llm_guard_engine_restarts", "counter", "Restarts of an engine that have come to an end.",
            ("engine", "outcome"),
            lambda: [
                ((each.name, outcome), count)
                for each in engines.seen()
                for outcome, count in (("ok", each.now.restarts_ok), ("failed", each.now.restarts_failed))
            ],
        ),
    )  # fmt: skip
