"""Webhook of alerts: queues its notices in memory, and keeps its statistics.

Losses are counted and logged. `offer` never blocks. `webhooks.delivery` sends, `webhooks.payloads` has the bodies.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import Literal

import structlog
from msgspec import Struct

from llm_guard.clock import Clock, iso
from llm_guard.config import WebhookConfig, WebhookFormat
from llm_guard.resilience.alerts.alert import Severity, rank
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.webhooks.client import WebhookResult
from llm_guard.webhooks.delivery import DeliveryPolicy, SendWebhook, WebhookDelivery
from llm_guard.webhooks.payloads import MOST, Notice, body, url
from llm_guard.webhooks.request import WebhookRequest

_log = structlog.get_logger("llm_guard.webhooks.alert_webhook")

MOST_WAITING = 500
GIVE_UP_S = 1800.0
"""Seconds for which one request is retried; later notices wait behind it."""
_RETRY = RetrySettings(base_delay=1.0, max_delay=60.0)


class WebhookView(Struct, frozen=True):
    """State of a webhook. Its URL is not shown: Slack's is a secret."""

    name: str
    format: WebhookFormat
    min_severity: Severity
    state: Literal["idle", "delivering", "failing"]
    """idle: nothing is pending, and the last request was delivered or there was none."""
    waiting: int
    """Notices not delivered yet."""
    delivered: int
    """Notices delivered since the start."""
    failed: int
    """Notices given up since the start: rejected, or undelivered for half an hour."""
    dropped: int
    """Oldest notices dropped since the start, because too many were pending."""
    last_delivered: str | None
    last_problem: str | None
    last_problem_at: str | None


class Webhook:
    """One webhook of alerts. Life cycle: `start()`, then `offer` at any time; `await stop()`."""

    def __init__(
        self, config: WebhookConfig, post: SendWebhook, source: str, clock: Clock, draw: Callable[[], float]
    ) -> None:
        """`source`: the name of this machine, or of its fleet. `draw` returns a uniform random number in [0, 1)."""
        self.config = config
        self._source = source
        self._clock = clock
        policy = DeliveryPolicy(_RETRY, give_up_after_s=GIVE_UP_S, rate=config.rate)
        self._delivery = WebhookDelivery(config.name, self, policy, post, clock, draw)
        self._waiting: deque[Notice] = deque()
        self._sending: list[Notice] = []
        self._delivery_id = ""
        """Of the notices in `_sending`."""
        self._is_failing = False
        self._delivered = self._failed = self._dropped = 0
        self._last_delivered_at: float | None = None
        self._problem: tuple[str, float] | None = None

    def start(self) -> None:
        self._delivery.start()

    def offer(self, notice: Notice) -> None:
        """Queues a notice, if the webhook's settings accept it."""
        if rank(notice.severity) > rank(self.config.min_severity):
            return
        if notice.state == "resolved" and not self.config.send_resolved:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._dropped += 1
            if self._dropped == 1 or self._dropped % MOST_WAITING == 0:
                _log.error(
                    "alerts dropped: too many are queued for a webhook", webhook=self.config.name, count=self._dropped
                )
        self._waiting.append(notice)
        self._delivery.wake()

    def remind(self, notice: Notice) -> None:
        """Repeats the notice of an alert that still fires, if the format requires that."""
        if self.config.format == "alertmanager" and not any(queued.id == notice.id for queued in self._waiting):
            self.offer(notice)

    async def send_at_once(self, notice: Notice) -> WebhookResult:
        """Sends a test notice once, before all queued ones and regardless of the webhook's filters."""
        return await self._delivery.send(self._request([notice], secrets.token_hex(8)))

    async def stop(self, grace_s: float) -> None:
        """Sends what is queued for up to `grace_s` seconds, and logs the rest."""
        await self._delivery.stop(grace_s)
        if left := self.undelivered():
            names = sorted({f"{notice.alert} {notice.state}" for notice in left})
            _log.warning("alerts not delivered", webhook=self.config.name, count=len(left), alerts=names)

    def undelivered(self) -> list[Notice]:
        return [*self._sending, *self._waiting]

    def view(self) -> WebhookView:
        waiting = len(self._waiting) + len(self._sending)
        problem, problem_at = self._problem or (None, None)
        return WebhookView(
            self.config.name,
            self.config.format,
            self.config.min_severity,
            "failing" if self._is_failing else "delivering" if waiting else "idle",
            waiting,
            self._delivered,
            self._failed,
            self._dropped,
            None if self._last_delivered_at is None else iso(self._last_delivered_at),
            problem,
            None if problem_at is None else iso(problem_at),
        )

    # Below here: `webhooks.delivery.PendingDeliveries`.

    @property
    def is_drained(self) -> bool:
        return not self._waiting and not self._sending

    async def next(self) -> WebhookRequest | None:
        """Builds the request about the notices in delivery, or else about the oldest ones that wait."""
        if not self._sending:
            if not self._waiting:
                return None
            count = min(MOST[self.config.format], len(self._waiting))
            self._sending = [self._waiting.popleft() for _ in range(count)]
            self._delivery_id = secrets.token_hex(8)
        return self._request(self._sending, self._delivery_id)

    def note(self, result: WebhookResult) -> None:
        self._is_failing = not result.is_delivered
        if result.is_delivered:
            self._last_delivered_at = self._clock.wall()
        else:
            self._problem = (result.problem, self._clock.wall())

    async def settle(self, is_delivered: bool) -> bool:
        if is_delivered:
            self._delivered += len(self._sending)
        else:
            self._failed += len(self._sending)
        self._sending = []
        return True

    def log_fields(self, will_retry: bool) -> dict[str, object]:
        return {"alerts": len(self._sending), "will_retry": will_retry}

    def _request(self, notices: list[Notice], delivery_id: str) -> WebhookRequest:
        wall = self._clock.wall()
        content = body(self.config, notices, self._source, wall)
        return WebhookRequest(self.config, url(self.config), content, delivery_id, wall)
