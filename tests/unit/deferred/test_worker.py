"""Execution of stored calls: a few at a time, with every result recorded and no started call lost."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest
from msgspec.structs import replace

from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.storage.calls.store import CallFilter, StoredCall
from tests.fakes.clock import let_run
from tests.fakes.in_memory_store import InMemoryCallStore
from tests.unit.deferred.world import BUSY, CUT, NO_KEY, OK, WRONG, World, world


def kind_of(it: World, kept: StoredCall) -> str | None:
    """Returns the kind of the call's last failure."""
    ended = it.now(kept).ended
    return None if ended is None else ended.kind


RATE_LIMITED = Failure(FailureKind.RATE_LIMIT, "slow down", retry_after_s=100.0)


async def test_deferred_call_is_sent_at_once_and_its_response_is_stored() -> None:
    async with world() as it:
        kept = await it.new_deferred()
        await let_run()
        done = it.now(kept)
        assert (done.state, done.attempts, done.rounds) == ("answered", 1, 1)
        assert done.answer is not None
        assert (done.answer.status, done.answer.body) == (200, b'{"id":"good"}')
        assert "set-cookie" not in dict(done.answer.headers)
        assert it.deferred.counts.rounds == {("deferred", "answered"): 1}


async def test_answered_call_is_never_sent_again() -> None:
    async with world() as it:
        await it.new_deferred()
        await it.pass_s(300)
        assert len(it.provider.asked) == 1


async def test_failed_round_is_followed_by_another_after_a_backoff() -> None:
    async with world() as it:
        it.provider.outcomes = [BUSY, BUSY, OK]
        kept = await it.new_deferred()
        await let_run()
        assert (it.now(kept).state, it.now(kept).attempts) == ("queued", 1)
        await it.pass_s(2)
        assert (it.now(kept).state, it.now(kept).attempts) == ("queued", 2)
        await it.pass_s(3)
        assert (it.now(kept).state, it.now(kept).attempts, it.now(kept).rounds) == ("answered", 3, 3)
        assert it.deferred.counts.rounds == {("deferred", "retry"): 2, ("deferred", "answered"): 1}


async def test_retry_after_of_the_provider_is_obeyed() -> None:
    async with world() as it:
        it.provider.outcomes = [RATE_LIMITED, OK]
        await it.new_deferred()
        await it.pass_s(99)
        assert len(it.provider.asked) == 1
        await it.pass_s(15)
        assert len(it.provider.asked) == 2


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
async def test_wall_clock_that_is_set_neither_shortens_nor_delays_a_deferred_call(by_s: float) -> None:
    async with world(rules={"deferred": {"deadline": "300s"}}) as it:
        it.provider.outcomes = [RATE_LIMITED, OK]
        kept = await it.new_deferred()
        await let_run()
        it.clock.set_wall(by_s)
        await it.pass_s(90)
        assert len(it.provider.asked) == 1
        assert it.now(kept).deadline_at == pytest.approx(it.clock.wall() + 210, abs=2)
        await it.pass_s(25)
        assert (len(it.provider.asked), it.now(kept).state) == (2, "answered")


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
async def test_deferred_call_expires_on_the_monotonic_clock(by_s: float) -> None:
    async with world(rules={"deferred": {"deadline": "100s"}}) as it:
        it.provider.outcomes = [BUSY]
        kept = await it.new_deferred()
        await it.pass_s(20)
        it.clock.set_wall(by_s)
        await it.pass_s(40)
        assert it.now(kept).state in ("queued", "running")
        await it.pass_s(60)
        assert it.now(kept).state == "dead"
        asked = len(it.provider.asked)
        await it.pass_s(3600)
        assert len(it.provider.asked) == asked


async def test_round_during_which_the_wall_clock_is_set_is_followed_by_another() -> None:
    async with world(rules={"deferred": {"deadline": "300s"}}) as it:
        it.provider.outcomes, it.provider.is_silent = [BUSY, OK], True
        kept = await it.new_deferred()
        await let_run()
        it.clock.set_wall(3600)
        it.provider.is_silent = False
        await it.pass_s(30)
        assert it.now(kept).state == "answered"


async def test_deferred_call_of_an_earlier_process_expires_by_the_wall_clock() -> None:
    async with world(rules={"deferred": {"deadline": "300s"}}) as it:
        it.provider.outcomes = [BUSY]
        kept = await it.new_deferred()
        await let_run()
        rows = it.store
    async with world(rows) as it:
        it.clock.set_wall(3600)
        await it.pass_s(30)
        assert it.now(kept).state == "dead"


