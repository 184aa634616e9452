"""The delivery engine, with the policies of its users and others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from llm_guard.clock import SystemClock
from llm_guard.config import WebhookTarget
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.webhooks.client import WebhookResult
from llm_guard.webhooks.delivery import DeliveryPolicy, WebhookDelivery
from llm_guard.webhooks.request import WebhookRequest
from tests.fakes.clock import SteppedClock, let_run

TARGET = WebhookTarget(url="https://hooks.example.com/", name="team")
DELIVERED = WebhookResult(True)
BUSY = WebhookResult(False, may_retry=True, problem="answered 503")
REJECTED = WebhookResult(False, problem="answered 404")
RETRY = RetrySettings(base_delay=1.0, max_delay=60.0, jitter=0.0)
PATIENT = DeliveryPolicy(RETRY)
"""Gives nothing up, and retries on time."""


class Deliveries:
    """Pending deliveries in a list, and the receiver that they are sent to."""

    def __init__(self, *names: str) -> None:
        self.clock = SteppedClock(now=0.0)
        self.pending = [*names]
        self.answers: list[WebhookResult | Exception] = [DELIVERED]
        self.sent: list[tuple[float, str]] = []
        self.settled: list[tuple[str, bool]] = []
        self.noted: list[WebhookResult] = []
        self.unrecorded = 0
        """So many deliveries cannot be recorded."""
        self.is_receiving = asyncio.Event()
        self.is_receiving.set()

    @property
    def is_drained(self) -> bool:
        return not self.pending

    async def next(self) -> WebhookRequest | None:
        return WebhookRequest(TARGET, TARGET.url, b"{}", self.pending[0], self.clock.wall()) if self.pending else None

    def note(self, result: WebhookResult) -> None:
        self.noted.append(result)

    async def settle(self, is_delivered: bool) -> bool:
        if self.unrecorded > 0:
            self.unrecorded -= 1
            return False
        self.settled.append((self.pending.pop(0), is_delivered))
        return True

    def log_fields(self, will_retry: bool) -> dict[str, object]:
        return {"pending": len(self.pending), "will_retry": will_retry}

    async def post(self, _url: str, headers: Mapping[str, str], _content: bytes, _wall: float) -> WebhookResult:
        self.sent.append((self.clock.now(), headers["x-llm-guard-delivery"]))
        await self.is_receiving.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def times(self) -> list[float]:
        return [at for at, _ in self.sent]


class Counting(Deliveries):
    """Nothing is pending; counts how often that is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    async def next(self) -> WebhookRequest | None:
        self.looks += 1
        return await super().next()


@asynccontextmanager
async def sending(it: Deliveries, policy: DeliveryPolicy = PATIENT) -> AsyncIterator[WebhookDelivery]:
    delivery = WebhookDelivery("team", it, policy, it.post, it.clock, lambda: 0.5)
    delivery.start()
    await let_run()
    try:
        yield delivery
    finally:
        await delivery.stop(0.0)


async def test_pending_deliveries_are_sent_in_order_and_settled() -> None:
    it = Deliveries("a", "b")
    async with sending(it) as delivery:
        assert it.settled == [("a", True), ("b", True)]
        it.pending.append("c")
        await it.clock.pass_s(3600)
        assert len(it.sent) == 2, "nothing announced it"
        delivery.wake()
        await let_run()
    assert it.settled[2:] == [("c", True)]
    assert it.noted == [DELIVERED] * 3


async def test_delivery_with_nothing_to_send_waits() -> None:
    """The real clock goes on between two readings: a timer for the present would end the wait at once, again and
    again."""
    it = Counting()
    delivery = WebhookDelivery("team", it, PATIENT, it.post, SystemClock(), lambda: 0.5)
    delivery.start()
    for _ in range(500):
        await asyncio.sleep(0)
    await delivery.stop(0.0)
    assert it.looks == 1


async def test_one_request_at_a_time_is_in_flight() -> None:
    it = Deliveries("a", "b")
    it.is_receiving.clear()
    async with sending(it) as delivery:
        for _ in range(3):
            delivery.wake()
            await let_run()
        assert len(it.sent) == 1
        it.is_receiving.set()
        await let_run()
        assert [name for _, name in it.sent] == ["a", "b"]


async def test_retries_follow_the_backoff_which_a_wake_does_not_shorten() -> None:
    it = Deliveries("a", "b")
    it.answers = [BUSY, BUSY, BUSY, DELIVERED, BUSY, DELIVERED]
    async with sending(it) as delivery:
        for _ in range(80):
            delivery.wake()
            await it.clock.pass_s(0.25)
    assert it.sent == [(0, "a"), (1, "a"), (3, "a"), (7, "a"), (7, "b"), (8, "b")], "each begins with the first wait"


async def test_requested_wait_is_a_floor() -> None:
    it = Deliveries("a")
    it.answers = [WebhookResult(False, True, "answered 429", 100.0), DELIVERED]
    async with sending(it):
        await it.clock.pass_s(99)
        assert it.times() == [0]
        await it.clock.pass_s(10)
    assert it.times() == [0, 105], "and a tenth of it is jitter"


async def test_retry_waits_for_the_next_look_if_the_policy_looks() -> None:
    it = Deliveries("a")
    it.answers = [BUSY, BUSY, BUSY, BUSY, DELIVERED]
    async with sending(it, DeliveryPolicy(RETRY, look_every_s=5.0)):
        await it.clock.pass_s(60)
        assert it.times() == [0, 5, 10, 15, 25], "waits of 1, 2, 4 and 8 s"
        it.pending.append("b")
        await it.clock.pass_s(5)
    assert it.settled == [("a", True), ("b", True)], "no wake announced b"


