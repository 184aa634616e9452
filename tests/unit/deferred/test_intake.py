"""Intake of deferred calls and dead letters: each is on disk or counted as lost, and no caller waits long."""

from __future__ import annotations

import asyncio
import io

import pytest

from llm_guard.deferred import serialization
from llm_guard.outcome import Refusal
from llm_guard.proxy.cache.response_buffer import ResponseBuffer
from llm_guard.proxy.http_server.request import RequestFields
from llm_guard.proxy.request_body.fields import BodyFields
from llm_guard.proxy.request_body.spool import Spool
from llm_guard.proxy.request_body.spooled_body import SpooledBody
from llm_guard.proxy.settings import ProxySettings
from llm_guard.routing.route_table import compile_routes
from tests.fakes.clock import let_run
from tests.fakes.in_memory_store import InMemoryCallStore
from tests.unit.deferred.world import BUSY, WRONG, World, world

SECRET = "sk-canary-4711"
HEADERS = (
    ("Content-Type", "application/json"),
    ("Authorization", f"Bearer {SECRET}"),
    ("x-api-key", SECRET),
    ("api-key", SECRET),
    ("Cookie", f"session={SECRET}"),
    ("OpenAI-Organization", SECRET),
    ("x-custom", SECRET),
    ("OpenAI-Beta", "assistants=v2"),
    ("anthropic-version", "2023-06-01"),
)


async def test_deferred_call_is_on_the_disk_when_it_is_acknowledged() -> None:
    async with world(rules={"deferred": {"deadline": "10m"}}) as it:
        call = it.call()
        kept_id = await it.intake.defer(call, is_at_once=True)
        assert isinstance(kept_id, str)
        kept = it.store.rows[kept_id]
        assert (kept.purpose, kept.request_id, kept.request.model) == ("deferred", "lg-1", "gpt")
        assert kept.deadline_at == pytest.approx(it.clock.wall() + 600)
        assert call.disposition is not None
        assert call.disposition.deferred_id == kept_id
        assert len(kept_id) == 32


async def test_no_credential_is_stored_but_headers_that_change_the_meaning_are() -> None:
    async with world() as it:
        kept = await it.new_dead_letter(headers=HEADERS, query=f"api-version=1&key={SECRET}&%73ig={SECRET}&beta=true")
        assert SECRET not in repr(kept)
        assert dict(kept.request.headers) == {
            "content-type": "application/json", "openai-beta": "assistants=v2", "anthropic-version": "2023-06-01",
        }  # fmt: skip
        assert kept.request.query == "api-version=1&beta=true"


async def test_dead_letter_states_how_the_call_failed() -> None:
    async with world() as it:
        call = it.call(failure=BUSY)
        kept_id = await it.intake.dead_letter(call)
        kept = it.store.rows[str(kept_id)]
        assert (kept.state, kept.deadline_at, kept.webhook) == ("dead", None, None)
        assert kept.ended is not None
        assert (kept.ended.kind, kept.ended.detail, kept.ended.status) == ("overloaded", "answered 503", 502)
        assert kept.first_failed_at == kept.last_failed_at == it.clock.wall()
        assert call.disposition is not None
        assert call.disposition.dead_letter_id == kept_id
        assert it.told == [("dead_letter", {"event": "stored", "count": 1})]


async def test_dead_letter_of_a_refusal_has_its_code() -> None:
    async with world() as it:
        refusal = Refusal(503, "breaker_open", "one: failing", by="breaker")
        kept = it.store.rows[str(await it.intake.dead_letter(it.call(refusal=refusal)))]
        assert kept.ended is not None
        assert (kept.ended.kind, kept.ended.status) == ("breaker_open", 503)


async def test_full_disk_loses_the_dead_letter_and_that_is_counted() -> None:
    async with world() as it:
        it.store.problem = "database or disk is full"
        call = it.call(failure=BUSY)
        assert await it.intake.dead_letter(call) is None
        assert call.disposition is None
        assert it.deferred.counts.lost == {"write_failed": 1}
        assert ("dead_letter", {"event": "lost", "count": 1}) in it.told