async def test_clock_is_followed_once_the_disk_takes_it() -> None:
    async with world(rules={"deferred": {"deadline": "300s"}}) as it:
        it.provider.outcomes = [RATE_LIMITED, OK]
        kept = await it.new_deferred()
        await let_run()
        it.store.problem = "full"
        it.clock.set_wall(-3600)
        await it.pass_s(20)
        it.store.problem = None
        await it.pass_s(100)
        assert it.now(kept).state == "answered"


async def test_after_its_deadline_a_call_is_dead() -> None:
    async with world(rules={"deferred": {"deadline": "10s"}}) as it:
        it.provider.outcomes = [BUSY]
        kept = await it.new_deferred()
        await it.pass_s(60)
        done = it.now(kept)
        assert done.state == "dead"
        assert done.ended is not None
        assert done.ended.kind == "overloaded"
        asked = len(it.provider.asked)
        await it.pass_s(600)
        assert len(it.provider.asked) == asked


async def test_call_that_was_late_before_it_was_begun_is_dead_and_is_not_sent() -> None:
    store = InMemoryCallStore()
    first = World(store, rules={"deferred": {"deadline": "10s"}})
    kept = await first.new_deferred()
    async with world(store, late_s=20) as it:
        await it.pass_s(2)
        done = it.now(kept)
        assert (done.state, kind_of(it, kept)) == ("dead", "deadline")
        assert it.provider.asked == []


async def test_call_that_is_wrong_in_itself_is_dead_at_once() -> None:
    async with world() as it:
        it.provider.outcomes = [WRONG]
        kept = await it.new_deferred()
        await let_run()
        assert it.now(kept).state == "dead"


async def test_call_that_may_have_been_executed_is_not_repeated_unless_that_is_safe() -> None:
    async with world() as it:
        it.provider.outcomes = [CUT]
        unsafe = await it.new_deferred(path="/v1/batches")
        safe = await it.new_deferred()
        await let_run()
        assert (it.now(unsafe).state, it.now(safe).state) == ("dead", "queued")


async def test_its_id_is_the_idempotency_key_of_each_exchange() -> None:
    async with world() as it:
        it.provider.outcomes = [BUSY, OK]
        kept = await it.new_deferred()
        await it.pass_s(3)
        assert it.provider.headers("idempotency-key") == [kept.id, kept.id]


async def test_clients_own_idempotency_key_stays() -> None:
    async with world() as it:
        await it.new_deferred(headers=(("Idempotency-Key", "theirs"),))
        await let_run()
        assert it.provider.headers("idempotency-key") == ["theirs"]


async def test_background_calls_yield_to_clients_and_are_not_counted_as_theirs() -> None:
    async with world() as it:
        it.provider.outcomes = [BUSY, OK]
        await it.new_deferred()
        await it.pass_s(3)
        assert {call.priority for call in it.provider.asked} == {2}
        assert it.provider.asked[1].client_retries == 1  # the first attempt has made the retry budget's deposit
        counts = it.counters.models["gpt"]
        assert (dict(counts.calls), counts.judged, list(it.counters.recent)) == ({}, 0, [])
        assert dict(it.counters.deployments["one/gpt"].attempts) == {"overloaded": 1, "ok": 1}


async def test_concurrency_is_bounded() -> None:
    async with world(store={"deferred": {"concurrency": 3}}) as it:
        it.provider.is_silent = True
        for _ in range(10):
            await it.new_deferred()
        await it.pass_s(2)
        assert len(it.provider.asked) == 3
        it.provider.is_silent = False
        await it.pass_s(3)
        assert len(it.provider.asked) == 10
        assert {row.state for row in it.store.rows.values()} == {"answered"}


async def test_dead_letters_are_requeued_at_a_bounded_pace() -> None:
    async with world(store={"dead_letters": {"requeue_rate": 2}, "deferred": {"concurrency": 50}}) as it:
        for _ in range(20):
            await it.new_dead_letter()
        assert len(it.store.requeue(CallFilter(), it.clock.wall(), 0.0)) == 20
        begun = []
        for _ in range(6):
            await it.pass_s(1)
            begun.append(len(it.provider.asked))
        assert begun == [2, 4, 6, 8, 10, 12]


async def test_dead_letters_do_not_take_the_slots_of_deferred_calls() -> None:
    async with world(store={"deferred": {"concurrency": 1}, "dead_letters": {"requeue_rate": 100}}) as it:
        it.provider.is_silent = True
        await it.new_dead_letter()
        it.store.requeue(CallFilter(), it.clock.wall(), 0.0)
        await it.pass_s(2)
        await it.new_deferred()
        await let_run()
        assert len(it.provider.asked) == 2


