"""/admin/probes: results of probes, and probing now. Publishes changes as events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from llm_guard.admin.api.parameters import check_known
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, answer
from llm_guard.admin.schemas.subsystems import ProbedView
from llm_guard.proxy.telemetry.access_log import Timestamps
from llm_guard.upstreams.probes.prober import Prober
from llm_guard.upstreams.probes.targets import ProbeTarget, ProbeView


class ProbeNow(Change):
    """The upstream to probe, with its deployments; null: all."""

    upstream: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class ProbeApi(EndpointGroup):
    """Endpoints of probes; the prober follows the current config."""

    def __init__(self, prober: Prober, changes: Changes) -> None:
        self._prober = prober
        self._changes = changes
        self._timestamps = Timestamps()

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/admin/probes", "Lists the results of probes.", self._give, gives=list[ProbedView]),
            Endpoint(
                "POST", "/admin/probes/now", "Probes at once, and returns the results.", self._probe_now,
                takes=ProbeNow, gives=Changed[list[ProbedView]],
            ),
        ]  # fmt: skip

    def views(self, upstream: str | None = None) -> Iterator[ProbedView]:
        """Yields the current results of one upstream and its deployments, or of all; the consumer may pause in
        between."""
        pairs = zip(self._prober.subjects(), self._prober.views(), strict=True)
        return (self._view(subject, view) for subject, view in pairs if upstream in (None, view.upstream))

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(list(self.views()))

    async def _probe_now(self, asked: AdminRequest) -> AdminResponse:
        wanted: str | None = asked.body.upstream
        if wanted is not None:
            check_known(wanted, {subject.upstream.name for subject in self._prober.subjects()}, "probe")

        async def do() -> ChangeResult:
            await self._prober.probe_and_wait(wanted)
            shown = list(self.views(wanted))
            return ChangeResult(shown, warnings=[] if shown else ["nothing was probed: no upstream has a `probe`"])

        return await self._changes.make(asked, "probes.now", wanted or "all", do)

    def _view(self, subject: ProbeTarget, view: ProbeView) -> ProbedView:
        rules = subject.settings
        return ProbedView(
            view.upstream,
            view.deployment,
            view.kind,
            view.state,
            view.last,
            view.why or None,
            view.failures,
            self._iso(view.last_ok_wall),
            self._iso(view.looked_wall),
            None if view.took_s is None else round(view.took_s, 4),
            rules.interval,
            rules.timeout,
            rules.max_failures,
            self._prober.why_failed(view.upstream),
        )

    def _iso(self, wall: float | None) -> str | None:
        return None if wall is None else self._timestamps.of(wall)
