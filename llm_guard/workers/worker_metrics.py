"""Metrics of the workers themselves, which their parent has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

from llm_guard.admin.metrics.declaration import DeclaredFamily, counter, gauge, single
from llm_guard.workers.child import EndReason

_REASONS: tuple[EndReason, ...] = tuple(reason for reason in get_args(EndReason) if reason != "stop")


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The values of `WORKER_METRICS`."""

    workers: int
    ready: Callable[[], int]
    restarts: Mapping[EndReason, int]


WORKER_METRICS: tuple[DeclaredFamily[WorkerCounts], ...] = (
    gauge("workers", "Worker processes that the gateway should have.", (), single(lambda of: of.workers)),
    gauge("workers_ready", "Worker processes that accept calls.", (), single(lambda of: of.ready())),
    counter(
        "worker_restarts",
        "Worker processes that ended and were started again, by reason: exit, start, hang, or config (it differed).",
        ("reason",), lambda of: [((reason,), of.restarts.get(reason, 0)) for reason in _REASONS],
    ),
)  # fmt: skip
"""All of them. A gateway with one process has none."""