async def test_end_of_backoff_sends_at_once_and_starts_the_backoff_again() -> None:
    it = Deliveries("a")
    it.answers = [BUSY]
    async with sending(it) as delivery:
        await it.clock.pass_s(20)
        assert it.times() == [0, 1, 3, 7, 15]
        delivery.end_backoff()
        await it.clock.pass_s(4)
    assert it.times()[5:] == [20, 21, 23]


async def test_delivery_is_given_up_when_its_time_is_over() -> None:
    it = Deliveries("a", "b")
    it.answers = [BUSY]
    with capture_logs() as lines:
        async with sending(it, DeliveryPolicy(RETRY, give_up_after_s=10.0)):
            await it.clock.pass_s(7)
            assert it.settled == [("a", False)], "its next attempt would be at 15 s"
            assert it.sent[-2:] == [(7, "a"), (7, "b")]
            await it.clock.pass_s(8)
    assert it.settled == [("a", False), ("b", False)]
    assert [line["will_retry"] for line in lines] == [True, False, True, False]
    assert all(line["event"] == "webhook delivery failed" for line in lines)


@pytest.mark.parametrize(
    ("give_up_after_s", "sent", "is_delivered"),
    [(10.0, [(0, "a"), (0, "b")], False), (None, [(0, "a"), (1, "a"), (1, "b")], True)],
)
async def test_rejected_delivery_is_given_up_only_if_the_policy_gives_up(
    give_up_after_s: float | None, sent: list[tuple[float, str]], is_delivered: bool
) -> None:
    it = Deliveries("a", "b")
    it.answers = [REJECTED, DELIVERED]
    async with sending(it, DeliveryPolicy(RETRY, give_up_after_s)):
        await it.clock.pass_s(1)
    assert it.sent == sent
    assert it.settled == [("a", is_delivered), ("b", True)]


async def test_first_failure_of_each_delivery_is_logged_and_no_other() -> None:
    it = Deliveries("a", "b")
    it.answers = [BUSY, BUSY, BUSY, DELIVERED, BUSY, DELIVERED]
    with capture_logs() as lines:
        async with sending(it):
            await it.clock.pass_s(20)
    assert [(line["webhook"], line["error"], line["pending"]) for line in lines] == [
        ("team", "answered 503", 2), ("team", "answered 503", 1)
    ]  # fmt: skip


async def test_rate_is_enforced_and_a_single_send_counts_towards_it() -> None:
    it = Deliveries(*"abcdefg")
    async with sending(it, DeliveryPolicy(RETRY, rate=0.1)) as delivery:
        assert it.times() == [0] * 5, "a burst"
        await delivery.send(WebhookRequest(TARGET, TARGET.url, b"{}", "test", 0.0))
        assert len(it.sent) == 6, "without a wait"
        await it.clock.pass_s(60)
    assert it.sent[5:] == [(0, "test"), (20, "f"), (30, "g")]


async def test_delivery_that_cannot_be_recorded_waits_for_the_next_look() -> None:
    it = Deliveries("a")
    it.unrecorded = 1
    async with sending(it, DeliveryPolicy(RETRY, look_every_s=5.0)):
        await it.clock.pass_s(4)
        assert it.times() == [0]
        await it.clock.pass_s(1)
    assert it.times() == [0, 5]
    assert it.settled == [("a", True)]


@pytest.mark.parametrize(
    ("give_up_after_s", "sent"), [(10.0, [(0, "a"), (0, "b")]), (None, [(0, "a"), (1, "a"), (1, "b")])]
)
async def test_bug_is_logged_and_later_deliveries_are_sent(
    give_up_after_s: float | None, sent: list[tuple[float, str]]
) -> None:
    it = Deliveries("a", "b")
    it.answers = [ValueError("a bug"), DELIVERED]
    with capture_logs() as lines:
        async with sending(it, DeliveryPolicy(RETRY, give_up_after_s)):
            await it.clock.pass_s(2)
    assert it.sent == sent
    assert [line["event"] for line in lines] == ["unexpected error in a webhook"]


async def test_stop_sends_what_is_pending_within_its_grace() -> None:
    it = Deliveries("a", "b", "c")
    delivery = WebhookDelivery("team", it, PATIENT, it.post, it.clock, lambda: 0.5)
    delivery.start()
    await delivery.stop(1.0)
    assert it.settled == [("a", True), ("b", True), ("c", True)]


@pytest.mark.parametrize("grace_s", [0.0, 0.01])
async def test_stop_cancels_a_request_in_flight_after_its_grace(grace_s: float) -> None:
    it = Deliveries("a", "b")
    it.is_receiving.clear()
    async with sending(it) as delivery:
        await delivery.stop(grace_s)
        it.is_receiving.set()
        await let_run()
    assert (len(it.sent), it.settled, it.pending) == (1, [], ["a", "b"])


async def test_stop_does_not_wait_for_the_rate_limit_if_nothing_is_pending() -> None:
    it = Deliveries(*"abcde")
    async with sending(it, DeliveryPolicy(RETRY, rate=0.01)) as delivery:
        async with asyncio.timeout(1.0):
            await delivery.stop(30.0)


async def test_one_that_was_never_started_can_be_stopped() -> None:
    it = Deliveries("a")
    await WebhookDelivery("team", it, PATIENT, it.post, it.clock, lambda: 0.5).stop(1.0)
    assert it.sent == []
