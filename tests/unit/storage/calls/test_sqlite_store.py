"""The file of deferred calls and dead letters: what the contract of all stores leaves open."""

from __future__ import annotations

import dataclasses
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_guard.storage.calls.bodies import Bodies, BodyRule, Unreadable
from llm_guard.storage.calls.encryption import BodyEncryption
from llm_guard.storage.calls.process_lock import RunnerLock
from llm_guard.storage.calls.schema import FORM, INSERT, written
from llm_guard.storage.calls.sqlite_store import SqliteCallStore
from llm_guard.storage.calls.store import CallFilter, CallStats, StoredCall
from llm_guard.storage.errors import StoreError
from llm_guard.storage.sqlite_file import SqliteFile
from tests.fakes.stored_calls import ANSWER, BODY, FAILED, deferred_call, new_dead_letter, stored_request

PLAIN = Bodies("plain", None)
OLD, NEW = b"o" * 32, b"n" * 32
Opening = Callable[..., SqliteCallStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opening]:
    """Opens the file for a gateway; all instances are closed at the end."""
    made: list[SqliteCallStore] = []

    def open_it(runner: str | RunnerLock = "one", bodies: Bodies = PLAIN) -> SqliteCallStore:
        made.append(SqliteCallStore(lambda: tmp_path, runner, bodies))
        return made[-1]

    yield open_it
    for store in made:
        store.close()


@pytest.fixture
def store(opened: Opening) -> SqliteCallStore:
    return opened()


def sealed(*keys: bytes, rule: BodyRule = "encrypted") -> Bodies:
    return Bodies(rule, BodyEncryption(keys))


def state_of(store: SqliteCallStore, call_id: str = "a") -> str | None:
    call = store.get(call_id)
    return None if call is None else call.state


def ids(calls: list[StoredCall]) -> list[str]:
    return [call.id for call in calls]


def on_the_disk(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


def test_file_with_the_first_names_of_the_purposes_is_migrated(opened: Opening, tmp_path: Path) -> None:
    old = SqliteFile(lambda: tmp_path, dataclasses.replace(FORM, steps=FORM.steps[:1]))
    with old.writing() as connection:
        for call, purpose in ((new_dead_letter("a"), "letter"), (deferred_call("b"), "later")):
            number = connection.execute(INSERT, {**written(call), "purpose": purpose}).lastrowid
            connection.execute("INSERT INTO bodies VALUES (?, 'request', NULL, ?)", (number, BODY))
    old.close()
    store = opened()
    assert [(call.id, call.purpose, call.request.body) for call in map(store.get, "ab") if call is not None] == [
        ("a", "dead_letter", BODY), ("b", "deferred", BODY),
    ]  # fmt: skip
    assert store.stats().count == {"dead_letter/dead": 1, "deferred/queued": 1}
    assert ids(store.begin(1000, 10, 30)) == ["b"]
    assert store.delete(CallFilter(ids=("a",))) == 1
    assert store.stats().count == {"deferred/running": 1}


def test_nothing_is_created_when_nothing_is_stored(tmp_path: Path, store: SqliteCallStore) -> None:
    store.reschedule({})
    store.reschedule({"a": (1.0, 2.0)})
    assert list(tmp_path.iterdir()) == []


def test_no_other_user_can_read_it(store: SqliteCallStore, tmp_path: Path) -> None:
    store.add(new_dead_letter())
    assert {each.name for each in tmp_path.iterdir()} >= {"calls.db", "calls.db-wal", "calls.reserve"}
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}