async def test_hung_disk_is_waited_for_two_seconds() -> None:
    async with world() as it:
        it.disk.hangs = True
        burying = asyncio.ensure_future(it.intake.dead_letter(it.call(failure=BUSY)))
        await it.pass_s(1.9)
        assert not burying.done()
        await it.pass_s(0.2)
        assert await burying is None
        assert it.deferred.counts.lost == {"write_timeout": 1}


async def test_calls_that_wait_for_a_hung_disk_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as it:
        it.disk.hangs = True
        waiting = [asyncio.ensure_future(it.intake.dead_letter(it.call(failure=BUSY))) for _ in range(250)]
        await let_run()
        assert sum(each.done() for each in waiting) == it.deferred.counts.lost["queue_full"] == 50
        await it.pass_s(2.1)
        await asyncio.gather(*waiting)
        assert it.deferred.counts.lost["write_timeout"] == 200


async def test_queue_for_a_hung_disk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as it:
        monkeypatch.setattr("llm_guard.deferred.intake._MOST_WAITING_BYTES", 100)
        it.disk.hangs = True
        waiting = [
            asyncio.ensure_future(it.intake.dead_letter(it.call(failure=BUSY, body=b"x" * 60))) for _ in range(2)
        ]
        await let_run()
        assert await it.intake.dead_letter(it.call(failure=BUSY)) is None
        assert it.deferred.counts.lost == {"queue_full": 1}
        deferred = await it.intake.defer(it.call(), is_at_once=True)
        assert isinstance(deferred, Refusal)
        await it.pass_s(2.1)
        await asyncio.gather(*waiting)
        it.disk.go_on()
        assert await it.intake.dead_letter(it.call(failure=BUSY)) is not None


async def test_calls_that_wait_for_the_disk_are_written_together() -> None:
    async with world() as it:
        it.disk.hangs = True
        waiting = [asyncio.ensure_future(it.intake.dead_letter(it.call(failure=BUSY))) for _ in range(50)]
        await let_run()
        waiting[7].cancel()
        await let_run()
        it.disk.go_on()
        kept = await asyncio.gather(*waiting, return_exceptions=True)
        assert sorted(it.store.rows) == sorted(each for each in kept if isinstance(each, str))
        assert len(it.store.rows) == 49
        assert it.store.done.count("add") <= 2


async def test_one_that_cannot_be_written_takes_no_other_with_it() -> None:
    async with world() as it:
        it.disk.hangs = True
        bodies = (b"{}", it.store.refused, b"{}")
        waiting = [asyncio.ensure_future(it.intake.dead_letter(it.call(failure=BUSY, body=body))) for body in bodies]
        await let_run()
        it.disk.go_on()
        kept = await asyncio.gather(*waiting)
        assert [each is not None for each in kept] == [True, False, True]
        assert it.deferred.counts.lost == {"write_failed": 1}
        assert len(it.store.rows) == 2


async def test_call_that_a_hung_disk_did_not_take_in_time_leaves_the_memory() -> None:
    async with world() as it:
        it.disk.hangs = True
        burying = asyncio.ensure_future(it.intake.dead_letter(it.call(failure=BUSY)))
        await let_run()
        (adding,) = it.deferred.call_store._adding
        await it.pass_s(2.5)
        assert await burying is None
        assert adding.call is None
        assert not it.deferred.call_store._adding


