"""/admin/calls: finished calls with each attempt, and running calls.

`proxy.telemetry.access_log` defines and keeps the lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct

from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, Refused
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.log import to_line
from llm_guard.proxy.call import Call
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.telemetry.access_log import CallLine, call_line, tokens_of
from llm_guard.proxy.telemetry.recorder import overhead_s


class CallsQuery(Struct, forbid_unknown_fields=True):
    """Filter of calls."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    failed: bool = False
    """Only those that count as failed."""
    running: bool = False
    """Only calls that still run, instead of finished ones."""
    model: str | None = None
    """The model's name in the request, or its route's."""
    deployment: str | None = None
    """A deployment that was tried or skipped."""


class CallsView(Struct, frozen=True):
    """Response of `GET /admin/calls`."""

    calls: list[CallLine]
    """The calls, latest first."""
    retained: int
    """Finished calls that are in memory."""
    retained_failed: int
    """Those of them that failed because of the gateway or an upstream, not because of the client."""
    running: int
    """Calls that run now."""


class CallApi(EndpointGroup):
    """Endpoints of recent calls; a reload changes how many are kept."""

    def __init__(self, config: Config, gateway: Handler, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock
        self._timelines = gateway.recorder.timelines
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Limits how many calls are kept."""
        kept = config.ops.recent_calls
        self._timelines.limit(kept.calls, kept.memory)

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/admin/calls", "Lists the last calls.", self._list, query=CallsQuery, gives=CallsView),
            Endpoint(
                "GET",
                "/admin/calls/{id}",
                "Returns one call, by its x-llm-guard-request-id.",
                self._one,
                gives=CallLine,
            ),
        ]

    async def _list(self, asked: AdminRequest) -> AdminResponse:
        wants: CallsQuery = asked.wants
        kept = self._timelines.snapshot()
        found = islice(_matching(self._lines(wants), wants.model, wants.deployment), wants.limit)
        # The lines are JSON already: decoding and encoding them would take a hundred times as long.
        listed = b",".join(line.rstrip() for line in found)
        said = b'],"retained":%d,"retained_failed":%d,"running":%d}' % (kept.calls, kept.failed, self._gateway.running)
        return AdminResponse(b'{"calls":[' + listed + said)

    async def _one(self, asked: AdminRequest) -> AdminResponse:
        name = asked.params["id"]
        for call in self._gateway.calls():
            if call.id == name:
                return AdminResponse(self._running_line(call).rstrip())
        line = self._timelines.try_find(to_line({"request_id": name}).rstrip(b"}\n"))
        if line is None:
            raise Refused(
                404,
                "unknown_call",
                "no call with this id is in memory any more: ops.recent_calls sets how many are retained",
            )
        return AdminResponse(line.rstrip())

    def _lines(self, wants: CallsQuery) -> Iterator[bytes]:
        if wants.running:
            return map(self._running_line, reversed(self._gateway.calls()))
        return self._timelines.newest_failed() if wants.failed else self._timelines.newest()

    def _running_line(self, call: Call) -> bytes:
        now = self._clock.now()
        line = call_line(call, call.outcome, tokens_of(call), now, overhead_s(call, now))
        line.outcome = "running"
        for attempt, its_line in zip(call.attempts, line.attempts, strict=True):
            if attempt.ended_at is None:
                its_line.outcome = "running"
        return to_line(line)


def _matching(lines: Iterable[bytes], model: str | None, deployment: str | None) -> Iterator[bytes]:
    models = (_key("model", model), _key("route", model)) if model is not None else ()
    asked = _key("deployment", deployment) if deployment is not None else b""
    return (line for line in lines if asked in line and (not models or any(key in line for key in models)))


def _key(name: str, value: str) -> bytes:
    """Returns the JSON that a line with this field contains. No text in a line can contain it: quotes in texts are
    escaped."""
    return to_line({name: value})[1:-2]
