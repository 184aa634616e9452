"""Delivery engine: sends what is pending for one webhook, in order and with retries.

Alerts (`webhooks.alert_webhook`) and completions (`deferred.completion_webhooks`) use it. They differ in where pending
deliveries are kept, in memory or in SQLite, and in their policy.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from llm_guard.clock import Clock
from llm_guard.resilience.retry.backoff import RetrySettings, delay_s
from llm_guard.webhooks.client import WebhookResult
from llm_guard.webhooks.rate_limit import SendRate
from llm_guard.webhooks.request import WebhookRequest

_log = structlog.get_logger("llm_guard.webhooks.delivery")

_TIMER_EARLY_S = 0.001
"""Timers of uvloop may fire up to a millisecond early."""
_BUG = WebhookResult(False, problem="unexpected error")

SendWebhook = Callable[[str, Mapping[str, str], bytes, float], Awaitable[WebhookResult]]
"""Sends one request: URL, headers, body, and the time in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """When deliveries of a webhook are sent, and sent again."""

    retry: RetrySettings
    """Backoff between the attempts of one delivery."""
    give_up_after_s: float | None = None
    """Seconds, > 0, for which a delivery is retried; one that the receiver rejects is given up at once. None: neither
    happens."""
    rate: float | None = None
    """Requests a second, > 0; None: no limit."""
    look_every_s: float | None = None
    """Seconds, > 0, after which pending deliveries are looked up without a `wake`. A retry waits for the next look.
    None: only `wake` announces deliveries, and a retry waits for its backoff alone."""


class PendingDeliveries(Protocol):
    """Pending deliveries of one webhook, in order. Implemented by the engine's users."""

    @property
    def is_drained(self) -> bool:
        """True if a stop loses no delivery."""

    async def next(self) -> WebhookRequest | None:
        """Builds the request of the first pending delivery; None if there is none, or they cannot be read. Called again
        for each attempt."""

    def note(self, result: WebhookResult) -> None:
        """Counts an attempt."""

    async def settle(self, is_delivered: bool) -> bool:
        """Removes the delivery of the last request: it was delivered, or given up. Returns False if that could not be
        recorded; the next attempt then waits for the next look."""

    def log_fields(self, will_retry: bool) -> Mapping[str, object]:
        """Returns the fields of the log line about a failed attempt, beside the webhook's name and the error."""


class WebhookDelivery:
    """Sends one request at a time, so that a webhook that is slow or fails delays no other.

    Life cycle: `start()`, then `wake()` when there is something to send; `await stop(grace_s)`.
    """

    def __init__(
        self,
        name: str,
        pending: PendingDeliveries,
        policy: DeliveryPolicy,
        post: SendWebhook,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`draw` returns a uniform random number in [0, 1)."""
        self._name = name
        self._pending = pending
        self._policy = policy
        self._post = post
        self._clock = clock
        self._draw = draw
        self._rate = None if policy.rate is None else SendRate(policy.rate)
        self._failures = 0
        """Failed attempts of the delivery in progress."""
        self._began_at = -math.inf
        """Instant of its first attempt."""
        self._rest_until = -math.inf
        self._has_news = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"webhook {self._name}")

    def wake(self) -> None:
        """Sends what is pending now, unless a backoff or the rate limit delays it."""
        self._has_news.set()

    def end_backoff(self) -> None:
        """Sends what is pending now, because the webhook's settings may have changed since it failed."""
        self._failures, self._rest_until = 0, -math.inf
        self._has_news.set()

    async def send(self, request: WebhookRequest) -> WebhookResult:
        """Sends a request once, without waiting for the rate limit; it counts towards it."""
        if self._rate is not None:
            self._rate.take(self._clock.now())
        result = await self._post(request.url, request.headers(), request.content, request.at)
        self._pending.note(result)
        return result

    async def stop(self, grace_s: float) -> None:
        """Sends what is pending for up to `grace_s` seconds, then cancels the request in flight."""
        if self._task is None:
            return
        self._is_closing = True
        if grace_s > 0:
            self._has_news.set()
            await asyncio.wait((self._task,), timeout=grace_s)
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while not (self._is_closing and self._pending.is_drained):
            self._has_news.clear()
            now = self._clock.now()
            is_early = now + _TIMER_EARLY_S < self._ready_at(now)
            if is_early or not await self._try_deliver():
                await self._wait()

    async def _try_deliver(self) -> bool:
        """Sends the next request. Returns False if the next attempt has to wait."""
        try:
            result = await self._attempt()
        except Exception:  # noqa: BLE001  # a bug must not end all later deliveries
            _log.exception("unexpected error in a webhook", webhook=self._name)
            result = _BUG
        if result is None:
            return False
        if result.is_delivered:
            return await self._settle(is_delivered=True)
        will_retry = self._try_schedule_retry(result)
        if result is not _BUG and (self._failures == 1 or not will_retry):
            fields = self._pending.log_fields(will_retry)
            _log.warning("webhook delivery failed", webhook=self._name, error=result.problem, **fields)
        return not will_retry and await self._settle(is_delivered=False)

    async def _attempt(self) -> WebhookResult | None:
        """Sends the next request; returns None if there is none."""
        request = await self._pending.next()
        if request is None:
            return None
        if self._failures == 0:
            self._began_at = self._clock.now()
        return await self.send(request)

    def _try_schedule_retry(self, result: WebhookResult) -> bool:
        """Sets the instant of the next attempt. Returns False if the delivery is to be given up."""
        self._failures += 1
        retry_at = self._clock.now() + delay_s(
            self._policy.retry, retry=self._failures, kind=None, retry_after_s=result.retry_after_s, previous_s=None,
            u=self._draw(),
        )  # fmt: skip
        give_up_s = self._policy.give_up_after_s
        if give_up_s is not None and (not result.may_retry or retry_at > self._began_at + give_up_s):
            return False
        self._rest_until = retry_at
        return True

    async def _settle(self, *, is_delivered: bool) -> bool:
        self._failures = 0
        return await self._pending.settle(is_delivered)

    def _ready_at(self, now: float) -> float:
        """Returns the instant from which the backoff and the rate limit allow an attempt; `now` at the earliest."""
        return max(self._rest_until, now + self._rate.wait_s(now) if self._rate is not None else now)

    async def _wait(self) -> None:
        """Waits for `wake`, or until the next attempt or look is due."""
        now, look_s = self._clock.now(), self._policy.look_every_s
        due_at = self._ready_at(now) if look_s is None else now + look_s
        alarm = self._clock.call_at(due_at, self._has_news.set) if due_at > now else None
        try:
            await self._has_news.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
