"""Sends all metrics to an OpenTelemetry collector at intervals, if `ops.metrics.otlp` is set. Off, it costs nothing.

A slow or unreachable collector only causes a log line now and then: values are cumulative, so the next export has what
this one lacked. `admin.metrics.otlp` converts and sends, in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import structlog

from llm_guard.admin.metrics.exposition import Family, Histogram, Row
from llm_guard.clock import Clock
from llm_guard.config import MetricsExportSettings
from llm_guard.worker_thread import WorkerThread, wait_at_most

if TYPE_CHECKING:
    from llm_guard.admin.metrics.otlp import OtlpMetrics

_log = structlog.get_logger("llm_guard.admin.metrics.otlp_export")

_LAST_EXPORT_S = 1.5
_STOP_S = 2.0
_QUIET_S = 60.0


@dataclass(frozen=True, slots=True)
class FamilyValues:
    """The values of a metric family at one moment."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...]
    rows: list[Row]
    """Of a counter or gauge."""
    distributions: list[tuple[tuple[str, ...], tuple[float, ...], list[int], float]]
    """Of a histogram: label values, bounds, counts by bucket, and sum."""


class MetricsExport:
    """Runs from `start` to `stop`; `adopt` at a reload."""

    def __init__(
        self, settings: MetricsExportSettings, metrics: Iterable[Family | Histogram], clock: Clock
    ) -> None:  # fmt: skip
        self._settings = settings
        self._metrics = tuple(metrics)
        self._clock = clock
        self._started_wall = clock.wall()
        self._task: asyncio.Task[None] | None = None
        self._complained_at = float("-inf")

    def start(self) -> None:
        """Starts the export. Must be called in the event loop."""
        if self._settings.otlp is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._settings, self._settings.otlp))

    def adopt(self, settings: MetricsExportSettings) -> None:
        """Applies new settings; the collector of the old ones gets the last values until now."""
        if settings == self._settings:
            return
        self._settings = settings
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.start()

    async def stop(self) -> None:
        """Sends the last values, for up to 2 s."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=_STOP_S)

    async def _run(self, settings: MetricsExportSettings, endpoint: str) -> None:
        from llm_guard.admin.metrics.otlp import OtlpMetrics  # noqa: PLC0415  # an optional dependency

        thread = WorkerThread("metrics export")
        sender = OtlpMetrics(endpoint, settings.service_name, self._started_wall)
        try:
            while True:
                await self._clock.sleep(settings.interval)
                await self._export(thread, sender)
        finally:
            await self._export_last(thread, sender)

    async def _export(self, thread: WorkerThread, sender: OtlpMetrics) -> None:
        try:
            why = await thread.run(sender.send, await self._values(), self._clock.wall())
        except Exception as error:  # noqa: BLE001  # one failed export must not end the next ones
            why = f"{type(error).__name__}: {error}"
        now = self._clock.now()
        if why and now - self._complained_at >= _QUIET_S:
            self._complained_at = now
            _log.warning("metrics not exported", reason=why)

    async def _export_last(self, thread: WorkerThread, sender: OtlpMetrics) -> None:
        try:
            sending = thread.run(sender.send, await self._values(), self._clock.wall())
            why = await wait_at_most(_LAST_EXPORT_S, asyncio.shield(sending), self._clock)
        except TimeoutError:
            why = "the collector was too slow for the last values"
        except Exception as error:  # noqa: BLE001  # the rest must be stopped as well
            why = f"{type(error).__name__}: {error}"
        finally:
            thread.submit(sender.close)
            thread.shutdown()
        if why:
            _log.warning("metrics not exported", reason=why)

    async def _values(self) -> list[FamilyValues]:
        """Returns the values of all families, with a pause after each: those of one family are of one moment."""
        found = []
        for family in self._metrics:
            found.append(values_of(family))
            await self._clock.sleep(0)
        return found


def values_of(family: Family | Histogram) -> FamilyValues:
    """Returns the present values of a family."""
    if isinstance(family, Family):
        return FamilyValues(family.name, family.kind, family.text, family.labels, list(family.read()), [])
    distributions = [
        (values, distribution.bounds, distribution.counts.copy(), distribution.sum)
        for values, distribution in family.read()
    ]
    return FamilyValues(family.name, "histogram", family.text, family.labels, [], distributions)
