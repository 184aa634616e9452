"""The number of worker processes (`server.workers`), and what does not work with several of them."""

from __future__ import annotations

import os
import re
from math import ceil, inf
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BeforeValidator, WithJsonSchema

from llm_guard.config.engines import EngineConfig
from llm_guard.config.fields import wrong
from llm_guard.config.operator import Ops
from llm_guard.config.yaml_source import Document, KeyPath

MOST_WORKERS = 64
_GROUPS = Path("/sys/fs/cgroup")

_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MOST_WORKERS},
        {"type": "string", "pattern": "^(auto|[0-9]{1,2}|\\$\\{.*)$"},
    ]
}


def _workers(value: object) -> object:
    if value == "auto":
        return value
    number = int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,2}", value) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST_WORKERS:
        raise wrong(f"must be a number of processes from 1 to {MOST_WORKERS}, or auto: one for each processor")
    return number


WorkerCount = Annotated[int | Literal["auto"], BeforeValidator(_workers), WithJsonSchema(_SCHEMA)]


def worker_count(setting: int | Literal["auto"]) -> int:
    """Returns the number of worker processes; `auto` is the number of processors that this process may use, by its
    affinity and the CPU quota of its container (cgroup v2)."""
    return min(MOST_WORKERS, _processors()) if setting == "auto" else setting


def check_workers(
    document: Document, setting: int | Literal["auto"], ops: Ops | None, engines: dict[str, EngineConfig | None]
) -> None:
    """Reports what only one process can do, if there may be several."""
    if setting == 1:
        return
    one = "or set server.workers to 1"
    if ops is not None and ops.port is None:
        reason = f"must be set, {one}: the admin API of all workers needs a port of its own"
        document.report(("ops", "port"), reason)
    if ops is not None and ops.chaos:
        document.report(("ops", "chaos"), f"must be false, {one}: a worker that restarts would lose the faults")
    if ops is not None and ops.metrics.otlp is not None:
        place: KeyPath = ("ops", "metrics", "otlp")
        document.report(place, f"must be null, {one}: let the collector scrape /metrics, which has the sums")
    if engines:
        reason = f"are not possible with several workers, which would each start them: start them elsewhere, {one}"
        document.report(("engines",), reason)


def cpu_quota(groups: Path, own: str) -> float:
    """Returns how many processors a process may use by the quotas of its control group and of those above it, inf: all.

    `groups` is where the kernel shows control groups (v2), `own` the content of `/proc/self/cgroup`. A container may
    see its own group at the top, whatever its path is.
    """
    path = next((line.removeprefix("0::") for line in own.splitlines() if line.startswith("0::")), "/")
    names = PurePosixPath(path.strip("/")).parts
    return min(_quota_in(groups.joinpath(*names[:depth])) for depth in range(len(names) + 1))


def _quota_in(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # not limited, or not as in cgroup-v2.rst
        return inf


def _processors() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        own = Path("/proc/self/cgroup").read_text()
    except OSError:  # not Linux
        return usable
    return max(1, ceil(min(usable, cpu_quota(_GROUPS, own))))
