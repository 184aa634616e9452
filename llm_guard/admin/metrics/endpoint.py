"""/metrics: the page that Prometheus scrapes.

Writing it never blocks calls: it yields to the event loop after every few hundred samples, and takes a bounded share of
the loop's time, however many scrapers there are. `admin.metrics.call_metrics` and `admin.metrics.state_metrics` have
the values, `admin.metrics.exposition` the format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from llm_guard.admin.context import AdminContext
from llm_guard.admin.http.endpoint import TEXT, AdminRequest, AdminResponse, Endpoint, EndpointGroup
from llm_guard.admin.metrics.call_metrics import CALL_METRICS
from llm_guard.admin.metrics.declaration import bound
from llm_guard.admin.metrics.exposition import CONTENT_TYPES, Family, Format, Histogram, pieces, wanted
from llm_guard.admin.metrics.state_metrics import STATE_METRICS, AlertCounts, HealthStates, StateMetrics
from llm_guard.admin.monitor.monitor import LoopLag

_SHARE = 0.1
"""Largest share of the event loop's time for pages. The page is open to all."""
_LONGEST_PAUSE_S = 1.0
"""Seconds. Prometheus times out a scrape after ten by default."""


class Metrics(EndpointGroup):
    """All metrics, and the page that shows them."""

    def __init__(
        self,
        running: AdminContext,
        lag: LoopLag,
        health: HealthStates,
        alerts: AlertCounts,
        others: Iterable[Family | Histogram] = (),
    ) -> None:
        """`others`: metrics of other subsystems."""
        self.state = StateMetrics(running, lag, health, alerts)
        self.all: tuple[Family | Histogram, ...] = (
            *bound(CALL_METRICS, running.counters),
            *bound(STATE_METRICS, self.state),
            *others,
        )
        """All metrics but those of the process itself."""
        self._process = ProcessCollector(registry=None)
        self._clock = running.clock
        self._turn = asyncio.Lock()
        self._begun = 0
        """Pages begun so far."""
        self._pages: dict[Format, tuple[int, bytes]] = {}
        """Last page of each format, with its number among those begun."""
        self._next_at = 0.0

    def pages(self) -> list[Endpoint]:
        summary = "Returns metrics for Prometheus, in OpenMetrics format if the client accepts it."
        return [Endpoint("GET", "/metrics", summary, self._give, media=TEXT, is_open=True)]

    async def current(self) -> tuple[Family | Histogram, ...]:
        """Returns all metrics, those of the process included, after a look at the state that they show."""
        for _ in self.state.look():
            await self._clock.sleep(0)
        return (*self.all, *self._of_process())

    async def _give(self, asked: AdminRequest) -> AdminResponse:
        form = wanted(asked.headers.get("accept", ""))
        return AdminResponse(await self._page(form), CONTENT_TYPES[form])

    async def _page(self, form: Format) -> bytes:
        """Returns a page that was begun after this request. Concurrent requests share the next one."""
        begun_before = self._begun
        async with self._turn:  # one page at a time: with many scrapers each would otherwise take its share of the loop
            number, page = self._pages.get(form, (0, b""))
            if number > begun_before:
                return page
            if (pause_s := self._next_at - self._clock.now()) > 0:
                await self._clock.sleep(pause_s)
            self._begun += 1
            number, since = self._begun, self._clock.now()
            try:
                page = await self._written(form)
            finally:
                took_s = self._clock.now() - since
                self._next_at = since + took_s + min(took_s * (1 / _SHARE - 1), _LONGEST_PAUSE_S)
            self._pages[form] = number, page
            return page

    async def _written(self, form: Format) -> bytes:
        page = []
        for piece in pieces(await self.current(), form):
            page.append(piece.encode(errors="replace"))  # names in a config may have an unpaired surrogate
            await self._clock.sleep(0)
        return b"".join(page)

    def _of_process(self) -> Iterator[Family]:
        """Yields memory, CPU and file descriptors, where /proc has them."""
        for metric in self._process.collect():
            yield _family(metric)


def _family(metric: Metric) -> Family:
    """Converts a metric of prometheus_client that has no labels."""
    return Family(
        metric.name,
        "counter" if metric.type == "counter" else "gauge",
        metric.documentation,
        (),
        lambda: [((), sample.value) for sample in metric.samples],
    )
