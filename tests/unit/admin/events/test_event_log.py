from __future__ import annotations

from llm_guard.admin.events.event_log import KEPT, EventLog, OperatorEvent
from tests.fakes.clock import ManualClock


def test_events_are_counted_from_one_and_dated() -> None:
    clock = ManualClock()
    journal = EventLog(clock)
    journal.note("breaker", deployment="a/x", after="open")
    clock.advance(2)
    journal.note("reload")
    first, second = journal.since(0)[0]
    assert (first.id, first.kind, first.facts) == (1, "breaker", {"deployment": "a/x", "after": "open"})
    assert (first.at, second.id, second.at) == ("2027-01-15T08:00:00.000000Z", 2, "2027-01-15T08:00:02.000000Z")


def test_returning_reader_gets_missed_events() -> None:
    journal = EventLog(ManualClock())
    for _ in range(3):
        journal.note("reload")
    assert [event.id for event in journal.since(1)[0]] == [2, 3]
    assert journal.since(3) == ([], True)


def test_reader_that_returns_too_late_gets_a_gap() -> None:
    journal = EventLog(ManualClock())
    for _ in range(KEPT + 2):
        journal.note("reload")
    events, is_whole = journal.since(1)
    assert (len(events), is_whole) == (KEPT, False)
    assert journal.since(2)[1]


def test_reader_of_an_earlier_process_gets_a_gap() -> None:
    journal = EventLog(ManualClock())
    journal.note("reload")
    assert journal.since(700) == ([], False)


def test_readers_get_events_until_they_unsubscribe() -> None:
    journal, heard = EventLog(ManualClock()), list[OperatorEvent]()
    leave = journal.subscribe(heard.append)
    journal.note("reload")
    leave()
    leave()
    journal.note("reload")
    assert [event.id for event in heard] == [1]