async def test_dead_letter_that_fails_again_is_dead_again() -> None:
    async with world() as it:
        kept = await it.new_dead_letter()
        it.provider.outcomes = [BUSY, OK]
        it.store.requeue(CallFilter(), it.clock.wall(), 0.0)
        await it.pass_s(3)
        done = it.now(kept)
        assert (done.state, done.attempts, done.rounds) == ("dead", 1, 1)
        it.store.requeue(CallFilter(), it.clock.wall(), 0.0)
        await it.pass_s(3)
        assert (it.now(kept).state, it.now(kept).rounds) == ("answered", 2)


async def test_finished_dead_letter_does_not_count_as_a_finished_deferred_call() -> None:
    async with world(store={"dead_letters": {"requeue_rate": 100}}) as it:
        kept = await it.new_dead_letter()
        it.store.requeue(CallFilter(), it.clock.wall(), 0.0)
        deferred = []
        for _ in range(8):
            await it.pass_s(0.25)
            deferred.append(it.deferred.counts.uncounted)
        assert it.now(kept).state == "answered"
        assert deferred == [0] * 8


async def test_deferred_call_that_is_over_is_counted_at_once() -> None:
    async with world() as it:
        await it.new_deferred()
        await let_run()
        assert it.deferred.counts.uncounted == 0


async def test_call_whose_model_is_gone_is_dead_and_states_why() -> None:
    store = InMemoryCallStore()
    first = World(store, models={"old": {"deployments": [{"upstream": "one"}]}})
    kept = await first.new_deferred(model="old")
    async with world(store) as it:
        await it.pass_s(2)
        done = it.now(kept)
        assert (done.state, kind_of(it, kept)) == ("dead", "model_not_found")


async def test_callers_own_key_is_used_as_long_as_the_process_lives() -> None:
    async with world(one={}) as it:
        it.provider.outcomes = [BUSY, OK]
        headers = (("Authorization", "Bearer sk-caller"), ("openai-project", "p1"))
        kept = await it.new_deferred(headers=headers, query="api-version=2&key=k")
        await it.pass_s(3)
        assert it.provider.headers("Authorization") == ["Bearer sk-caller"] * 2
        assert it.provider.headers("openai-project") == ["p1"] * 2
        assert {call.query for call in it.provider.asked} == {"api-version=2&key=k"}
        assert it.provider.asked[0].key_digest == sha256(b"sk-caller").hexdigest()
        assert it.provider.asked[0].account_digest == sha256(b"openai-project: p1").hexdigest()
        assert "sk-caller" not in repr(it.now(kept))


async def test_key_lost_with_its_process_is_named_with_the_remedy() -> None:
    store = InMemoryCallStore()
    first = World(store, one={})
    kept = await first.new_deferred(headers=(("Authorization", "Bearer sk-caller"),))
    async with world(store, [NO_KEY], one={}) as it:
        await it.pass_s(2)
        done = it.now(kept)
        assert done.state == "dead"
        assert done.ended is not None
        assert "set the upstream's api_key" in done.ended.detail
        assert it.provider.headers("Authorization") == []
        # Otherwise a provider's answer to the missing key would put the caller's key into cooldown.
        assert it.provider.asked[0].key_digest == sha256(b"").hexdigest()


async def test_client_key_of_the_gateway_is_not_forwarded() -> None:
    async with world(one={}) as it:
        await it.new_deferred(headers=(("Authorization", "Bearer sk-gateway"),), client_key="app")
        await let_run()
        assert it.provider.headers("Authorization") == []
        assert it.provider.asked[0].client_key == "app"


async def test_running_call_is_put_back_unchanged_at_shutdown() -> None:
    async with world() as it:
        it.provider.is_silent = True
        kept = await it.new_deferred()
        await let_run()
        assert it.now(kept).state == "running"
        it.deferred.leave()
        it.gateway.end_running()
        await it.deferred.stop()
        done = it.now(kept)
        assert (done.state, done.ended, done.attempts) == ("queued", None, 0)
        assert it.deferred.counts.rounds == {("deferred", "interrupted"): 1}
        assert it.store.done[-1] == "close"


async def test_gateway_that_leaves_begins_nothing() -> None:
    async with world() as it:
        it.deferred.leave()
        await it.new_deferred()
        await it.pass_s(5)
        assert it.provider.asked == []


