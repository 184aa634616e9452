from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from llm_guard.config import WebhookConfig
from llm_guard.webhooks.alert_webhook import GIVE_UP_S, MOST_WAITING, Webhook
from llm_guard.webhooks.client import WebhookClient, WebhookResult
from llm_guard.webhooks.payloads import Notice
from llm_guard.webhooks.queue import Webhooks
from tests.fakes.clock import SteppedClock, let_run

DELIVERED = WebhookResult(True)
BUSY = WebhookResult(False, may_retry=True, problem="answered 503")
REFUSED = WebhookResult(False, problem="answered 404: check its url")


def config(**facts: Any) -> WebhookConfig:
    return WebhookConfig.model_validate({"url": "https://hooks.example.com/x", "rate": "1000/s", **facts})


def notice(number: int = 1, state: Any = "firing", severity: Any = "critical") -> Notice:
    return Notice(f"{number}", state, "success_rate", severity, f"model {number}", "it fails", 0.5, 0.95, 1.0, 2.0)


class Receiver:
    """Gives the scripted answers, then repeats the last one; records what it received."""

    def __init__(self, *answers: WebhookResult) -> None:
        self.answers = [*answers] or [DELIVERED]
        self.bodies: list[Any] = []
        self.headers: list[Mapping[str, str]] = []
        self.at: list[float] = []
        self.hang = asyncio.Event()
        self.hang.set()
        self.clock = SteppedClock()

    async def post(self, _url: str, headers: Mapping[str, str], content: bytes, _wall: float) -> WebhookResult:
        self.bodies.append(json.loads(content))
        self.headers.append(headers)
        self.at.append(self.clock.now())
        await self.hang.wait()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def ids(self) -> list[list[str]]:
        return [[each["id"] for each in body["alerts"]] for body in self.bodies]


@asynccontextmanager
async def webhook(receiver: Receiver, **facts: Any) -> AsyncIterator[Webhook]:
    one = Webhook(config(**facts), receiver.post, "host-1", receiver.clock, lambda: 0.5)
    one.start()
    try:
        yield one
    finally:
        await one.stop(0.0)


async def test_notice_is_sent_at_once() -> None:
    receiver = Receiver()
    async with webhook(receiver) as one:
        one.offer(notice())
        await let_run()
        assert receiver.ids() == [["1"]]
        view = one.view()
    assert (view.state, view.waiting, view.delivered, view.failed, view.dropped) == ("idle", 0, 1, 0, 0)
    assert view.last_delivered is not None
    assert view.last_problem is None


async def test_simultaneous_notices_are_sent_together() -> None:
    receiver = Receiver()
    async with webhook(receiver) as one:
        for number in range(120):
            one.offer(notice(number))
        await let_run(100)
    assert [len(ids) for ids in receiver.ids()] == [50, 50, 20]
    assert [each for ids in receiver.ids() for each in ids] == [f"{number}" for number in range(120)]


async def test_busy_webhook_is_retried_with_backoff_under_the_same_delivery() -> None:
    receiver = Receiver(BUSY, BUSY, BUSY, DELIVERED)
    async with webhook(receiver) as one:
        one.offer(notice())
        await receiver.clock.pass_s(0)
        assert one.view().state == "failing"
        assert one.view().waiting == 1
        await receiver.clock.pass_s(60)
        assert one.view().state == "idle"
    gaps = [later - earlier for earlier, later in zip(receiver.at, receiver.at[1:], strict=False)]
    assert gaps == [pytest.approx(1), pytest.approx(2), pytest.approx(4)]
    assert len({header["x-llm-guard-delivery"] for header in receiver.headers}) == 1
    assert one.view().delivered == 1


async def test_requested_wait_is_obeyed() -> None:
    receiver = Receiver(WebhookResult(False, True, "answered 429", 120.0), DELIVERED)
    async with webhook(receiver) as one:
        one.offer(notice())
        await receiver.clock.pass_s(119)
        assert len(receiver.bodies) == 1
        await receiver.clock.pass_s(20)
        assert len(receiver.bodies) == 2


