"""Stored calls on a Redis server that loses responses, has no memory left, may evict calls, is frozen or was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_guard.clock import SystemClock
from llm_guard.storage.calls.bodies import Bodies, Unreadable
from llm_guard.storage.calls.encryption import BodyEncryption
from llm_guard.storage.calls.redis_store import RedisCallStore
from llm_guard.storage.calls.store import CallFilter, StoredCall
from llm_guard.storage.errors import DiskFullError, EvictingStoreError, RefusedError, StoreError
from tests.fakes.clock import ManualClock
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.stored_calls import ANSWER, BODY, FAILED, deferred_call, new_dead_letter, stored_request

PLAIN = Bodies("plain", None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisCallStore]:
    store = RedisCallStore(server.url, "prod", "one", PLAIN, SystemClock())
    yield store
    store.close()


def ids(calls: list[StoredCall]) -> list[str]:
    return [call.id for call in calls]


def lose_response(store: RedisCallStore, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """The next such operation is done, but its response is lost."""
    run = store._script.run

    def lossy(name: str, *args: Any) -> Any:
        found = run(name, *args)
        if name == operation:
            monkeypatch.undo()
            raise StoreError("the response was lost")
        return found

    monkeypatch.setattr(store._script, "run", lossy)


# lost responses


def test_calls_that_were_begun_unnoticed_are_begun_again(
    store: RedisCallStore, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    store.add(deferred_call("a"), deferred_call("b", request=stored_request(is_repeatable=False)), deferred_call("c"))
    assert ids(store.begin(1000, 1, 30)) == ["a"]
    lose_response(store, monkeypatch, "begin")
    with pytest.raises(StoreError):
        store.begin(1001, 9, 30)
    begun = store.begin(1002, 9, 30)
    assert [(call.id, call.rounds) for call in begun] == [("b", 1), ("c", 1)]
    assert store.answer("a", ANSWER, 1, 1003)  # it was known to run


def test_leases_that_were_taken_unnoticed_do_not_kill_calls_that_must_not_be_repeated(
    store: RedisCallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(deferred_call("b", request=stored_request(is_repeatable=False)))
    lose_response(store, monkeypatch, "begin")
    with pytest.raises(StoreError):
        store.begin(1000, 9, 30)
    assert store.recover(1031) == 0
    assert ids(store.begin(1031, 9, 30)) == ["b"]


def test_call_that_was_added_unnoticed_is_not_executed(store: RedisCallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_response(store, monkeypatch, "add")
    with pytest.raises(StoreError):
        store.add(deferred_call("a"))
    store.add(deferred_call("b"))
    assert ids(store.begin(1000, 9, 30)) == ["b"]
    assert store.get("a") is None


def test_lease_that_is_extended_in_the_meantime_is_respected(
    server: RedisServer, store: RedisCallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RedisCallStore(server.url, "prod", "two", PLAIN, SystemClock())
    store.add(deferred_call())
    store.begin(1000, 1, 30)
    run = other._script.run

    def late(name: str, *args: Any) -> Any:
        found = run(name, *args)
        if name == "lost":
            store.extend(["a"], 1030, 30)
        return found

    monkeypatch.setattr(other._script, "run", late)
    assert other.recover(1030) == 0
    assert store.answer("a", ANSWER, 1, 1031)
    other.close()


def test_change_that_is_repeated_after_a_lost_response_is_done_once(
    store: RedisCallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(deferred_call("a"), deferred_call("b"))
    store.begin(1000, 9, 30)
    lose_response(store, monkeypatch, "move")
    with pytest.raises(StoreError):
        store.answer("a", ANSWER, 1, 1001)
    assert store.answer("a", ANSWER, 1, 1002)
    assert not store.answer("a", ANSWER, 1, 1003)
    lose_response(store, monkeypatch, "move")
    with pytest.raises(StoreError):
        store.put_back("b", FAILED, 1001, 1001)
    assert store.put_back("b", FAILED, 1002, 1002)
    (again,) = store.begin(1003, 9, 30)
    assert (again.attempts, again.rounds) == (3, 2)


def test_call_that_is_added_after_a_refusal_is_kept(store: RedisCallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_response(store, monkeypatch, "add")
    with pytest.raises(StoreError):
        store.add(deferred_call("a"))
    store.delete(CallFilter(ids=("a",)))
    store.add(deferred_call("a"))
    assert ids(store.begin(1000, 9, 30)) == ["a"]


# an outage that is longer than a lease


def test_nothing_has_ended_that_could_not_be_renewed(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (RedisCallStore(server.url, "prod", name, PLAIN, SystemClock()) for name in ("one", "two"))
    one.add(deferred_call("runs"), deferred_call("waits", request=stored_request(needs_credentials=True)))
    assert ids(one.begin(1000, 1, 10)) == ["runs"]
    assert two.recover(1001) == 0
    with monkeypatch.context() as outage:
        for store in (one, two):
            outage.setattr(store._script, "run", _fail)
            with pytest.raises(StoreError):
                store.recover(1005)
    assert two.recover(1060) == 0
    assert two.begin(1060, 9, 10) == []
    assert one.extend(["runs"], 1061, 10) == []
    assert one.recover(1061) == 0
    assert ids(one.begin(1061, 9, 10)) == ["waits"]
    assert two.recover(1072) == 2  # this time it could have renewed them
    for store in (one, two):
        store.close()


def _fail(*_args: object) -> None:
    raise StoreError("the server does not answer")


def test_master_that_has_become_a_replica_is_left(server: RedisServer, tmp_path: Path) -> None:
    clock = ManualClock()
    store = RedisCallStore(server.url, "prod", "one", PLAIN, clock)
    store.add(deferred_call("a"))
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(RefusedError, match="read only"):
            store.add(deferred_call("b"))
        with pytest.raises(StoreError):
            store.add(deferred_call("b"))  # at once, without a request
        client.replicaof("NO", "ONE")
        connections = client.info("stats")["total_connections_received"]
        clock.advance(0.5)
        store.add(deferred_call("b"))
        assert client.info("stats")["total_connections_received"] == connections + 1
    store.close()


# many calls


def test_calls_that_others_must_send_are_not_looked_at(server: RedisServer, store: RedisCallStore) -> None:
    home = RedisCallStore(server.url, "prod", "home", PLAIN, SystemClock())
    sealed = RedisCallStore(server.url, "prod", "x", Bodies("plain", BodyEncryption([b"n" * 32])), SystemClock())
    for number in range(0, 1000, 100):
        calls = [
            deferred_call(str(number + n), request=stored_request(b"", needs_credentials=True)) for n in range(100)
        ]
        home.add(*calls)
        sealed.add(*(deferred_call(f"x{number + n}", request=stored_request(b"")) for n in range(100)))
    store.add(deferred_call("own", due_at=1000.5))
    with server.client() as client:
        client.config_resetstat()
        assert ids(store.begin(1001, 9, 30)) == ["own"]
        assert store.sweep(1001, 60, 60, 1 << 40) == 0
        looked = client.info("commandstats")["cmdstat_hmget"]["calls"]
    assert looked < 1100  # the sealed ones, once, for their deadlines
    for other in (home, sealed):
        other.close()


def test_call_without_its_hash_hides_no_other(server: RedisServer, store: RedisCallStore) -> None:
    for number, name in enumerate("abc"):
        store.add(new_dead_letter(name, 1000.0 + number))
    store.add(deferred_call("d"), deferred_call("e"))
    with server.client() as client:
        client.delete("llmg:1:{prod}:calls:call:a", "llmg:1:{prod}:calls:call:d")
    assert ids(store.begin(1000, 9, 30)) == ["e"]
    assert store.stats().oldest_at == 1000.0
    assert {group.oldest_at for group in store.groups(9) if group.state == "dead"} == {1001.0}
    assert store.sweep(2000, 60, 60, 1) == 2
    assert store.delete(CallFilter()) == 0


def test_more_dead_letters_than_one_script_takes_are_requeued_in_order(store: RedisCallStore) -> None:
    count = 700
    store.add(*(new_dead_letter(str(number), 1000.0 + number, request=stored_request(b"x")) for number in range(count)))
    assert store.requeue(CallFilter(), 5000, 1.0) == [str(number) for number in range(count)]
    calls = store.find(CallFilter(), count, None)
    assert [call.due_at for call in reversed(calls)] == [5000.0 + number for number in range(count)]
    assert store.delete(CallFilter()) == count
    assert store.stats().count == {}


# a server without memory


def test_full_server_takes_no_call_but_lets_all_others_end(server: RedisServer, store: RedisCallStore) -> None:
    store.add(*(deferred_call(f"waits-{number}") for number in range(3)))
    store.add(*(new_dead_letter(f"dead-{number}") for number in range(3)))
    begun = store.begin(1000, 1, 30)
    with server.client() as client:
        client.config_set("maxmemory", 1)
    with pytest.raises(DiskFullError, match="no memory left"):
        store.add(deferred_call("new"))
    assert store.extend(ids(begun), 1001, 30) == []
    assert store.answer(begun[0].id, ANSWER, 1, 1001)
    assert ids(store.begin(1001, 1, 30)) == ["waits-1"]
    assert store.put_back("waits-1", FAILED, 1002, 2000)
    assert ids(store.begin(1002, 1, 30)) == ["waits-2"]
    assert store.dead_letter("waits-2", FAILED, 1003)
    assert store.delete(CallFilter(ids=("dead-0",))) == 1
    assert store.sweep(1003, 9999, 9999, 1) == 3
    assert store.get("new") is None
    assert store.stats().count == {"deferred/answered": 1, "deferred/queued": 1}
    with server.client() as client:
        client.config_set("maxmemory", 0)
    store.add(deferred_call("new"))


# a server that may evict


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_server_that_may_evict_calls_is_refused_until_it_does_not(server: RedisServer, policy: str) -> None:
    clock = ManualClock()
    store = RedisCallStore(server.url, "prod", "one", PLAIN, clock)
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)
        with pytest.raises(EvictingStoreError, match=f"{policy} may evict stored calls and responses: set noeviction"):
            store.add(deferred_call())
        client.config_set("maxmemory-policy", "volatile-lru")  # evicts only what ends by itself
        store.add(deferred_call())
    store.close()


# a server that does not answer


def test_killed_server_is_used_again_when_it_is_back(server: RedisServer) -> None:
    clock = ManualClock()
    store = RedisCallStore(server.url, "prod", "one", PLAIN, clock)
    store.add(deferred_call("a"))
    server.kill()
    for _ in range(3):  # the second and third without a connection
        with pytest.raises(StoreError, match=r"fleet\.store does not answer"):
            store.get("a")
    server.start()
    with pytest.raises(StoreError):
        store.get("a")
    clock.advance(0.5)
    assert store.get("a") is None  # this server keeps nothing on the disk
    store.add(deferred_call("a"))
    store.close()


# what others have changed


def test_damaged_call_is_named_and_blocks_no_other(server: RedisServer) -> None:
    store = RedisCallStore(server.url, "prod", "one", Bodies("encrypted", BodyEncryption([b"n" * 32])), SystemClock())
    for number, name in enumerate("abc"):
        store.add(deferred_call(name, due_at=1000.0 + number))
    with server.client() as client:
        bodies = {name: client.hget(f"llmg:1:{{prod}}:calls:call:{name}", "request.body") for name in "ab"}
        client.hset("llmg:1:{prod}:calls:call:a", "request.body", bodies["b"] or b"")
        client.hset("llmg:1:{prod}:calls:call:b", "request", "no JSON")
    with pytest.raises(Unreadable, match=r"a/request\.body: it was damaged or changed"):
        store.get("a")
    assert ids(store.begin(1009, 9, 30)) == ["c"]
    for name in "ab":
        with pytest.raises(Unreadable, match=f"^(the body of )?{name}"):
            store.get(name)
    assert store.stats().count == {"deferred/dead": 2, "deferred/running": 1}
    assert store.delete(CallFilter(state="dead")) == 2
    store.close()


def test_caller_and_error_are_encrypted_where_anything_is(server: RedisServer) -> None:
    store = RedisCallStore(server.url, "prod", "one", Bodies("none", BodyEncryption([b"n" * 32])), SystemClock())
    store.add(deferred_call("a", owner="key 0123456789abcdef", ended=FAILED))
    with server.client() as client:
        stored = b"".join(client.hvals("llmg:1:{prod}:calls:call:a"))
    assert not any(text in stored for text in (b"0123456789abcdef", FAILED.detail.encode(), BODY))
    call = store.get("a")
    assert call is not None
    assert (call.owner, call.ended) == ("key 0123456789abcdef", FAILED)
    stranger = RedisCallStore(server.url, "prod", "two", PLAIN, SystemClock())
    seen = stranger.get("a")
    assert seen is not None
    assert seen.ended is not None
    assert (seen.is_readable, seen.owner, seen.request.body, seen.ended.kind) == (False, "", None, "server_error")
    for each in (store, stranger):
        each.close()
