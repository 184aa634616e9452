"""Stored calls on a disk that is full, slow, or gone: a real one of a few megabytes, where one can be mounted."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_guard.storage.calls.bodies import Bodies
from llm_guard.storage.calls.sqlite_store import SqliteCallStore
from llm_guard.storage.calls.store import CallFilter, StoredCall
from llm_guard.storage.errors import DiskFullError, StoreError
from tests.fakes.small_disk import fill, small_disk
from tests.fakes.stored_calls import ANSWER, BODY, deferred_call, new_dead_letter, stored_request


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteCallStore]:
    kept = SqliteCallStore(lambda: tmp_path, "one", Bodies("plain", None))
    yield kept
    kept.close()


@pytest.fixture(name="small_disk")
def mounted(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as disk:
        yield disk


def large(number: int) -> StoredCall:
    return new_dead_letter(f"large-{number}", 1000.0 + number, request=stored_request(b"x" * 60_000))


def test_full_disk_takes_nothing_but_allows_reads_and_deletions_and_then_recovers(small_disk: Path) -> None:
    store = SqliteCallStore(lambda: small_disk, "one", Bodies("plain", None))
    try:
        number = 0
        with pytest.raises(DiskFullError, match="free some space"):  # noqa: PT012  # any of the calls may fail
            for number in range(1000):
                store.add(large(number))
        assert number > 50
        junk = fill(small_disk)
        with pytest.raises(DiskFullError):
            store.add(large(number))
        store.close()
        kept = store.get("large-7")
        assert kept is not None
        assert kept.request.body == b"x" * 60_000
        assert len(store.find(CallFilter(), 1000, None)) == store.stats().count["dead_letter/dead"] == number
        assert store.delete(CallFilter(ids=("large-7", "large-8"))) == 2
        assert store.sweep(1000, 60, 9999, 5 * 60_000) > number - 10
        os.unlink(junk)
        store.add(large(number))
        assert store.get(f"large-{number}") is not None
        assert (small_disk / "calls.reserve").stat().st_size == 8 * 1024**2
    finally:
        store.close()


def test_disk_filled_by_others_is_reported_from_the_beginning(small_disk: Path) -> None:
    fill(small_disk)
    store = SqliteCallStore(lambda: small_disk, "one", Bodies("plain", None))
    with pytest.raises(DiskFullError):
        store.add(new_dead_letter())
    os.unlink(small_disk / "junk")
    store.add(new_dead_letter())
    assert store.get("a") is not None
    store.close()


def test_without_its_reserve_a_full_disk_is_reported_at_a_deletion(small_disk: Path) -> None:
    store = SqliteCallStore(lambda: small_disk, "one", Bodies("plain", None))
    store.add(deferred_call())
    store.add(new_dead_letter("b"))
    os.unlink(small_disk / "calls.reserve")
    junk = fill(small_disk)
    with pytest.raises(DiskFullError):
        store.delete(CallFilter(ids=("b",)))
    os.unlink(junk)
    assert store.delete(CallFilter(ids=("b",))) == 1
    store.close()


def test_lock_of_another_process_is_waited_for_and_then_reported(
    store: SqliteCallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_guard.storage.sqlite_file._BUSY_S", 0.01)
    store.add(deferred_call())
    other = sqlite3.connect(tmp_path / "calls.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for write in (
        lambda: store.add(new_dead_letter("b")),
        lambda: store.begin(1000, 1, 30),
        lambda: store.delete(CallFilter()),
        lambda: store.sweep(1e9, 0, 0, 0),
    ):
        with pytest.raises(StoreError, match="locked"):
            write()
    kept = store.get("a")
    assert kept is not None
    assert kept.request.body == BODY
    other.execute("ROLLBACK")
    other.close()
    (begun,) = store.begin(1000, 1, 30)
    assert store.answer(begun.id, ANSWER, 1, 1001)


def test_broken_file_is_moved_aside_and_new_calls_are_stored(store: SqliteCallStore, tmp_path: Path) -> None:
    (tmp_path / "calls.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        store.get("a")
    with pytest.raises(StoreError, match="not a database"):
        store.stats()
    store.add(new_dead_letter())
    assert store.get("a") is not None
    assert (tmp_path / "calls.db.broken-1").read_bytes().startswith(b"no database")


def test_unavailable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = SqliteCallStore(lambda: tmp_path / "file" / "state", "one", Bodies("plain", None))
    with pytest.raises(StoreError):
        store.add(new_dead_letter())
