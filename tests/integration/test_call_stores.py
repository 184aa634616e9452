"""The contract of the stores of deferred calls and dead letters, a file and a Redis server: states, leases, search and
deletion."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_guard.clock import SystemClock
from llm_guard.storage.calls.bodies import Bodies, BodyRule
from llm_guard.storage.calls.encryption import BodyEncryption
from llm_guard.storage.calls.process_lock import RunnerLock
from llm_guard.storage.calls.redis_store import RedisCallStore
from llm_guard.storage.calls.sqlite_store import SqliteCallStore
from llm_guard.storage.calls.store import (
    HOME_S,
    INTERRUPTED,
    CallFailure,
    CallFilter,
    CallStats,
    CallStore,
    StoredCall,
)
from llm_guard.storage.errors import StoreError
from tests.fakes.redis_server import RedisServer, redis_server
from tests.fakes.stored_calls import ANSWER, BODY, FAILED, deferred_call, new_dead_letter, stored_request

PLAIN = Bodies("plain", None)
OLD, NEW = b"o" * 32, b"n" * 32
Store = SqliteCallStore | RedisCallStore
Opening = Callable[..., Store]
Content = Callable[[], bytes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opening]:
    """Opens the store for a gateway; all instances are closed at the end."""
    made: list[Store] = []

    def open_it(runner: str | RunnerLock = "one", bodies: Bodies = PLAIN) -> Store:
        if request.param == "sqlite":
            made.append(SqliteCallStore(lambda: tmp_path, runner, bodies))
        else:
            server: RedisServer = request.getfixturevalue("server")
            made.append(RedisCallStore(server.url, "prod", runner, bodies, SystemClock()))
        return made[-1]

    yield open_it
    for store in made:
        store.close()
    if request.param == "redis":
        with request.getfixturevalue("server").client() as client:
            client.flushall()


@pytest.fixture
def content(request: pytest.FixtureRequest, tmp_path: Path) -> Content:
    """Returns all that is stored."""

    def read() -> bytes:
        files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        if request.node.callspec.params["opened"] == "sqlite":
            return files
        with request.getfixturevalue("server").client() as client:
            return files + b"".join(part for key in client.scan_iter("*:call:*") for part in client.hvals(key))

    return read


@pytest.fixture
def store(opened: Opening) -> Store:
    return opened()


def sealed(*keys: bytes, rule: BodyRule = "encrypted") -> Bodies:
    return Bodies(rule, BodyEncryption(keys))


def state_of(store: CallStore, call_id: str = "a") -> str | None:
    call = store.get(call_id)
    return None if call is None else call.state


def ids(calls: list[StoredCall]) -> list[str]:
    return [call.id for call in calls]


# processes that have ended


def runner(folder: Path, token: str, gateway: str = "gateway-a") -> RunnerLock:
    return RunnerLock(lambda: folder, gateway, token)


def die(held: RunnerLock) -> None:
    """Closes the lock's file, as the kernel does for a killed process."""
    assert held._held is not None
    os.close(held._held)
    held._held = None


def test_restarted_gateway_takes_over_at_once_the_calls_of_its_killed_process(tmp_path: Path, opened: Opening) -> None:
    before, after = runner(tmp_path, "1"), runner(tmp_path, "2")
    opened(before).add(deferred_call("a"), deferred_call("b", request=stored_request(is_repeatable=False)))
    killed, restarted = opened(before), opened(after)
    assert ids(killed.begin(1000.0, 9, 10.0)) == ["a", "b"]
    assert restarted.recover(1000.1) == 0  # the process still runs
    die(before)
    assert restarted.recover(1000.2) == 2
    assert (state_of(restarted, "a"), state_of(restarted, "b")) == ("queued", "dead")
    assert after.ended() == []


def test_another_gateway_waits_for_the_lease_of_a_killed_process(tmp_path: Path, opened: Opening) -> None:
    before = runner(tmp_path, "1")
    killed, other = opened(before), opened(runner(tmp_path, "2", "gateway-b"))
    killed.add(deferred_call("a"))
    killed.begin(1000.0, 9, 10.0)
    die(before)
    assert other.recover(1009.9) == 0
    assert other.recover(1010.0) == 1


