from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from llm_guard.admin.audit.changes import ChangeResult, Changes
from llm_guard.admin.audit.writer import AuditWriter, WriteResult
from llm_guard.admin.events.event_log import EventLog
from llm_guard.admin.http.endpoint import AdminRequest, Change, Refused
from llm_guard.clock import iso
from llm_guard.storage.audit_log import Entry
from tests.fakes.clock import ManualClock

ASKED = AdminRequest("POST", "/admin/x", {}, body=Change(reason="an outage"), who="ann from 127.0.0.1")


class InMemory(AuditWriter):
    """An audit trail that records entries at once, or fails with `problem`."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.problem: str | None = None

    def add(self, entry: Entry) -> WriteResult:
        self.entries.append(entry)
        written: WriteResult = asyncio.get_running_loop().create_future()
        written.set_result(self.problem)
        return written

    async def wait_written(self, written: WriteResult) -> str | None:
        return await written


class World:
    def __init__(self) -> None:
        clock = ManualClock()
        self.trail, self.journal = InMemory(), EventLog(clock)
        self.changes = Changes(self.trail, self.journal, clock)

    async def make(self, do: Any) -> dict[str, Any]:
        answer = await self.changes.make(ASKED, "breakers.reset", "a/x", do)
        said: dict[str, Any] = msgspec.json.decode(answer.body)
        return said

    def told(self) -> list[tuple[str, dict[str, Any]]]:
        return [(event.kind, event.facts) for event in self.journal.since(0)[0]]


async def test_change_is_made_audited_published_and_answered() -> None:
    world = World()
    with capture_logs() as log:
        answer = await world.make(lambda: ChangeResult({"state": "closed"}, {"was": "open"}, ["look out"]))
    assert answer == {"now": {"state": "closed"}, "audited": True, "audit_error": None, "warnings": ["look out"]}
    (entry,) = world.trail.entries
    assert (entry.at, entry.actor, entry.action) == ("2027-01-15T08:00:00.000Z", "ann from 127.0.0.1", "breakers.reset")
    assert (entry.target, entry.reason, entry.detail) == ("a/x", "an outage", {"was": "open"})
    assert ":" in entry.instance
    facts = {"actor": "ann from 127.0.0.1", "action": "breakers.reset", "target": "a/x", "reason": "an outage"}
    assert world.told() == [("change", facts)]
    assert [(line["event"], line["reason"]) for line in log] == [("changed", "an outage")]


async def test_change_that_takes_its_time_is_written_down_when_it_is_done() -> None:
    world = World()

    async def do() -> ChangeResult:
        await asyncio.sleep(0)
        assert world.trail.entries == []
        return ChangeResult("later")

    assert (await world.make(do))["now"] == "later"
    assert len(world.trail.entries) == 1


async def test_change_that_cannot_be_audited_is_made_and_the_response_reports_it() -> None:
    world = World()
    world.trail.problem = "the disk is full"
    answer = await world.make(lambda: ChangeResult(1))
    assert (answer["now"], answer["audited"], answer["audit_error"]) == (1, False, "the disk is full")


async def test_refused_change_is_no_change() -> None:
    world = World()

    def refuse() -> ChangeResult:
        raise Refused(409, "no", "no")

    with pytest.raises(Refused):
        await world.make(refuse)
    assert (world.trail.entries, world.told()) == ([], [])


async def test_change_that_breaks_in_the_middle_is_written_down_as_such() -> None:
    world = World()

    def fail() -> ChangeResult:
        raise KeyError("half done")

    with pytest.raises(KeyError):
        await world.make(fail)
    assert [entry.detail for entry in world.trail.entries] == [{"failed": "KeyError"}]


async def test_change_whose_operator_disconnects_is_audited_as_such() -> None:
    world = World()

    async def hang() -> ChangeResult:
        await asyncio.Event().wait()
        return ChangeResult(1)

    making = asyncio.create_task(world.make(hang))
    await asyncio.sleep(0)
    making.cancel()
    await asyncio.wait((making,))
    assert making.cancelled()
    assert [entry.detail for entry in world.trail.entries] == [{"failed": "CancelledError"}]


def test_instants_are_shown_in_utc() -> None:
    assert iso(0.0015) == "1970-01-01T00:00:00.001Z"