async def test_refusal_is_final_and_counted_and_the_next_is_sent() -> None:
    receiver = Receiver(REFUSED, DELIVERED)
    with capture_logs() as lines:
        async with webhook(receiver) as one:
            one.offer(notice(1))
            await let_run()
            one.offer(notice(2))
            await let_run()
            view = one.view()
    assert receiver.ids() == [["1"], ["2"]]
    assert (view.delivered, view.failed, view.last_problem) == (1, 1, "answered 404: check its url")
    assert [(line["event"], line["will_retry"]) for line in lines] == [("webhook delivery failed", False)]


async def test_notice_that_fails_for_half_an_hour_is_given_up_and_the_next_is_tried() -> None:
    receiver = Receiver(BUSY)
    with capture_logs() as lines:
        async with webhook(receiver) as one:
            one.offer(notice(1))
            await receiver.clock.pass_s(1)
            one.offer(notice(2))
            await receiver.clock.pass_s(GIVE_UP_S)
            assert one.view().failed == 1
            assert receiver.ids()[-1] == ["2"]
    assert 30 < len(receiver.at) < 60, "once a minute, after the first few"
    told = [line["will_retry"] for line in lines if line["event"] == "webhook delivery failed"]
    assert told == [True, False, True], "not one line for each attempt"


async def test_notices_during_an_outage_wait_in_order_and_the_oldest_is_dropped_and_counted() -> None:
    receiver = Receiver(BUSY)
    with capture_logs() as lines:
        async with webhook(receiver) as one:
            one.offer(notice(0))
            await let_run()
            for number in range(1, MOST_WAITING + 11):
                one.offer(notice(number))
            view = one.view()
            receiver.answers = [DELIVERED]
            await receiver.clock.pass_s(60)
    assert (view.waiting, view.dropped) == (MOST_WAITING + 1, 10)
    sent = [each for ids in receiver.ids()[1:] for each in ids]
    assert sent == ["0", *(f"{number}" for number in range(11, MOST_WAITING + 11))]
    assert any(line["event"].startswith("alerts dropped") for line in lines)


async def test_rate_is_enforced_and_the_excess_is_batched() -> None:
    receiver = Receiver()
    async with webhook(receiver, rate="30/m") as one:
        for number in range(5):
            one.offer(notice(number))
            await receiver.clock.pass_s(0)
        for number in range(5, 12):
            one.offer(notice(number))
            await receiver.clock.pass_s(0)
        assert len(receiver.bodies) == 5
        await receiver.clock.pass_s(2)
    assert [len(ids) for ids in receiver.ids()] == [1, 1, 1, 1, 1, 7]
    assert one.view().dropped == 0


async def test_retries_stay_within_the_rate_as_well() -> None:
    receiver = Receiver(BUSY)
    async with webhook(receiver, rate="6/h") as one:
        one.offer(notice())
        await receiver.clock.pass_s(1500)
    assert len(receiver.at) <= 5 + 3


@pytest.mark.parametrize(
    ("facts", "heard"),
    [
        ({}, ["critical", "warning", "info", "resolved"]),
        ({"min_severity": "warning"}, ["critical", "warning", "resolved"]),
        ({"min_severity": "critical", "send_resolved": False}, ["critical"]),
    ],
)
async def test_webhook_gets_only_the_notices_that_it_wants(facts: dict[str, Any], heard: list[str]) -> None:
    receiver = Receiver()
    async with webhook(receiver, **facts) as one:
        for severity in ("critical", "warning", "info"):
            one.offer(notice(severity=severity))
        one.offer(notice(state="resolved"))
        await let_run()
    alerts = [each for body in receiver.bodies for each in body["alerts"]]
    assert [alert["state"] if alert["state"] == "resolved" else alert["severity"] for alert in alerts] == heard


async def test_alertmanager_alone_is_reminded_and_of_each_alert_once_at_a_time() -> None:
    generic, manager = Receiver(), Receiver(BUSY)
    async with webhook(generic) as one, webhook(manager, format="alertmanager") as other:
        for each in (one, other):
            each.offer(notice(1))
        await let_run()
        for _ in range(10):
            for each in (one, other):
                each.remind(notice(1))
                each.remind(notice(2))
        await let_run()
        assert one.view().delivered == 1
        assert other.view().waiting == 3, "the one that is tried, and one reminder of each"


