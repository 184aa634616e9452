"""/metrics: the page that Prometheus scrapes.

Owns what is on it, in which order, and that writing it holds nobody up: it gives the event loop back after every few
hundred samples, and takes no more than its share of it, however many ask. Does not own the numbers (`ops.call_metrics`,
`ops.state_metrics`), nor how they are written (`ops.exposition`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from llm_guard.ops.call_metrics import call_metrics
from llm_guard.ops.exposition import CONTENT_TYPES, Family, Format, Histogram, pieces, wanted
from llm_guard.ops.pages import TEXT, Answer, Asked, Page
from llm_guard.ops.running import Running
from llm_guard.ops.state_metrics import Alerts, Health, StateMetrics
from llm_guard.ops.watch import Watch

_SHARE = 0.1
"""Of the event loop's time: so much goes into pages at most. Anybody may ask for them."""
_LONGEST_PAUSE_S = 1.0
"""Prometheus gives a scrape up after ten, unless it is told otherwise."""


class Metrics:
    """Everything that there is to scrape."""

    def __init__(
        self, running: Running, watch: Watch, health: Health, alerts: Alerts, others: Iterable[Family | Histogram] = ()
    ) -> None:
        """`others`: of parts that have metrics of their own."""
        self.state = StateMetrics(running, watch, health, alerts)
        self.all: tuple[Family | Histogram, ...] = (*call_metrics(running.counters), *self.state.metrics(), *others)
        """But for the process's own."""
        self._process = ProcessCollector(registry=None)
        self._clock = running.clock
        self._turn = asyncio.Lock()
        self._begun = 0
        """How many pages."""
        self._pages: dict[Format, tuple[int, bytes]] = {}
        """The last of each form, and which it was of those begun."""
        self._next_at = 0.0

    def pages(self) -> list[Page]:
        summary = "For Prometheus; as OpenMetrics if asked to."
        return [Page("GET", "/metrics", summary, self._give, media=TEXT, is_open=True)]

    async def _give(self, asked: Asked) -> Answer:
        form = wanted(asked.headers.get("accept", ""))
        return Answer(await self._page(form), CONTENT_TYPES[form])

    async def _page(self, form: Format) -> bytes:
        """One that was begun after it was asked for: whoever asks meanwhile shares the next."""
        begun_before = self._begun
        async with self._turn:  # of many scrapers at once each would have its piece before a call went on
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
        for _ in self.state.look():
            await self._clock.sleep(0)
        for piece in pieces((*self.all, *self._of_process()), form):
            page.append(piece.encode(errors="replace"))  # a config may have half of a surrogate pair in a name
            await self._clock.sleep(0)
        return b"".join(page)

    def _of_process(self) -> Iterator[Family]:
        """Memory, CPU and file descriptors, where /proc tells."""
        for metric in self._process.collect():
            yield _family(metric)


def _family(metric: Metric) -> Family:
    """prometheus_client's own, without labels."""
    return Family(
        metric.name,
        "counter" if metric.type == "counter" else "gauge",
        metric.documentation,
        (),
        lambda: [((), each.value) for each in metric.samples],
    )