def test_gateway_that_stops_leaves_no_lock(tmp_path: Path, opened: Opening) -> None:
    store = opened(runner(tmp_path, "1"))
    store.add(deferred_call("a"))
    store.begin(1000.0, 9, 10.0)
    assert list(tmp_path.glob("*-runner-*"))
    store.close()
    assert list(tmp_path.glob("*-runner-*")) == []


# wall clock that is set


def test_queued_and_running_calls_get_their_times_in_the_new_clock(store: CallStore) -> None:
    store.add(
        deferred_call("runs"),
        deferred_call("queued", due_at=1002.0),
        deferred_call("over"),
        deferred_call("other", due_at=1003.0),
    )
    store.begin(1000.0, 2, 10.0)
    store.answer("over", ANSWER, 1, 1001.0)
    store.reschedule(dict.fromkeys(("runs", "queued", "over", "missing"), (5002.0, 6000.0)))
    found = [store.get(call_id) for call_id in ("runs", "queued", "over", "other")]
    times = [(call.due_at, call.deadline_at) for call in found if call is not None]
    assert times == [(None, 6000.0), (5002.0, 6000.0), (None, 4600.0), (1003.0, 4600.0)]
    assert store.put_back("runs", None, 5001.0, 5001.0)


# what is stored


@pytest.mark.parametrize("bodies", [PLAIN, sealed(NEW)], ids=["plain", "encrypted"])
def test_call_is_unchanged_after_a_restart(opened: Opening, bodies: Bodies) -> None:
    request = stored_request(b"\x00\xff" * 5000, is_repeatable=False, upstream_name="a", is_stream=True, priority=2)
    one = new_dead_letter("one", request=request, webhook="done", client=None, rounds=2)
    other = deferred_call("other", deadline_at=None, request=stored_request(b"", model="é\n"))
    first = opened(bodies=bodies)
    first.add(one)
    first.add(other)
    first.close()
    again = opened("two", bodies)
    assert [again.get("one"), again.get("other"), again.get("third")] == [one, other, None]


def test_id_that_is_there_already_is_refused(store: CallStore) -> None:
    store.add(new_dead_letter("a", request=stored_request(b"first")))
    with pytest.raises(StoreError, match=r"UNIQUE|is stored already"):
        store.add(new_dead_letter("a"))
    kept = store.get("a")
    assert kept is not None
    assert kept.request.body == b"first"


def test_several_are_added_together_or_not_at_all(store: CallStore) -> None:
    store.add(new_dead_letter("a"), deferred_call("b"))
    assert ids(store.find(CallFilter(), 9, None)) == ["b", "a"]
    with pytest.raises(StoreError, match=r"UNIQUE|is stored already"):
        store.add(new_dead_letter("c"), new_dead_letter("a"))
    assert ids(store.find(CallFilter(), 9, None)) == ["b", "a"]


@pytest.mark.parametrize(
    "wrong",
    [
        new_dead_letter(state="running"),
        new_dead_letter(state="queued"),
        new_dead_letter(state="answered"),
        new_dead_letter(due_at=1.0),
        new_dead_letter(state="lost"),
        new_dead_letter(purpose="other"),
    ],
)
def test_call_in_no_state_that_there_is_is_refused(store: CallStore, wrong: StoredCall) -> None:
    with pytest.raises(StoreError, match=r"CHECK|in this state"):
        store.add(wrong)
    assert store.stats().count == {}


# states of a call


def test_due_calls_are_begun_once_the_longest_due_first(opened: Opening) -> None:
    one, other = opened("one"), opened("two")
    for number, due_at in enumerate((30.0, 10.0, 20.0, 99.0)):
        one.add(deferred_call(str(number), due_at=due_at))
    begun = one.begin(50, 2, 30)
    assert ids(begun) == ["1", "2"]
    assert [(call.state, call.rounds, call.due_at, call.request.body) for call in begun] == [
        ("running", 1, None, BODY), ("running", 1, None, BODY),
    ]  # fmt: skip
    assert ids(other.begin(50, 10, 30)) == ["0"]
    assert other.begin(50, 10, 30) == []


def test_only_requested_calls_are_begun(store: CallStore) -> None:
    store.add(deferred_call("later"))
    store.add(new_dead_letter("letter", state="queued", due_at=900.0))
    assert ids(store.begin(1000, 10, 30, "deferred")) == ["later"]
    assert ids(store.begin(1000, 10, 30)) == ["letter"]