async def test_pagerduty_gets_one_event_in_each_request() -> None:
    receiver = Receiver()
    async with webhook(receiver, format="pagerduty", routing_key="K") as one:
        one.offer(notice(1))
        one.offer(notice(1, "resolved"))
        await let_run()
    assert [body["event_action"] for body in receiver.bodies] == ["trigger", "resolve"]


async def test_bug_does_not_silence_later_alerts() -> None:
    receiver = Receiver()
    real, broken = receiver.post, [True]

    async def post(*request: Any) -> WebhookResult:
        if broken.pop() if broken else False:
            raise ValueError("a bug")
        return await real(*request)

    with capture_logs() as lines:
        one = Webhook(config(), post, "host-1", receiver.clock, lambda: 0.5)
        one.start()
        one.offer(notice(1))
        await let_run()
        one.offer(notice(2))
        await let_run()
        await one.stop(0.0)
    assert receiver.ids() == [["2"]]
    assert one.view().failed == 1
    assert [line["event"] for line in lines] == ["unexpected error in a webhook"]


async def test_test_notice_is_sent_once_before_all_others_and_regardless_of_filters() -> None:
    receiver = Receiver(BUSY)
    async with webhook(receiver, min_severity="critical") as one:
        one.offer(notice(1))
        await let_run()
        sent = await one.send_at_once(notice(2, severity="info"))
        assert sent == BUSY
    assert receiver.ids() == [["1"], ["2"]]
    assert one.view().last_problem == "answered 503"


async def test_pending_notices_are_sent_at_shutdown() -> None:
    receiver = Receiver()
    one = Webhook(config(), receiver.post, "host-1", receiver.clock, lambda: 0.5)
    one.start()
    for number in range(120):
        one.offer(notice(number))
    with capture_logs() as lines:
        await one.stop(1.0)
    assert sum(len(ids) for ids in receiver.ids()) == 120
    assert lines == []


async def test_unsendable_notices_are_logged_at_shutdown() -> None:
    receiver = Receiver()
    receiver.hang.clear()
    one = Webhook(config(), receiver.post, "host-1", receiver.clock, lambda: 0.5)
    one.start()
    one.offer(notice(1))
    await let_run()
    one.offer(notice(2, "resolved"))
    with capture_logs() as lines:
        await one.stop(0.01)
    (line,) = lines
    assert (line["event"], line["webhook"], line["count"]) == ("alerts not delivered", "hooks.example.com", 2)
    assert line["alerts"] == ["success_rate firing", "success_rate resolved"]


async def test_one_that_was_never_started_can_be_stopped() -> None:
    await Webhook(config(), Receiver().post, "host-1", SteppedClock(), lambda: 0.5).stop(1.0)


# several webhooks


def receivers(webhooks: Webhooks) -> dict[str, int]:
    return {view.name: view.delivered for view in webhooks.views()}


@pytest.fixture
async def webhooks(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Webhooks]:
    receiver = Receiver()
    monkeypatch.setattr(WebhookClient, "post", lambda _client, *request: receiver.post(*request))
    both = Webhooks([config(name="a"), config(name="b")], "host-1", receiver.clock)
    both.start()
    yield both
    await both.stop()


async def test_every_webhook_is_notified(webhooks: Webhooks) -> None:
    webhooks.tell(notice())
    await let_run()
    assert receivers(webhooks) == {"a": 1, "b": 1}


async def test_reload_preserves_unchanged_webhooks_and_replaces_the_others(webhooks: Webhooks) -> None:
    webhooks.tell(notice(1))
    await let_run()
    kept = webhooks.find("a")
    webhooks.adopt([config(name="a"), config(name="b", min_severity="warning"), config(name="c")], [])
    webhooks.tell(notice(2))
    await let_run()
    assert webhooks.find("a") is kept
    assert receivers(webhooks) == {"a": 2, "b": 1, "c": 1}
    webhooks.adopt([config(name="a"), config(name="b", min_severity="critical")], [notice(3)])
    await let_run()
    assert receivers(webhooks) == {"a": 2, "b": 1}, "who begins anew hears of what fires"
    webhooks.adopt([], [])
    assert webhooks.find("a") is None
    webhooks.tell(notice(3))
    await let_run()
    assert kept is not None
    assert kept.view().delivered == 2
    kept.offer(notice(4))
    await let_run()
    assert kept.view().waiting == 1, "it has stopped"