async def test_call_that_is_being_begun_when_the_gateway_leaves_is_put_back_unasked() -> None:
    async with world() as it:
        it.disk.hangs = True
        deferring = asyncio.ensure_future(it.new_deferred())
        await let_run()
        it.deferred.runner.wake()
        await let_run()  # its query waits behind the deferred call
        stopping = asyncio.ensure_future(it.deferred.stop())
        await let_run()
        it.disk.go_on()
        kept = await deferring
        await it.pass_s(5)
        await stopping
        assert it.now(kept).state == "queued"
        assert (it.provider.asked, it.running.ids()) == ([], [])
        assert it.store.done[-1] == "close"


async def test_call_that_another_gateway_has_taken_over_is_released() -> None:
    async with world() as it:
        it.provider.is_silent = True
        kept = await it.new_deferred()
        await let_run()
        other = it.store.beside("two")
        it.store.leases[kept.id] = ("two", it.clock.wall() + 100)
        await it.pass_s(3)
        assert it.running.ids() == []
        assert it.now(kept).state == "running"
        assert it.deferred.counts.rounds == {("deferred", "lost"): 1}
        assert other.put_back(kept.id, None, it.clock.wall(), it.clock.wall())


async def test_lease_lasts_as_long_as_a_round() -> None:
    async with world() as it:
        it.provider.is_silent = True
        kept = await it.new_deferred()
        for _ in range(30):
            await it.pass_s(1)
            assert it.store.leases[kept.id][1] > it.clock.wall() + 5


async def test_call_of_a_dead_gateway_is_resumed_when_its_lease_has_ended() -> None:
    store = InMemoryCallStore("dead one")
    first = World(store)
    kept = await first.new_deferred()
    assert store.begin(first.clock.wall(), 1, 10.0)
    async with world(store.beside("two")) as it:
        await it.pass_s(9)
        assert it.provider.asked == []
        await it.pass_s(5)
        assert store.rows[kept.id].state == "answered"


async def test_answer_that_cannot_be_written_is_written_when_the_disk_has_room() -> None:
    async with world() as it:
        it.provider.is_silent = True
        kept = await it.new_deferred()
        await let_run()
        it.store.problem = "database or disk is full"
        it.provider.is_silent = False
        await it.pass_s(8)
        assert it.now(kept).state == "running"
        it.store.problem = None
        await it.pass_s(2)
        assert it.now(kept).state == "answered"
        assert len(it.provider.asked) == 1


async def test_response_that_can_never_be_written_is_given_up_and_counted() -> None:
    async with world() as it:
        it.provider.is_silent = True
        kept = await it.new_deferred()
        await let_run()
        it.store.problem = "database or disk is full"
        it.provider.is_silent = False
        await it.pass_s(40)
        assert it.deferred.counts.rounds == {("deferred", "lost"): 1}
        assert it.running.ids() == []
        assert it.now(kept).state == "running"


async def test_call_without_its_body_is_dead() -> None:
    async with world() as it:
        kept = await it.new_deferred()
        await let_run()
        it.store._put(it.now(kept), state="queued", due_at=0.0, request=_bodiless(it, kept.id))
        await it.pass_s(2)
        done = it.now(kept)
        assert (done.state, kind_of(it, kept)) == ("dead", "no_body")
        assert len(it.provider.asked) == 1


def _bodiless(it: World, kept_id: str) -> object:
    return replace(it.store.rows[kept_id].request, body=None)


async def test_body_that_became_unreadable_is_dead() -> None:
    async with world() as it:
        kept = await it.new_deferred(body=b"{")
        await let_run()
        assert it.now(kept).state == "dead"


async def test_bug_in_one_background_call_leaves_the_others() -> None:
    async with world(outcomes=[RuntimeError("a bug"), OK]) as it:
        first, second = await it.new_deferred(), await it.new_deferred()
        await let_run()
        assert kind_of(it, first) == "internal"
        assert it.now(second).state == "answered"


async def test_response_too_large_to_store_is_dead_and_states_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_guard.deferred.execution.MOST_BYTES", 5)
    monkeypatch.setattr("llm_guard.proxy.cache.response_buffer.ResponseBuffer.__init__.__defaults__", (lambda: None, 5))
    async with world() as it:
        kept = await it.new_deferred()
        await let_run()
        assert kind_of(it, kept) == "response_too_large"


async def test_answer_that_was_broken_off_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as it:
        kept = await it.new_deferred(method="POST")
        monkeypatch.setattr(it.gateway, "execute_background", _broken_off)
        await let_run()
        assert (it.now(kept).state, kind_of(it, kept)) == ("queued", "truncated")