async def test_too_large_a_body_is_not_deferred_and_counts_as_a_lost_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as it:
        monkeypatch.setattr(serialization, "MOST_BODY_BYTES", 10)
        body = b'{"model":"gpt"}'
        stored = SpooledBody(io.BytesIO(body), len(body), "", lambda model: [], Spool(0), it.clock)
        for spooled_body in (body, stored):
            refusal = await it.intake.defer(it.call(body=spooled_body), is_at_once=True)
            assert isinstance(refusal, Refusal)
            assert (refusal.status, refusal.code) == (413, "too_large_to_keep")
            assert await it.intake.dead_letter(it.call(failure=BUSY, body=spooled_body)) is None
        assert it.deferred.counts.lost == {"body_too_large": 2}
        assert not it.store.rows


async def test_body_in_a_file_is_stored_whole() -> None:
    async with world() as it:
        body = bytes(range(256)) * 3000
        stored = SpooledBody(io.BytesIO(body), len(body), "", lambda model: [], Spool(0), it.clock)
        kept = await it.new_dead_letter(body=stored)
        assert kept.request.body == body


async def test_body_that_is_closed_is_a_counted_loss() -> None:
    async with world() as it:
        stored = SpooledBody(io.BytesIO(b"{}"), 2, "", lambda model: [], Spool(0), it.clock)
        stored.close()
        assert await it.intake.dead_letter(it.call(failure=BUSY, body=stored)) is None
        assert it.deferred.counts.lost == {"body_unreadable": 1}
        refusal = await it.intake.defer(it.call(body=stored), is_at_once=True)
        assert isinstance(refusal, Refusal)


async def test_deferred_call_that_cannot_be_stored_is_refused() -> None:
    async with world() as it:
        it.store.problem = "disk I/O error"
        refusal = await it.intake.defer(it.call(), is_at_once=True)
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.should_retry, refusal.retry_after_s) == (503, True, 10.0)
        assert "disk I/O" not in refusal.message
        assert it.told == [("deferred", {"event": "rejected", "count": 1})]
        it.store.problem = None
        await it.pass_s(5)
        assert it.provider.asked == []


async def test_credentials_of_a_call_that_could_not_be_stored_leave_the_memory() -> None:
    async with world() as it:
        it.store.problem = "disk I/O error"
        assert isinstance(await it.intake.defer(it.call(headers=HEADERS), is_at_once=True), Refusal)
        assert await it.intake.dead_letter(it.call(headers=HEADERS, failure=BUSY)) is None
        assert SECRET not in repr(it.intake._credentials._kept)
        assert it.deferred.counts.waiting == 0


async def test_deferred_call_that_was_written_too_late_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as it:
        it.disk.hangs = True
        call_store = it.deferred.call_store  # the store's thread is processing it
        monkeypatch.setattr(call_store, "add", lambda call: call_store.ask(lambda store: store.add(call)))
        deferring = asyncio.ensure_future(it.intake.defer(it.call(), is_at_once=True))
        await it.pass_s(1)
        await it.pass_s(1.5)
        assert isinstance(await deferring, Refusal)
        it.disk.go_on()
        await it.pass_s(3)
        assert it.store.done.count("add") == 1
        assert it.store.rows == {}
        assert it.provider.asked == []


async def test_deferred_call_of_a_disconnected_client_is_withdrawn() -> None:
    async with world() as it:
        it.disk.hangs = True
        deferring = asyncio.ensure_future(it.intake.defer(it.call(), is_at_once=True))
        await let_run()
        deferring.cancel()
        await let_run()
        it.disk.go_on()
        with pytest.raises(asyncio.CancelledError):
            await deferring
        assert "delete" in it.store.done
        assert it.deferred.counts.waiting == 0


async def test_no_more_are_deferred_than_may_wait() -> None:
    async with world(store={"deferred": {"max_pending": 2, "concurrency": 1}}) as it:
        it.provider.is_silent = True
        for _ in range(2):
            await it.new_deferred()
        refusal = await it.intake.defer(it.call(), is_at_once=True)
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.code, refusal.should_retry) == (503, "too_many_deferred_calls", True)
        it.provider.is_silent = False
        await it.pass_s(10)
        assert {row.state for row in it.store.rows.values()} == {"answered"}
        assert isinstance(await it.intake.defer(it.call(), is_at_once=True), str)