def test_call_that_is_put_back_is_begun_again_when_it_is_due(store: CallStore) -> None:
    store.add(deferred_call())
    store.begin(1000, 1, 30)
    assert store.put_back("a", FAILED, 1005, due_at=1100)
    assert store.begin(1099, 1, 30) == []
    (call,) = store.begin(1100, 1, 30)
    assert (call.rounds, call.attempts, call.first_failed_at, call.last_failed_at) == (2, 3, 1005, 1005)
    assert call.ended == FAILED
    assert store.put_back("a", msgspec.structs.replace(FAILED, body=None, attempts=2), 1110, due_at=1200)
    (call,) = store.begin(1200, 1, 30)
    assert (call.attempts, call.first_failed_at, call.last_failed_at) == (5, 1005, 1110)
    assert call.ended is not None
    assert call.ended.body is None


def test_call_that_was_not_sent_is_put_back_without_a_failure(store: CallStore) -> None:
    store.add(deferred_call())
    store.begin(1000, 1, 30)
    assert store.put_back("a", None, 1005, due_at=1005)
    (call,) = store.begin(1005, 1, 30)
    assert (call.ended, call.first_failed_at, call.attempts) == (None, None, 0)


def test_response_is_stored_and_its_request_is_removed(store: CallStore, content: Content) -> None:
    store.add(deferred_call(ended=FAILED))
    store.begin(1000, 1, 30)
    assert store.answer("a", ANSWER, 2, 1010)
    kept = store.get("a")
    assert kept is not None
    assert (kept.state, kept.answer, kept.attempts, kept.answered_at) == ("answered", ANSWER, 2, 1010)
    assert (kept.request.body, kept.ended and kept.ended.body) == (None, None)
    store.sweep(1010, 60, 60, 1 << 40)
    assert b"why is the sky blue" not in content()
    assert not store.answer("a", ANSWER, 1, 1020)
    assert store.begin(2000, 1, 30) == []


def test_dead_call_stays_with_its_request(store: CallStore) -> None:
    store.add(deferred_call())
    store.begin(1000, 1, 30)
    assert store.dead_letter("a", FAILED, 1010)
    kept = store.get("a")
    assert kept is not None
    assert (kept.state, kept.ended, kept.request.body, kept.last_failed_at) == ("dead", FAILED, BODY, 1010)
    assert store.begin(9999, 1, 30) == []


def test_call_of_another_gateway_or_not_running_cannot_be_ended(opened: Opening) -> None:
    one, other = opened("one"), opened("two")
    one.add(deferred_call())
    one.add(new_dead_letter("b"))
    one.begin(1000, 1, 30)
    for store, call_id in ((other, "a"), (one, "b"), (one, "c")):
        assert not store.put_back(call_id, FAILED, 1001, 1001)
        assert not store.answer(call_id, ANSWER, 1, 1001)
        assert not store.dead_letter(call_id, FAILED, 1001)
    assert (state_of(one, "a"), state_of(one, "b")) == ("running", "dead")
    assert one.answer("a", ANSWER, 1, 1001)


# leases


def test_call_of_a_dead_gateway_is_taken_over_when_its_lease_has_ended(opened: Opening) -> None:
    gone, heir = opened("gone"), opened("heir")
    gone.add(deferred_call())
    gone.begin(1000, 1, 30)
    assert heir.recover(1029) == 0
    assert heir.recover(1030) == 1
    assert ids(heir.begin(1030, 1, 30)) == ["a"]
    assert not gone.answer("a", ANSWER, 1, 1031)
    assert gone.extend(["a"], 1031, 30) == ["a"]
    assert heir.answer("a", ANSWER, 1, 1032)


def test_lease_that_is_extended_is_not_taken_over(opened: Opening) -> None:
    one, other = opened("one"), opened("two")
    one.add(deferred_call("a"))
    one.add(deferred_call("b"))
    one.begin(1000, 2, 30)
    assert one.extend(["a", "c"], 1020, 30) == ["c"]
    assert other.recover(1049) == 1
    assert (state_of(one, "a"), state_of(one, "b")) == ("running", "queued")


