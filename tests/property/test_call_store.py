"""Stored calls under any sequence of events: two gateways on one store, compared with an in-memory model."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llm_guard.clock import SystemClock
from llm_guard.storage.calls.bodies import Bodies
from llm_guard.storage.calls.redis_store import RedisCallStore
from llm_guard.storage.calls.sqlite_store import SqliteCallStore
from llm_guard.storage.calls.store import CallFilter, CallStore, Purpose, StoredCall
from tests.effort import repeated
from tests.fakes.redis_server import redis_server
from tests.fakes.stored_calls import ANSWER, FAILED, deferred_call, new_dead_letter, stored_request

LEASE_S = 30.0
KEEP_S, MAX_AGE_S = 500.0, 4000.0
ALL = 1000
MEMORY = Path("/dev/shm")
"""Avoids waiting for a disk, where this folder exists."""
How = Literal["answer", "dead_letter", "put back"]

gateways = st.integers(0, 1)
purposes = st.sampled_from(["dead_letter", "deferred"])
picks = st.integers(0, 99)


@dataclass(slots=True)
class Model:
    """Expected state of a call."""

    call: StoredCall
    place: int
    """Position in the order of insertion."""
    runner: str | None = None
    leased_until: float = 0.0

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def age(self) -> tuple[float, int]:
        return self.call.received_at, self.place

    def becomes(self, **facts: object) -> None:
        self.call = msgspec.structs.replace(self.call, **facts)


def bare(call: StoredCall) -> StoredCall:
    """Returns the call without bodies, as a search returns it."""
    return msgspec.structs.replace(
        call,
        request=msgspec.structs.replace(call.request, body=None),
        ended=call.ended and msgspec.structs.replace(call.ended, body=None),
        answer=call.answer and msgspec.structs.replace(call.answer, body=b""),
    )


class CallStoreWalk(RuleBasedStateMachine):
    met: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="kept-", dir=MEMORY if MEMORY.is_dir() else None)
        self.now = 10_000.0
        self.calls: dict[str, Model] = {}
        self.added = 0
        self.started = 0
        self.stores: list[CallStore] = []
        self.runners = ["", ""]

    @initialize()
    def two_gateways_start(self) -> None:
        self.stores = [self.new_store(0), self.new_store(1)]

    def new_store(self, gateway: int) -> CallStore:
        self.started += 1
        self.runners[gateway] = f"{gateway}:{self.started}"
        return self.opened(self.runners[gateway])

    def opened(self, runner: str) -> CallStore:
        return SqliteCallStore(lambda: Path(self.folder.name), runner, Bodies("plain", None))

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.folder.cleanup()

    def moved(self, model: Model, to: str, **facts: object) -> None:
        self.met[f"{model.call.state} -> {to}"] += 1
        model.runner = None
        model.becomes(**{"state": to, "due_at": None, **facts})

    def in_state(self, *states: str) -> list[Model]:
        return [model for model in self.calls.values() if model.call.state in states]

    # events

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0, 29.0, 31.0, 600.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        gateway=gateways, count=st.integers(1, 3), purpose=purposes, is_dead=st.booleans(),
        due_in=st.sampled_from([-5.0, 0.0, 20.0]), odds=st.integers(0, 7),
    )  # fmt: skip
    def calls_are_stored(
        self, gateway: int, count: int, purpose: Purpose, is_dead: bool, due_in: float, odds: int
    ) -> None:
        for number in range(count):
            self.keep(gateway, purpose, is_dead, due_in, odds + number)

    def keep(self, gateway: int, purpose: Purpose, is_dead: bool, due_in: float, odds: int) -> None:
        self.added += 1
        request = stored_request(b"x" * 5000 if odds % 5 else None, is_repeatable=odds % 2 == 0)
        webhook = "done" if odds % 3 == 0 else None
        call_id = f"c{self.added}"
        if is_dead:
            call = new_dead_letter(call_id, self.now, purpose=purpose, request=request, webhook=webhook)
        else:
            request = msgspec.structs.replace(request, body=b"y")
            call = deferred_call(
                call_id, self.now, self.now + due_in, purpose=purpose, request=request, webhook=webhook
            )
        self.stores[gateway].add(call)
        self.calls[call_id] = Model(call, self.added)
        self.met[f"added {call.state}"] += 1

    @rule(gateway=gateways, limit=st.sampled_from([1, 2, ALL]), purpose=purposes | st.none())
    def a_gateway_begins(self, gateway: int, limit: int, purpose: Purpose | None) -> None:
        due = [
            model
            for model in self.in_state("queued")
            if (model.call.due_at or 0) <= self.now and purpose in (None, model.call.purpose)
        ]
        due = sorted(due, key=lambda model: (model.call.due_at, model.place))[:limit]
        begun = self.stores[gateway].begin(self.now, limit, LEASE_S, purpose)
        assert [call.id for call in begun] == [model.id for model in due]
        for model, call in zip(due, begun, strict=True):
            self.moved(model, "running", rounds=model.call.rounds + 1)
            model.runner, model.leased_until = self.runners[gateway], self.now + LEASE_S
            assert call == model.call

    @precondition(lambda self: self.calls)
    @rule(gateway=gateways, pick=picks, how=st.sampled_from(["answer", "dead_letter", "put back"]))
    def a_call_ends(self, gateway: int, pick: int, how: How) -> None:
        """Steers the walk: mostly ends a running call, which may be leased by the other gateway."""
        model = self.picked(pick, "running")
        is_mine = model.call.state == "running" and model.runner == self.runners[gateway]
        assert self.end(gateway, model.id, how) == is_mine
        if not is_mine:
            self.met["refused to end"] += 1
            return
        failed = {
            "ended": FAILED, "attempts": model.call.attempts + FAILED.attempts, "last_failed_at": self.now,
            "first_failed_at": model.call.first_failed_at or self.now,
        }  # fmt: skip
        if how == "put back":
            self.moved(model, "queued", due_at=self.now + 5, **failed)
        elif how == "dead_letter":
            self.moved(model, "dead", **failed)
        else:
            request = msgspec.structs.replace(model.call.request, body=None)
            ended = model.call.ended and msgspec.structs.replace(model.call.ended, body=None)
            facts = {"request": request, "ended": ended, "attempts": model.call.attempts + 1}
            self.moved(model, "answered", answer=ANSWER, answered_at=self.now, **facts)

    @rule(gateway=gateways, how=st.sampled_from(["answer", "answer", "answer", "dead_letter", "put back"]))
    def a_gateway_works(self, gateway: int, how: How) -> None:
        """Steers the walk: the gateway ends the calls it begins."""
        self.a_gateway_begins(gateway, 2, None)
        for _ in range(2):
            mine = [model for model in self.in_state("running") if model.runner == self.runners[gateway]]
            if mine:
                self.a_call_ends(gateway, self.in_state("running").index(mine[0]), how)

    def end(self, gateway: int, call_id: str, how: How) -> bool:
        store = self.stores[gateway]
        match how:
            case "answer":
                return store.answer(call_id, ANSWER, 1, self.now)
            case "dead_letter":
                return store.dead_letter(call_id, FAILED, self.now)
            case "put back":
                return store.put_back(call_id, FAILED, self.now, self.now + 5)

    def picked(self, pick: int, state: str) -> Model:
        among = self.in_state(state) or list(self.calls.values())
        return among[pick % len(among)]

    @rule(gateway=gateways)
    def leases_are_extended(self, gateway: int) -> None:
        mine = [model for model in self.in_state("running") if model.runner == self.runners[gateway]]
        others = [call for call in self.calls if call not in {model.id for model in mine}]
        assert self.stores[gateway].extend(list(self.calls), self.now, LEASE_S) == others
        for model in mine:
            model.leased_until = self.now + LEASE_S

    @rule(gateway=gateways)
    def what_is_lost_is_recovered(self, gateway: int) -> None:
        lost = [model for model in self.in_state("running") if model.leased_until <= self.now]
        assert self.stores[gateway].recover(self.now) == len(lost)
        for model in lost:
            self.met["recovered"] += 1
            if model.call.request.is_repeatable:
                self.moved(model, "queued", due_at=self.now)
            else:
                facts = {"first_failed_at": model.call.first_failed_at or self.now, "last_failed_at": self.now}
                self.moved(model, "dead", ended=self.stored(model).ended, **facts)
                assert model.call.ended is not None
                assert model.call.ended.kind == "interrupted"

    @rule(gateway=gateways, pick=picks, is_one=st.booleans(), pace_s=st.sampled_from([0.0, 2.0]))
    def an_operator_requeues(self, gateway: int, pick: int, is_one: bool, pace_s: float) -> None:
        wanted = CallFilter(ids=(self.picked(pick, "dead").id,)) if is_one and self.calls else CallFilter()
        dead = [
            model
            for model in sorted(self.in_state("dead"), key=lambda model: model.age)
            if model.call.request.body is not None and (wanted.ids is None or model.id in wanted.ids)
        ]
        ahead = [each for each in self.in_state("queued") if each.call.purpose == "dead_letter" and self.waits(each)]
        assert self.stores[gateway].requeue(wanted, self.now, pace_s) == [model.id for model in dead]
        for place, model in enumerate(dead, len(ahead)):
            self.moved(model, "queued", due_at=self.now + pace_s * place, deadline_at=None)

    def waits(self, model: Model) -> bool:
        return model.call.due_at is not None and model.call.due_at > self.now

    @rule(gateway=gateways, pick=picks, is_one=st.booleans(), state=st.sampled_from(["dead", "answered", None]))
    def an_operator_deletes(
        self, gateway: int, pick: int, is_one: bool, state: Literal["dead", "answered"] | None
    ) -> None:
        if not self.calls:
            return
        one, until = self.picked(pick, "queued").id, self.now - 100
        wanted = CallFilter(ids=(one,)) if is_one else CallFilter(state=state, until=None if state else until)
        doomed = [
            model
            for model in self.in_state("dead", "queued", "answered")
            if (model.id == one if is_one else model.call.state == state if state else model.call.received_at <= until)
        ]
        assert self.stores[gateway].delete(wanted) == len(doomed)
        self.gone(doomed, "deleted")

    @rule(gateway=gateways, state=st.sampled_from(["dead", "answered"]))
    def an_operator_clears_up(self, gateway: int, state: Literal["dead", "answered"]) -> None:
        """Steers the walk: finished calls can be deleted."""
        self.a_gateway_works(gateway, "answer")
        self.an_operator_deletes(gateway, 0, is_one=False, state=state)

    @rule(gateway=gateways, pick=picks)
    def a_waiting_call_is_deleted(self, gateway: int, pick: int) -> None:
        """Steers the walk: there is a queued call to be deleted."""
        self.keep(gateway, "deferred", is_dead=False, due_in=20.0, odds=1)
        self.an_operator_deletes(gateway, pick, is_one=True, state=None)

    @rule(gateway=gateways, has_room=st.booleans())
    def the_store_is_swept(self, gateway: int, has_room: bool) -> None:
        doomed = [model for model in self.calls.values() if self.is_old(model, has_room)]
        most = 1 << 40 if has_room else 0
        assert self.stores[gateway].sweep(self.now, KEEP_S, MAX_AGE_S, most) == len(doomed)
        self.gone(doomed, "swept")

    @rule(gateway=gateways, seconds=st.sampled_from([MAX_AGE_S, KEEP_S]))
    def no_call_for_long(self, gateway: int, seconds: float) -> None:
        """Steers the walk: calls become too old."""
        self.a_gateway_works(gateway, "answer")
        self.keep(gateway, "deferred", is_dead=False, due_in=0.0, odds=1)
        self.now += seconds
        self.the_store_is_swept(gateway, has_room=True)

    def is_old(self, model: Model, has_room: bool) -> bool:
        call = model.call
        is_over = call.received_at <= self.now - MAX_AGE_S
        match call.state:
            case "answered":
                return call.answered_at is not None and call.answered_at <= self.now - KEEP_S
            case "dead":
                return is_over or not has_room
            case "queued":
                return is_over and (call.deadline_at or 0) <= self.now
            case _:
                return False

    def gone(self, doomed: list[Model], how: str) -> None:
        for model in doomed:
            self.met[f"{how} {model.call.state}"] += 1
            del self.calls[model.id]

    @precondition(lambda self: self.calls)
    @rule(gateway=gateways, pick=picks)
    def a_webhook_is_notified(self, gateway: int, pick: int) -> None:
        over = self.in_state("answered", "dead")
        owed = [each for each in over if each.call.webhook == "done" and each.call.told != each.call.state]
        assert {call.id for call in self.stores[gateway].unnotified("done", ALL)} == {model.id for model in owed}
        if owed:
            model = owed[pick % len(owed)]
            self.met["told" if model.call.told is None else "told anew"] += 1
            self.stores[gateway].mark_notified(model.id, model.call.state)
            model.becomes(told=model.call.state)

    @rule(gateway=gateways, pick=picks)
    def a_call_reported_dead_is_answered(self, gateway: int, pick: int) -> None:
        """Steers the walk: a call that was reported dead is answered, so there is a new state to report."""
        self.a_gateway_begins(gateway, ALL, None)
        for end in ("dead_letter", "answer"):
            self.an_operator_requeues(gateway, 0, is_one=False, pace_s=0.0)
            self.a_gateway_works(gateway, end)
            self.a_webhook_is_notified(gateway, pick)

    @rule(gateway=gateways)
    def a_gateway_is_restarted(self, gateway: int) -> None:
        self.stores[gateway].close()
        self.stores[gateway] = self.new_store(gateway)

    @rule(gateway=gateways, how=st.sampled_from(["answer", "dead_letter", "put back"]))
    def a_gateway_sleeps_through_its_leases(self, gateway: int, how: How) -> None:
        """Steers the walk: the other gateway takes over, and the first one returns with a late response."""
        self.a_gateway_begins(gateway, ALL, None)
        asleep = [model for model in self.in_state("running") if model.runner == self.runners[gateway]]
        self.now += LEASE_S
        self.what_is_lost_is_recovered(1 - gateway)
        self.a_gateway_begins(1 - gateway, ALL, None)
        for model in asleep:
            assert not self.end(gateway, model.id, how)
            self.met["came too late"] += 1

    # invariants

    def stored(self, model: Model) -> StoredCall:
        call = self.stores[0].get(model.id)
        assert call is not None
        return call

    @invariant()
    def stored_calls_match_the_model(self) -> None:
        if not self.stores:
            return
        by_age = sorted(self.calls.values(), key=lambda model: model.age, reverse=True)
        for store in self.stores:
            assert store.find(CallFilter(), ALL, None) == [bare(model.call) for model in by_age]
        for model in by_age[:2]:
            assert self.stored(model) == model.call
        found = self.stores[1].stats()
        assert found.count == Counter(f"{model.call.purpose}/{model.call.state}" for model in by_age)
        assert (found.size > 0) == bool(by_age)
        assert found.oldest_at == (by_age[-1].call.received_at if by_age else None)


class RedisStoreWalk(CallStoreWalk):
    """The same on a Redis server; each walk has a fleet of its own."""

    met: ClassVar[Counter[str]] = Counter()
    url = ""

    def opened(self, runner: str) -> CallStore:
        return RedisCallStore(self.url, Path(self.folder.name).name, runner, Bodies("plain", None), SystemClock())


def test_stored_calls_hold_on_every_walk() -> None:
    walk(CallStoreWalk, repeated(200, least=100))


def test_stored_calls_on_a_server_hold_on_every_walk(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        RedisStoreWalk.url = server.url
        walk(RedisStoreWalk, repeated(200, least=100))


def walk(machine: type[CallStoreWalk], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(derandomize=True, deadline=None, max_examples=examples, stateful_step_count=40),
    )
    # A walk that never gets far proves nothing.
    met = {
        "added dead", "added queued", "queued -> running", "running -> queued", "running -> dead",
        "running -> answered", "dead -> queued", "recovered", "refused to end", "came too late", "told", "told anew",
        "deleted dead", "deleted queued", "deleted answered", "swept dead", "swept answered", "swept queued",
    }  # fmt: skip
    assert {each for each in met if machine.met[each] <= repeated(3)} == set(), machine.met