def test_nothing_is_created_before_something_is_stored(store: SqliteCallStore, tmp_path: Path) -> None:
    assert store.get("a") is None
    assert store.find(CallFilter(), 10, None) == store.begin(0, 10, 30) == store.unnotified("done", 10) == []
    assert store.requeue(CallFilter(), 0, 1) == []
    assert store.extend(["a"], 0, 30) == ["a"]
    assert store.stats() == CallStats(count={}, size=0)
    assert not store.put_back("a", FAILED, 0, 0)
    assert not store.answer("a", ANSWER, 1, 0)
    assert not store.dead_letter("a", FAILED, 0)
    assert store.delete(CallFilter()) == store.recover(0) == store.sweep(0, 0, 0, 0) == 0
    store.mark_notified("a", "answered")
    assert list(tmp_path.iterdir()) == []


def test_call_that_was_begun_since_it_was_read_is_not_deleted(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = opened("one"), opened("two")
    one.add(deferred_call())
    one.add(new_dead_letter("b"))
    looked = one._rows

    def read_slowly(*arguments: Any) -> list[Any]:
        found = looked(*arguments)
        other.begin(1000, 9, 30)
        return found

    monkeypatch.setattr(one, "_rows", read_slowly)
    assert one.delete(CallFilter()) == 1
    assert ids(other.find(CallFilter(), 9, None)) == ["a"]


def test_deleted_data_is_removed_from_the_files(store: SqliteCallStore, tmp_path: Path) -> None:
    for number in range(120):
        store.add(new_dead_letter(str(number), request=stored_request(b"who shot the sheriff? " * (1 + number * 3))))
    assert b"sheriff" in on_the_disk(tmp_path)
    size = (tmp_path / "calls.db").stat().st_size
    assert store.delete(CallFilter()) == 120
    assert b"sheriff" not in on_the_disk(tmp_path)
    assert (tmp_path / "calls.db").stat().st_size < size / 5


def test_sweep_takes_turns_with_others(store: SqliteCallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_guard.storage.calls.sqlite_store._AT_ONCE", 3)
    for number in range(5):
        store.add(new_dead_letter(str(number), 1000.0 + number))
    assert [store.sweep(9999, 60, 60, 1) for _ in range(3)] == [3, 2, 0]


def test_encryption_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="no key"):
        Bodies("encrypted", None)


def test_damaged_body_is_reported_and_blocks_no_other(opened: Opening, tmp_path: Path) -> None:
    store = opened(bodies=sealed(NEW))
    store.add(deferred_call("a"))
    store.add(deferred_call("b", due_at=1001.0))
    other = sqlite3.connect(tmp_path / "calls.db")
    other.execute("UPDATE bodies SET content = zeroblob(100) WHERE call = 1")
    other.commit()
    other.close()
    with pytest.raises(Unreadable, match="a/request: it was damaged"):
        store.get("a")
    assert ids(store.begin(1001, 9, 30)) == ["b"]
    (dead,) = store.find(CallFilter(state="dead"), 9, None)
    assert dead.ended is not None
    assert (dead.id, dead.ended.kind) == ("a", "damaged")
    assert store.delete(CallFilter(ids=("a",))) == 1


def test_body_of_one_call_cannot_be_passed_off_as_anothers(opened: Opening, tmp_path: Path) -> None:
    store = opened(bodies=sealed(NEW))
    store.add(new_dead_letter("a"))
    store.add(new_dead_letter("b"))
    other = sqlite3.connect(tmp_path / "calls.db")
    other.execute("UPDATE bodies SET content = (SELECT content FROM bodies WHERE call = 2 AND part = 'request')")
    other.commit()
    other.close()
    with pytest.raises(Unreadable, match="damaged or changed"):
        store.get("a")


@pytest.mark.parametrize("text", ["no JSON", '{"x": ' + "[" * 100_000])
def test_invalid_row_is_reported_with_its_id(store: SqliteCallStore, tmp_path: Path, text: str) -> None:
    store.add(new_dead_letter())
    other = sqlite3.connect(tmp_path / "calls.db")
    other.execute("UPDATE calls SET request = ?", (text,))
    other.commit()
    other.close()
    with pytest.raises(StoreError, match=r"^a: "):
        store.get("a")
    assert store.delete(CallFilter()) == 1
