"""/metrics of a gateway with several workers: the sums of all, with the counts of those that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from llm_guard.admin.http.endpoint import AdminResponse
from llm_guard.admin.metrics.declaration import bound
from llm_guard.admin.metrics.exposition import CONTENT_TYPES, Format, pieces, wanted
from llm_guard.clock import Clock
from llm_guard.workers.merging import Rule, merged
from llm_guard.workers.supervisor import WorkerSupervisor
from llm_guard.workers.worker_metrics import WORKER_METRICS, WorkerCounts

_TAKEN_EVERY_S = 5.0
"""The counts since then are lost with a worker that is killed."""


class MetricsPage:
    """Takes the metrics of the workers for each page, and at intervals."""

    def __init__(self, supervisor: WorkerSupervisor, workers: int, rules: Mapping[str, Rule], clock: Clock) -> None:
        self._supervisor = supervisor
        self._counts = WorkerCounts(workers, lambda: len(supervisor.ready()), supervisor.restarts)
        self._rules = rules
        self._clock = clock
        self._turn = asyncio.Lock()
        self._begun = 0
        """Pages begun so far."""
        self._pages: dict[Format, tuple[int, bytes]] = {}
        """Last page of each format, with its number among those begun."""

    async def run(self) -> None:
        """Takes the metrics at intervals."""
        while True:
            await self._clock.sleep(_TAKEN_EVERY_S)
            async with self._turn:
                await self._take()

    async def answer(self, accept: str) -> AdminResponse:
        """Returns a page that was begun after this request. Concurrent requests share the next one."""
        form, begun_before = wanted(accept), self._begun
        async with self._turn:
            number, page = self._pages.get(form, (0, b""))
            if number <= begun_before:
                self._begun += 1
                number = self._begun
                await self._take()
                page = await self._written(form)
                self._pages[form] = number, page
        return AdminResponse(page, CONTENT_TYPES[form])

    async def _take(self) -> None:
        await asyncio.gather(*(child.take_metrics() for child in self._supervisor.children.values()))

    async def _written(self, form: Format) -> bytes:
        snapshots = [*(child.metrics for child in self._supervisor.children.values()), self._supervisor.lasting]
        page = []
        for piece in pieces((*merged(snapshots, self._rules), *bound(WORKER_METRICS, self._counts)), form):
            page.append(piece.encode(errors="replace"))  # names in a config may have an unpaired surrogate
            await self._clock.sleep(0)
        return b"".join(page)
