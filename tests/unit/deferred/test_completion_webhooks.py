"""Completion webhooks of deferred calls, which are retried until they are delivered."""

from __future__ import annotations

from typing import Any

import pytest

from llm_guard.storage.calls.store import CallFilter, State, StoreError
from llm_guard.webhooks.client import WebhookResult
from llm_guard.webhooks.signature import signature
from tests.fakes.clock import let_run
from tests.fakes.in_memory_store import InMemoryCallStore
from tests.unit.deferred.world import OK, WRONG, World, world

HOOKS: dict[str, Any] = {
    "store": {
        "webhooks": [
            {"name": "team", "url": "https://hooks.example.com/a?k=1", "secret": "s3cret", "headers": {"x-team": "a"}},
            {"name": "other", "url": "https://other.example.com/"},
        ]
    },
    "rules": {"deferred": {"webhook": "team"}},
}
REFUSED = WebhookResult(False, may_retry=True, problem="answered 503")


async def test_answered_call_is_notified_once_and_signed() -> None:
    async with world(**HOOKS) as it:
        kept = await it.new_deferred()
        await it.pass_s(30)
        ((url, headers, content),) = it.hook.got
        assert url == "https://hooks.example.com/a?k=1"
        assert headers["x-llm-guard-signature"] == signature(
            "s3cret", content, int(headers["x-llm-guard-signature"][2:12])
        )
        assert (headers["x-llm-guard-delivery"], headers["x-team"]) == (f"{kept.id}-answered", "a")
        (said,) = it.hook.bodies
        assert (said["status"], said["http_status"], said["error"], said["attempts"]) == ("answered", 200, None, 1)
        assert (said["id"], said["request_id"], said["url"]) == (kept.id, "lg-1", f"/v1/llm-guard/calls/{kept.id}")
        assert b"good" not in content
        assert it.now(kept).told == "answered"
        assert it.deferred.counts.webhook_requests == {("team", "delivered"): 1}


async def test_failed_call_is_notified_with_its_reason() -> None:
    async with world(**HOOKS) as it:
        it.provider.outcomes = [WRONG]
        await it.new_deferred()
        await let_run()
        (said,) = it.hook.bodies
        assert (said["status"], said["error"]) == ("failed", {"kind": "invalid_request", "detail": "answered 400"})


async def test_webhook_that_fails_is_tried_again_until_it_takes_it() -> None:
    async with world(**HOOKS) as it:
        it.hook.sent = REFUSED
        kept = await it.new_deferred()
        await it.pass_s(60)
        assert 3 <= len(it.hook.got) <= 6
        it.hook.sent = WebhookResult(True)
        await it.pass_s(60)
        assert it.now(kept).told == "answered"
        assert len({content for _, _, content in it.hook.got}) == 1


async def test_webhook_that_fails_is_not_called_for_each_waiting_call() -> None:
    async with world(**HOOKS) as it:
        it.provider.is_silent = True
        for _ in range(5):
            await it.new_deferred()
        it.hook.sent = REFUSED
        it.provider.is_silent = False
        await it.pass_s(1.5)
        assert len(it.hook.got) == 1


async def test_pending_notification_is_sent_by_the_next_process() -> None:
    store = InMemoryCallStore()
    async with world(store, **HOOKS) as first:
        first.hook.sent = REFUSED
        kept = await first.new_deferred()
        await let_run()
    async with world(store, **HOOKS) as it:
        await it.pass_s(1)
        assert [said["id"] for said in it.hook.bodies] == [kept.id]


async def test_webhook_that_fails_holds_up_no_other() -> None:
    async with world(**HOOKS) as it:
        it.hook.sent = REFUSED
        await it.new_deferred()
        await let_run()
        it.hook.sent = WebhookResult(True)
        second = await it.new_deferred()
        it.store._put(it.store.rows[second.id], webhook="other")
        await it.pass_s(0.5)
        assert [url for url, _, _ in it.hook.got][1:] == ["https://other.example.com/"]


async def test_many_that_one_webhook_does_not_take_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_guard.deferred.completion_webhooks._MOST", 3)
    async with world(**HOOKS) as it:
        it.hook.sent = REFUSED
        for _ in range(4):
            await it.new_deferred()
        await let_run()
        it.hook.sent = WebhookResult(True)
        last = await it.new_deferred()
        it.store._put(it.store.rows[last.id], webhook="other")
        await it.pass_s(0.5)
        assert [url for url, _, _ in it.hook.got][1:] == ["https://other.example.com/"]