async def test_reload_changes_how_many_may_wait() -> None:
    async with world(store={"deferred": {"max_pending": 1, "concurrency": 1}}) as it:
        it.provider.is_silent = True
        await it.new_deferred()
        assert isinstance(await it.intake.defer(it.call(), is_at_once=True), Refusal)
        it.intake.adopt(World(InMemoryCallStore(), store={"deferred": {"max_pending": 2}}).config)
        assert isinstance(await it.intake.defer(it.call(), is_at_once=True), str)


async def test_stored_call_is_made_with_the_current_rights_of_its_key() -> None:
    client = {"name": "app", "key": "k-app"}
    async with world(server={"client_keys": [client]}) as it:
        call = it.call(client_key="app")
        assert it.gateway.restore(call, BodyFields(model="gpt")) is None
        files = it.call("/v1/files", client_key="app")
        refusal = it.gateway.restore(files, BodyFields())
        assert refusal is not None
        assert refusal.code == "permission_denied"


async def test_reload_changes_how_large_a_body_may_be_and_which_keys_open_the_gateway() -> None:
    async with world() as it:
        assert it.gateway._clients.admit(it.call(), RequestFields((), {})) is None
        client = {"name": "app", "key": "k-app"}
        other = World(InMemoryCallStore(), server={"max_body": "3MiB", "client_keys": [client]})
        it.gateway.adopt(ProxySettings(other.config, compile_routes(other.config, it.clock.now())))
        assert it.gateway._body_limits.of(it.call(), ResponseBuffer().reply()).max_bytes == 3 << 20
        refusal = it.gateway._clients.admit(it.call(), RequestFields((), {}))
        assert refusal is not None
        assert refusal.code == "invalid_api_key"


async def test_reload_with_more_room_admits_waiting_calls_at_once() -> None:
    async with world(rules={"capacity": {"concurrency": 1}}) as it:
        it.provider.is_silent = True
        calls = [
            asyncio.create_task(it.gateway.execute_background(it.call(), ResponseBuffer().reply())) for _ in range(2)
        ]
        await let_run()
        assert len(it.provider.asked) == 1
        other = World(InMemoryCallStore(), rules={"capacity": {"concurrency": 2}})
        it.gateway.adopt(ProxySettings(other.config, compile_routes(other.config, it.clock.now(), it.gateway.table)))
        await let_run()
        assert len(it.provider.asked) == 2
        it.provider.is_silent = False
        await it.pass_s(1.0)
        assert await asyncio.gather(*calls) == [None, None]


async def test_call_that_has_failed_is_retried_after_a_while() -> None:
    async with world() as it:
        call = it.call(failure=BUSY)
        kept_id = await it.intake.defer(call, is_at_once=False)
        kept = it.store.rows[str(kept_id)]
        assert kept.ended is not None
        assert kept.ended.kind == "overloaded"
        assert kept.rounds == 1
        assert kept.due_at == pytest.approx(it.clock.wall() + 0.75)


async def test_call_that_would_fail_again_is_not_deferred() -> None:
    async with world() as it:
        refusal = await it.intake.defer(it.call(failure=WRONG), is_at_once=False)
        assert isinstance(refusal, Refusal)
        assert refusal.code == "not_deferrable"
        assert not it.store.rows


async def test_owner_is_a_client_by_name_or_the_same_key() -> None:
    async with world() as it:
        assert serialization.owner_of(it.call(client_key="app")) == "client app"
        assert serialization.owner_of(it.call(key_digest="k")) == "key k"


async def test_ten_thousand_dead_letters_are_a_few_events() -> None:
    async with world() as it:
        for _ in range(500):
            await it.intake.dead_letter(it.call(failure=BUSY))
        await it.pass_s(20)
        assert sum(facts["count"] for kind, facts in it.told if kind == "dead_letter") == 500
        assert len(it.told) == 2