def test_late_response_counts_until_another_gateway_takes_over(store: CallStore) -> None:
    store.add(deferred_call())
    store.begin(1000, 1, 30)
    assert store.answer("a", ANSWER, 1, 5000)


def test_call_that_must_not_be_repeated_is_dead_when_its_gateway_is(opened: Opening) -> None:
    gone, heir = opened("gone"), opened("heir")
    gone.add(deferred_call(request=stored_request(is_repeatable=False)))
    gone.begin(1000, 1, 30)
    assert heir.recover(1030) == 1
    kept = heir.get("a")
    assert kept is not None
    assert (kept.state, kept.ended, kept.last_failed_at) == ("dead", INTERRUPTED, 1030)
    assert heir.recover(1030) == 0
    assert heir.requeue(CallFilter(), 1031, 1) == ["a"]  # an operator may


# credentials in the memory of one gateway


def bound(call_id: str = "a", **facts: Any) -> StoredCall:
    return deferred_call(call_id, request=stored_request(needs_credentials=True), **facts)


def test_call_that_needs_credentials_waits_for_the_gateway_that_has_them(opened: Opening) -> None:
    home, other = opened("home"), opened("other")
    home.add(bound(), deferred_call("b"))
    assert ids(other.begin(1001, 9, 30)) == ["b"]
    for now in range(1002, 1100, 9):  # it is busy: it begins none
        assert home.begin(now, 0, 30) == other.begin(now, 9, 30) == []
    assert ids(home.begin(1100, 9, 30)) == ["a"]


def test_call_whose_credentials_are_lost_is_begun_by_another_gateway(opened: Opening) -> None:
    home, other = opened("home"), opened("other")
    home.add(bound())
    assert other.begin(1000 + HOME_S - 0.1, 9, 30) == []
    assert ids(other.begin(1000 + HOME_S, 9, 30)) == ["a"]


def test_home_that_is_busy_is_not_taken_for_dead(opened: Opening) -> None:
    home, other = opened("home"), opened("other")
    home.add(bound())
    for now in range(1002, 1100, 3):  # it begins none, for want of room
        assert home.recover(now) == 0
        assert other.begin(now, 9, 30) == []


def test_home_of_calls_that_are_due_later_is_taken_for_dead_as_soon_as_any(opened: Opening) -> None:
    home, other = opened("home"), opened("other")
    home.add(bound("now"), bound("later", due_at=4000.0, ended=FAILED, last_failed_at=1000.0))
    assert ids(other.begin(1000 + HOME_S, 9, 30)) == ["now"]


def test_credentials_of_a_gateway_that_stops_are_lost_at_once(opened: Opening) -> None:
    home, other = opened("home"), opened("other")
    home.add(bound())
    home.close()
    assert ids(other.begin(1001, 9, 30)) == ["a"]


def test_credentials_of_a_killed_process_are_lost_once_its_end_is_found(tmp_path: Path, opened: Opening) -> None:
    before, after = runner(tmp_path, "1"), runner(tmp_path, "2")
    killed, restarted = opened(before), opened(after)
    killed.add(bound())
    killed.begin(999.0, 9, 10.0)
    die(before)
    assert restarted.begin(1001, 9, 30) == []
    restarted.recover(1001)
    assert ids(restarted.begin(1001, 9, 30)) == ["a"]


# requeueing


def test_dead_letters_are_queued_at_a_pace_the_oldest_first(store: CallStore) -> None:
    for number in (2, 0, 1):
        store.add(new_dead_letter(str(number), received_at=1000.0 + number))
    store.add(deferred_call("waiting", due_at=9999.0))
    assert store.requeue(CallFilter(), 2000, 0.5) == ["0", "1", "2"]
    assert [ids(store.begin(now, 9, 30)) for now in (2000, 2000.4, 2000.5, 2001)] == [["0"], [], ["1"], ["2"]]


def test_second_requeue_waits_for_the_first(store: CallStore) -> None:
    for number in range(4):
        store.add(new_dead_letter(str(number), received_at=1000.0 + number))
    store.requeue(CallFilter(until=1001.0), 2000, 0.5)
    store.requeue(CallFilter(), 2000, 0.5)
    assert [call.due_at for call in store.find(CallFilter(), 9, None)] == [2001.0, 2000.5, 2000.5, 2000.0]


