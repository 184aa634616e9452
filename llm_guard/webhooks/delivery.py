"""Delivery to one webhook: queue, retries and statistics.

Losses are counted and logged. `offer` never blocks; a task of its own sends. `webhooks.payloads` has the bodies,
`webhooks.client` the HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import structlog
from msgspec import Struct

from llm_guard.clock import Clock, iso
from llm_guard.config import WebhookConfig, WebhookFormat
from llm_guard.resilience.alerts.alert import Severity, rank
from llm_guard.resilience.retry.backoff import RetrySettings, delay_s
from llm_guard.webhooks.client import WebhookResult
from llm_guard.webhooks.payloads import MOST, Notice, body, headers, url
from llm_guard.webhooks.rate_limit import SendRate

_log = structlog.get_logger("llm_guard.webhooks.delivery")

MOST_WAITING = 500
GIVE_UP_S = 1800.0
"""Seconds for which one request is retried; later notices wait behind it."""
_RETRY = RetrySettings(base_delay=1.0, max_delay=60.0)

SendWebhook = Callable[[str, Mapping[str, str], bytes, float], Awaitable[WebhookResult]]
"""Sends one request: URL, headers, body, and the time in seconds since the epoch."""


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
    """Life cycle: `start()`, then `offer` at any time; `await stop()`."""

    def __init__(
        self, config: WebhookConfig, post: SendWebhook, source: str, clock: Clock, draw: Callable[[], float]
    ) -> None:
        """`source`: this machine's name. `draw` returns a uniform random number in [0, 1)."""
        self.config = config
        self._post = post
        self._source = source
        self._clock = clock
        self._draw = draw
        self._rate = SendRate(config.rate)
        self._waiting: deque[Notice] = deque()
        self._sending: list[Notice] = []
        self._has_work = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._delivered = self._failed = self._dropped = 0
        self._last_delivered_at: float | None = None
        self._problem: tuple[str, float] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"webhook {self.config.name}")

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
        self._has_work.set()

    def remind(self, notice: Notice) -> None:
        """Repeats the notice of an alert that still fires, if the format requires that."""
        if self.config.format == "alertmanager" and not any(queued.id == notice.id for queued in self._waiting):
            self.offer(notice)

    async def send_at_once(self, notice: Notice) -> WebhookResult:
        """Sends a test notice once, before all queued ones and regardless of the webhook's filters."""
        self._rate.take(self._clock.now())
        sent = await self._send([notice], secrets.token_hex(8))
        self._note(sent)
        return sent

    async def stop(self, grace_s: float) -> None:
        """Sends what is queued for up to `grace_s` seconds, and logs the rest."""
        self._is_closing = True
        self._has_work.set()
        if self._task is None:
            return
        await asyncio.wait((self._task,), timeout=grace_s)
        self._task.cancel()
        await asyncio.wait((self._task,))
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

    async def _run(self) -> None:
        while self._waiting or not self._is_closing:
            if not self._waiting:
                self._has_work.clear()
                await self._has_work.wait()
                continue
            if (wait_s := self._rate.wait_s(self._clock.now())) > 0:
                await self._clock.sleep(wait_s)
            count = min(MOST[self.config.format], len(self._waiting))
            self._sending = [self._waiting.popleft() for _ in range(count)]
            try:
                await self._deliver(self._sending)
            except Exception:  # noqa: BLE001  # a bug must not silence all later alerts
                self._failed += len(self._sending)
                _log.exception("unexpected error in a webhook", webhook=self.config.name)
            self._sending = []

    async def _deliver(self, notices: list[Notice]) -> None:
        """Retries until the notices are delivered or rejected, or half an hour has passed."""
        delivery, give_up_at, retry = secrets.token_hex(8), self._clock.now() + GIVE_UP_S, 0
        while True:
            self._rate.take(self._clock.now())
            sent = await self._send(notices, delivery)
            if sent.is_delivered:
                self._delivered += len(notices)
                self._note(sent)
                return
            retry += 1
            wait_s = delay_s(
                _RETRY, retry=retry, kind=None, retry_after_s=sent.retry_after_s, previous_s=None, u=self._draw()
            )
            is_over = not sent.may_retry or self._clock.now() + wait_s > give_up_at
            if retry == 1 or is_over:
                _log.warning(
                    "webhook delivery failed",
                    webhook=self.config.name,
                    error=sent.problem,
                    alerts=len(notices),
                    will_retry=not is_over,
                )
            self._note(sent)
            if is_over:
                self._failed += len(notices)
                return
            await self._clock.sleep(max(wait_s, self._rate.wait_s(self._clock.now())))

    async def _send(self, notices: list[Notice], delivery: str) -> WebhookResult:
        wall = self._clock.wall()
        content = body(self.config, notices, self._source, wall)
        return await self._post(url(self.config), headers(self.config, content, delivery, wall), content, wall)

    def _note(self, sent: WebhookResult) -> None:
        self._is_failing = not sent.is_delivered
        if sent.is_delivered:
            self._last_delivered_at = self._clock.wall()
        else:
            self._problem = (sent.problem, self._clock.wall())
