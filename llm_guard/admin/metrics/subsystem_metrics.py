"""Metrics of probes. `health.prober` has the values."""

from __future__ import annotations

from collections.abc import Iterator

from llm_guard.health.prober import Prober
from llm_guard.ops.exposition import Family, Histogram, Row

_UP = {"up": 1, "down": 0}


def probe_metrics(prober: Prober) -> tuple[Family | Histogram, ...]:
    """Returns the metrics. Without probes there are no samples."""

    def up(of_deployments: bool) -> Iterator[Row]:
        for view in prober.views():
            label = view.deployment if of_deployments else view.upstream
            if (view.deployment is not None) == of_deployments and label is not None and view.state in _UP:
                yield (label,), _UP[view.state]

    def last_ok() -> Iterator[Row]:
        for view in prober.views():
            if view.deployment is None and view.last_ok_wall is not None:
                yield (view.upstream,), view.last_ok_wall

    return (
        Family(
            "llm_guard_probes", "counter", "Looks at an upstream beside its calls.", ("upstream", "kind", "outcome"),
            lambda: list(prober.counts.items()),
        ),
        Histogram(
            "llm_guard_probe_duration_seconds", "A look that was answered.", "upstream",
            lambda: list(prober.durations.items()),
        ),
        Family(
            "llm_guard_upstream_up", "gauge", "1 while an upstream is up by its probes, 0 while it is down.",
            ("upstream",), lambda: up(of_deployments=False),
        ),
        Family(
            "llm_guard_deployment_up", "gauge", "The same of a deployment that has probes of its own.",
            ("deployment",), lambda: up(of_deployments=True),
        ),
        Family(
            "llm_guard_upstream_last_ok_timestamp_seconds", "gauge", "When a probe found an upstream well last.",
            ("upstream",), last_ok,
        ),
    )  # fmt: skip