def test_deadline_of_a_requeued_call_is_lifted(store: CallStore) -> None:
    store.add(new_dead_letter(purpose="deferred", deadline_at=1100.0))
    store.requeue(CallFilter(), 9999, 1)
    (call,) = store.begin(9999, 1, 30)
    assert call.deadline_at is None


def test_simultaneous_requeues_get_each_call_once(opened: Opening) -> None:
    first = opened()
    for number in range(40):
        first.add(new_dead_letter(str(number)))
    got: list[list[str]] = []
    barrier = threading.Barrier(2)

    def press(store: CallStore) -> None:
        barrier.wait()
        got.append(store.requeue(CallFilter(), 2000, 0))
        got.append(ids(store.begin(2000, 100, 30)))

    threads = [threading.Thread(target=press, args=(opened(name),)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(each) for each in got) == [0, 0, 40, 40]


# completion webhooks


def test_webhook_is_owed_from_the_end_until_it_was_notified(store: CallStore) -> None:
    store.add(deferred_call("a", webhook="done"))
    store.add(deferred_call("b", webhook="done"))
    store.add(new_dead_letter("c"))
    assert store.unnotified("done", 9) == []
    store.begin(1000, 9, 30)
    store.answer("a", ANSWER, 1, 1001)
    store.dead_letter("b", FAILED, 1001)
    assert [(call.id, call.webhook) for call in store.unnotified("done", 9)] == [("a", "done"), ("b", "done")]
    assert ids(store.unnotified("done", 1)) == ["a"]
    store.mark_notified("a", "answered")
    assert ids(store.unnotified("done", 9)) == ["b"]
    assert store.unnotified("other", 9) == []


def test_webhook_is_owed_again_after_another_end(store: CallStore) -> None:
    store.add(new_dead_letter("a", webhook="done"))
    store.mark_notified("a", "dead")
    for end in ("dead", "answered"):
        store.requeue(CallFilter(), 1001, 0)
        assert store.unnotified("done", 9) == []
        store.begin(1001, 9, 30)
        store.dead_letter("a", FAILED, 1002) if end == "dead" else store.answer("a", ANSWER, 1, 1002)
        assert ids(store.unnotified("done", 9)) == ([] if end == "dead" else ["a"])


# search


def test_found_are_the_newest_first_page_by_page_without_bodies(store: CallStore) -> None:
    for number in range(5):
        store.add(new_dead_letter(str(number), received_at=1000.0 + number // 2))
    page = store.find(CallFilter(), 2, None)
    assert ids(page) == ["4", "3"]
    assert ids(store.find(CallFilter(), 2, "3")) == ["2", "1"]
    assert ids(store.find(CallFilter(), 2, "1")) == ["0"]
    assert store.find(CallFilter(), 2, "0") == store.find(CallFilter(), 2, "gone") == []
    assert {(call.request.body, call.ended and call.ended.body) for call in page} == {(None, None)}


def test_filter_finds_matching_calls(store: CallStore) -> None:
    store.add(new_dead_letter("a", 1.0))
    store.add(new_dead_letter("b", 2.0, request=stored_request(route="other")))
    store.add(new_dead_letter("c", 3.0, ended=CallFailure(kind="rate_limit", detail="429")))
    store.add(deferred_call("d", 4.0))
    wanted = [
        CallFilter(purpose="deferred"), CallFilter(state="dead"), CallFilter(route="other"),
        CallFilter(kind="rate_limit"), CallFilter(since=3.0), CallFilter(until=2.0),
        CallFilter(ids=("a", "c", "x")), CallFilter(ids=()), CallFilter(state="dead", since=2.0, kind="server_error"),
    ]  # fmt: skip
    found = ["".join(ids(store.find(call_filter, 9, None))) for call_filter in wanted]
    assert found == ["d", "cba", "b", "c", "dc", "ba", "ca", "", "b"]


def test_any_number_of_ids_can_be_requested(store: CallStore) -> None:
    store.add(new_dead_letter("7"))
    assert ids(store.find(CallFilter(ids=[str(number) for number in range(50_000)]), 9, None)) == ["7"]


def test_stats_count_and_measure_the_stored_calls(store: CallStore) -> None:
    store.add(new_dead_letter("a", 5.0, request=stored_request(b"x" * 10_000)))
    store.add(deferred_call("b", 7.0))
    store.add(deferred_call("c", 3.0))
    store.begin(1000, 1, 30)
    before = store.stats()
    assert before.count == {"dead_letter/dead": 1, "deferred/queued": 1, "deferred/running": 1}
    assert before.oldest_at == 3.0
    assert 10_000 < before.size < 15_000
    store.answer("b", msgspec.structs.replace(ANSWER, body=b"y" * 5_000), 1, 1001)
    assert 4_500 < store.stats().size - before.size < 5_500
    store.begin(1000, 1, 30)
    store.delete(CallFilter())
    assert store.stats().count == {"deferred/running": 1}
    store.answer("c", ANSWER, 1, 1001)
    store.delete(CallFilter())
    assert store.stats() == CallStats(count={}, size=0)


def test_calls_are_counted_by_route_and_reason(store: CallStore) -> None:
    assert store.groups(9) == []
    store.add(new_dead_letter("a", 5.0), new_dead_letter("b", 9.0), deferred_call("c", 3.0))
    (dead, queued) = store.groups(9)
    assert (dead.count, dead.purpose, dead.state, dead.kind) == (2, "dead_letter", "dead", "server_error")
    assert (dead.oldest_at, dead.newest_at) == (5.0, 9.0)
    assert (queued.count, queued.state, queued.kind) == (1, "queued", None)
    assert store.groups(1) == [dead]


# deletion


def test_delete_removes_matching_calls_but_not_running_ones(store: CallStore) -> None:
    store.add(deferred_call("runs"))
    store.begin(1000, 1, 30)
    for number in range(3):
        store.add(new_dead_letter(str(number), received_at=float(number)))
    assert store.delete(CallFilter(until=1.0)) == 2
    assert ids(store.find(CallFilter(), 9, None)) == ["runs", "2"]
    assert store.delete(CallFilter(ids=("runs", "2"))) == 1
    assert state_of(store, "runs") == "running"


def test_call_that_another_gateway_runs_is_deleted_if_that_is_wanted(opened: Opening) -> None:
    runs, deletes = opened("one"), opened("two")
    runs.add(deferred_call("a"), deferred_call("b"))
    assert ids(runs.begin(1000, 2, 30)) == ["a", "b"]
    assert deletes.delete(CallFilter(ids=("a",))) == 0
    assert deletes.delete(CallFilter(ids=("a",)), running=True) == 1
    assert deletes.get("a") is None
    assert runs.extend(["a", "b"], 1001, 30) == ["a"]
    assert not runs.answer("a", ANSWER, 1, 1002)
    assert runs.answer("b", ANSWER, 1, 1002)
    assert (runs.get("a"), state_of(runs, "b")) == (None, "answered")
    assert deletes.recover(2000) == 0


def test_sweep_deletes_expired_calls(store: CallStore) -> None:
    store.add(deferred_call("answered"))
    store.begin(1000, 1, 30)
    store.answer("answered", ANSWER, 1, 1001)
    store.add(new_dead_letter("dead", 1000.0))
    store.add(deferred_call("waits", 1000.0, deadline_at=9999.0))
    store.add(deferred_call("late", 1000.0, deadline_at=1900.0))
    store.add(deferred_call("runs", 1000.0, due_at=0.0))
    store.begin(1001, 1, 30)
    assert store.sweep(1060, 60, 999, 1 << 40) == 0
    assert store.sweep(1061, 60, 999, 1 << 40) == 1
    assert state_of(store, "answered") is None
    assert store.sweep(1998, 60, 999, 1 << 40) == 0
    assert store.sweep(1999, 60, 999, 1 << 40) == 2
    assert sorted(ids(store.find(CallFilter(), 9, None))) == ["runs", "waits"]


def test_sweep_deletes_the_oldest_dead_letters_until_the_remaining_fit(store: CallStore) -> None:
    store.add(deferred_call("waits", 0.0, request=stored_request(b"x" * 50_000)))
    for number in range(5):
        store.add(new_dead_letter(str(number), 1000.0 + number, request=stored_request(b"x" * 10_000)))
    assert store.sweep(1000, 60, 9999, 60_000) == 0
    assert store.sweep(1000, 60, 9999, 35_000) == 2
    assert ids(store.find(CallFilter(), 9, None)) == ["4", "3", "2", "waits"]
    assert store.sweep(1000, 60, 9999, 1) == 3


# bodies that are encrypted or not stored


def test_encrypted_bodies_cannot_be_read_where_they_are_stored(opened: Opening, content: Content) -> None:
    store = opened(bodies=sealed(NEW))
    store.add(new_dead_letter())
    store.add(deferred_call("b", ended=FAILED))
    store.begin(1000, 1, 30)
    store.answer("b", ANSWER, 1, 1001)
    assert not any(text in content() for text in (b"sky blue", b"chatcmpl-1", b'{"error": "broken"}'))


def test_deferred_calls_are_encrypted_where_there_is_a_key(opened: Opening, content: Content) -> None:
    store = opened(bodies=sealed(NEW, rule="plain"))
    store.add(deferred_call())
    assert b"sky blue" not in content()
    store.add(new_dead_letter("b"))
    assert b"sky blue" in content()


def test_old_key_still_opens_its_data(opened: Opening) -> None:
    opened(bodies=sealed(OLD)).add(deferred_call("a"))
    both = opened(bodies=sealed(NEW, OLD))
    both.add(deferred_call("b"))
    assert [call.request.body for call in both.begin(1000, 9, 30)] == [BODY, BODY]
    new = opened(bodies=sealed(NEW)).get("b")
    assert new is not None
    assert new.request.body == BODY


def test_data_of_another_key_waits_for_it(opened: Opening) -> None:
    opened(bodies=sealed(OLD)).add(deferred_call("sealed"))
    stranger = opened("two", sealed(NEW))
    stranger.add(deferred_call("own"))
    assert ids(stranger.begin(1000, 9, 30)) == ["own"]
    kept = stranger.get("sealed")
    assert kept is not None
    assert (kept.is_readable, kept.request.body, kept.state) == (False, None, "queued")
    assert ids(opened("one", sealed(OLD)).begin(1000, 9, 30)) == ["sealed"]


def test_deferred_call_without_an_available_key_is_dead_from_its_deadline_on(opened: Opening) -> None:
    opened(bodies=sealed(OLD)).add(deferred_call("sealed", deadline_at=1100.0, webhook="done"))
    stranger = opened("two", sealed(NEW))
    stranger.add(deferred_call("own", deadline_at=1100.0))
    stranger.sweep(1099, 1e9, 1e9, 1 << 40)
    assert state_of(stranger, "sealed") == "queued"
    stranger.sweep(1101, 1e9, 1e9, 1 << 40)
    assert (state_of(stranger, "sealed"), state_of(stranger, "own")) == ("dead", "queued")
    assert ids(stranger.unnotified("done", 9)) == ["sealed"]
    assert opened("one", sealed(OLD)).requeue(CallFilter(), 2000, 0) == ["sealed"]


def test_dead_letter_that_cannot_be_read_here_is_not_queued(opened: Opening) -> None:
    opened(bodies=sealed(OLD)).add(new_dead_letter())
    stranger = opened("two", PLAIN)
    assert stranger.requeue(CallFilter(), 2000, 1) == []
    stranger.adopt(sealed(NEW, OLD))
    assert stranger.requeue(CallFilter(), 2000, 1) == ["a"]


def test_bodies_that_must_not_be_stored_are_not(opened: Opening, content: Content) -> None:
    store = opened(bodies=Bodies("none", None))
    store.add(new_dead_letter())
    assert b"sky blue" not in content()
    kept = store.get("a")
    assert kept is not None
    assert (kept.request.body, kept.ended and kept.ended.body) == (None, None)
    assert store.requeue(CallFilter(), 2000, 1) == []


def test_deferred_call_is_stored_whole_until_it_is_dead_without_dead_letters(opened: Opening) -> None:
    store = opened(bodies=Bodies("none", None))
    store.add(deferred_call())
    (call,) = store.begin(1000, 1, 30)
    assert call.request.body == BODY
    store.dead_letter("a", FAILED, 1001)
    kept = store.get("a")
    assert kept is not None
    assert (kept.request.body, kept.ended and kept.ended.body) == (None, None)