async def test_slow_webhook_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(**HOOKS) as it:
        told: list[str] = []

        async def post(url: str, *_: Any) -> WebhookResult:
            await it.clock.sleep(9.0 if "hooks" in url else 0.0)
            told.append(url)
            return WebhookResult(True)

        monkeypatch.setattr(it.hook, "post", post)
        for _ in range(3):
            await it.new_deferred()
        await it.pass_s(1)
        last = await it.new_deferred()
        it.store._put(it.store.rows[last.id], webhook="other")
        await it.pass_s(0.5)
        assert told == ["https://other.example.com/"]
        await it.pass_s(30)
        assert len(told) == 4


async def test_call_that_is_answered_after_all_is_notified_again() -> None:
    async with world(outcomes=[WRONG, WRONG, OK], **HOOKS) as it:
        kept = await it.new_deferred()
        for _ in range(2):
            await it.pass_s(6)
            assert it.now(kept).state == "dead"
            it.store.requeue(CallFilter(), it.clock.wall(), 0)
            it.deferred.runner.wake()
        await it.pass_s(6)
        assert [said["status"] for said in it.hook.bodies] == ["failed", "answered"]
        deliveries = [headers["x-llm-guard-delivery"] for _, headers, _ in it.hook.got]
        assert deliveries == [f"{kept.id}-failed", f"{kept.id}-answered"]


async def test_delivered_notification_is_not_repeated_while_the_disk_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(**HOOKS) as it:
        failures = iter(range(20))

        def told(kept_id: str, state: State) -> None:
            if next(failures, None) is not None:
                raise StoreError("the disk is full")
            InMemoryCallStore.mark_notified(it.store, kept_id, state)

        monkeypatch.setattr(it.store, "mark_notified", told)
        kept = await it.new_deferred()
        await it.pass_s(25)
        assert it.now(kept).told == "answered"
        assert len(it.hook.got) == 1


async def test_webhook_that_the_config_does_not_have_any_more_is_left_alone() -> None:
    async with world(**HOOKS) as it:
        it.hook.sent = REFUSED
        await it.new_deferred()
        await let_run()
        it.deferred.adopt(World(InMemoryCallStore()).config)
        await it.pass_s(600)
        assert len(it.hook.got) == 1


async def test_call_without_a_webhook_is_not_notified() -> None:
    async with world(store=HOOKS["store"]) as it:
        await it.new_deferred()
        await it.pass_s(20)
        assert it.hook.got == []


async def test_webhook_that_fails_is_tried_again_at_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(**HOOKS) as it:
        times: list[float] = []
        it.hook.sent = REFUSED
        post = it.hook.post

        async def timed(*request: Any) -> WebhookResult:
            times.append(it.clock.now() - 1000.0)
            return await post(*request)

        monkeypatch.setattr(it.hook, "post", timed)
        await it.new_deferred()
        await it.pass_s(100)
        assert times == [0, 5, 10, 20, 35, 60], "the first look after waits of 1.5, 3, 6, 12 and 24 s"


async def test_rejected_completion_is_tried_again_because_its_receiver_may_be_repaired() -> None:
    async with world(**HOOKS) as it:
        it.hook.sent = WebhookResult(False, problem="answered 404: check its url")
        kept = await it.new_deferred()
        await it.pass_s(3600)
        it.hook.sent = WebhookResult(True)
        await it.pass_s(300)
        assert it.now(kept).told == "answered"


async def test_call_that_is_deleted_after_a_failure_is_not_notified() -> None:
    async with world(**HOOKS) as it:
        it.hook.sent = REFUSED
        first = await it.new_deferred()
        await let_run()
        second = await it.new_deferred()
        await let_run()
        del it.store.rows[first.id]
        it.hook.sent = WebhookResult(True)
        await it.pass_s(10)
        assert [said["id"] for said in it.hook.bodies] == [first.id, second.id]


async def test_request_in_flight_over_a_reload_is_recorded_and_not_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(**HOOKS) as it:
        it.hook.sent = WebhookResult(True)
        post = it.hook.post

        async def slow(*request: Any) -> WebhookResult:
            await it.clock.sleep(9.0)
            return await post(*request)

        monkeypatch.setattr(it.hook, "post", slow)
        kept = await it.new_deferred()
        await it.pass_s(1)
        it.deferred.adopt(World(InMemoryCallStore()).config)
        await it.pass_s(1)
        it.deferred.adopt(it.config)
        await it.pass_s(30)
        assert it.now(kept).told == "answered"
        assert len(it.hook.got) == 1


async def test_store_that_cannot_be_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(**HOOKS) as it:
        read, failures = it.store.unnotified, iter(range(3))

        def unnotified(webhook: str, limit: int) -> Any:
            if next(failures, None) is not None:
                raise StoreError("the disk hangs")
            return read(webhook, limit)

        monkeypatch.setattr(it.store, "unnotified", unnotified)
        kept = await it.new_deferred()
        await it.pass_s(16)
        assert it.now(kept).told == "answered"