async def _broken_off(call: Call, reply: ResponseWriter) -> None:
    await reply.send(200, "OK", [], b"half")
    await reply.break_off()


async def test_disk_that_hangs_does_not_hold_up_the_end() -> None:
    async with world() as it:
        it.provider.is_silent = True
        await it.new_deferred()
        await let_run()
        it.disk.hangs = True
        it.provider.is_silent = False
        await it.pass_s(2)
        await asyncio.wait_for(it.deferred.runner.stop(0.01), 1)
        assert it.running.ids() == []


async def test_store_that_cannot_be_read_is_tried_again() -> None:
    async with world() as it:
        it.store.problem = "unable to open database file"
        await it.pass_s(5)
        it.store.problem = None
        await it.new_deferred()
        await it.pass_s(1)
        assert len(it.provider.asked) == 1
        assert any(kind == "call_store" for kind, _ in it.told)


async def test_store_that_stays_unreadable_is_reported_once_until_it_recovers() -> None:
    async with world() as it:
        for _ in range(2):
            it.store.problem = "Permission denied"
            await it.pass_s(60)
            it.store.problem = None
            await it.pass_s(10)
        assert sorted(facts["event"] for kind, facts in it.told if kind == "call_store") == [
            *["maintenance_failed"] * 2,
            *["read_failed"] * 2,
        ]
        assert all(facts["count"] == 1 for kind, facts in it.told if kind == "call_store")


async def test_reload_changes_the_concurrency() -> None:
    async with world(store={"deferred": {"concurrency": 1}}) as it:
        it.provider.is_silent = True
        for _ in range(5):
            await it.new_deferred()
        await it.pass_s(1)
        it.deferred.adopt(World(InMemoryCallStore(), store={"deferred": {"concurrency": 4}}).config)
        await it.pass_s(1)
        assert len(it.provider.asked) == 4


async def test_stored_calls_are_refreshed_and_old_responses_removed() -> None:
    async with world(store={"deferred": {"result_ttl": "1m"}}) as it:
        await it.new_deferred()
        await it.new_dead_letter()
        await it.pass_s(5)
        assert it.deferred.counts.found is not None
        assert it.deferred.counts.found.count == {"deferred/answered": 1, "dead_letter/dead": 1}
        await it.pass_s(130)
        assert it.deferred.counts.found.count == {"dead_letter/dead": 1}
        await asyncio.sleep(0)


async def test_credentials_are_forgotten_with_the_answer_and_with_a_call_that_its_owner_gave_up() -> None:
    async with world(one={}) as it:
        headers = (("content-type", "application/json"), ("authorization", "Bearer sk-callers"))
        await it.new_deferred(headers=headers)
        assert it.intake._credentials._kept
        await let_run()
        assert not it.intake._credentials._kept
        it.provider.is_silent = True
        kept = await it.new_deferred(headers=headers)
        await let_run()
        it.running.give_up(kept.id)
        await let_run()
        assert kept.id not in it.store.rows
        assert not it.intake._credentials._kept


async def test_pause_accumulates_no_dead_letters() -> None:
    async with world(store={"dead_letters": {"requeue_rate": 2}, "deferred": {"concurrency": 50}}) as it:
        await it.pass_s(60)
        for _ in range(20):
            await it.new_dead_letter()
        it.store.requeue(CallFilter(), it.clock.wall(), 0.0)
        await it.pass_s(1)
        assert len(it.provider.asked) <= 4


async def test_attempt_ends_with_the_deadline_of_its_call() -> None:
    async with world(rules={"deferred": {"deadline": "3s"}}) as it:
        it.provider.is_silent = True
        await it.new_deferred()
        await let_run()
        (call,) = it.provider.asked
        assert call.deadline_at <= it.clock.now() + 3.0


async def test_store_is_swept_once_a_minute() -> None:
    async with world() as it:
        await it.new_deferred()
        await it.pass_s(1)
        before = it.store.done.count("sweep")
        await it.pass_s(120)
        assert 1 <= it.store.done.count("sweep") - before <= 3


async def test_reload_changes_the_result_ttl() -> None:
    async with world(store={"deferred": {"result_ttl": "1h"}}) as it:
        kept = await it.new_deferred()
        await it.pass_s(10)
        it.deferred.adopt(World(InMemoryCallStore(), store={"deferred": {"result_ttl": "30s"}}).config)
        await it.pass_s(120)
        assert kept.id not in it.store.rows
