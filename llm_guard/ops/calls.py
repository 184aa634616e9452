"""/admin/calls: what became of the calls that are over, and how far those are that are not.

Owns how they are asked for. Does not own what is kept of them (`gateway.timelines`), nor what a line says
(`gateway.call_line`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct

from llm_guard.call import Call
from llm_guard.clock import Clock
from llm_guard.config import TimelineSettings
from llm_guard.gateway.call_line import CallLine, call_line, tokens_of
from llm_guard.gateway.record import overhead_s
from llm_guard.gateway.server import Gateway
from llm_guard.log import to_line
from llm_guard.ops.pages import Answer, Asked, Page, Refused


class CallsQuery(Struct, forbid_unknown_fields=True):
    """Which calls."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    failed: bool = False
    """Only those that count as failed."""
    running: bool = False
    """Only those that are not over, instead of those that are."""
    model: str | None = None
    """By the name that was asked for, or its route's."""
    deployment: str | None = None
    """That was asked, or skipped."""


class Calls(Struct, frozen=True):
    """`GET /admin/calls`."""

    calls: list[CallLine]
    """The latest first."""
    kept: int
    """Calls that are over, of which a line is kept."""
    kept_failed: int
    """Of these: failed, though a better gateway or upstream could have made a success of it."""
    running: int


class CallPages:
    """What is kept, as a reload changes it."""

    def __init__(self, gateway: Gateway, clock: Clock, settings: TimelineSettings) -> None:
        self._gateway = gateway
        self._clock = clock
        self._timelines = gateway.recorder.timelines
        self.adopt(settings)

    def adopt(self, settings: TimelineSettings) -> None:
        self._timelines.limit(settings.calls, settings.memory)

    def pages(self) -> list[Page]:
        return [
            Page("GET", "/admin/calls", "The last calls.", self._list, query=CallsQuery, gives=Calls),
            Page("GET", "/admin/calls/{id}", "One call, by x-llm-guard-request-id.", self._one, gives=CallLine),
        ]

    async def _list(self, asked: Asked) -> Answer:
        wants: CallsQuery = asked.wants
        kept = self._timelines.snapshot()
        found = islice(_matching(self._lines(wants), wants.model, wants.deployment), wants.limit)
        # The lines are JSON: to read and write them again would take a hundred times as long.
        listed = b",".join(line.rstrip() for line in found)
        said = b'],"kept":%d,"kept_failed":%d,"running":%d}' % (kept.calls, kept.failed, self._gateway.running)
        return Answer(b'{"calls":[' + listed + said)

    async def _one(self, asked: Asked) -> Answer:
        name = asked.params["id"]
        for call in self._gateway.calls():
            if call.id == name:
                return Answer(self._running_line(call).rstrip())
        line = self._timelines.try_find(to_line({"request_id": name}).rstrip(b"}\n"))
        if line is None:
            raise Refused(404, "unknown_call", "no such call is kept any more; ops.timelines says how many are")
        return Answer(line.rstrip())

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
    return (line for line in lines if asked in line and (not models or any(each in line for each in models)))


def _key(name: str, value: str) -> bytes:
    """As it stands in a line. No text in a line can hold it: there each quote is escaped."""
    return to_line({name: value})[1:-2]
