"""Sends completion webhooks when deferred calls end.

Each is sent until it is delivered, over restarts too, and a webhook that fails delays no other.
`resilience.degradation.deferred` decides which webhook a call has.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import structlog

from llm_guard.clock import Clock
from llm_guard.config import CompletionWebhook, Config
from llm_guard.deferred.counters import DeferredCounters
from llm_guard.deferred.store_client import AsyncCallStore
from llm_guard.proxy.http_server.error_responses import KEPT_CALLS
from llm_guard.resilience.retry.backoff import RetrySettings, delay_s
from llm_guard.storage.calls.store import CallStore, StoredCall, StoreError
from llm_guard.version import __version__
from llm_guard.webhooks.signature import SIGNATURE_HEADER, signature

_log = structlog.get_logger("llm_guard.deferred.completion_webhooks")

_EVERY_S = 5.0
_MOST = 1000
"""Completions read from the store at once."""
_RETRY = RetrySettings(base_delay=2.0, max_delay=300.0, jitter="equal", immediate_first=False)


class SendResult(Protocol):
    """Result of one webhook request."""

    @property
    def is_delivered(self) -> bool: ...
    @property
    def problem(self) -> str: ...
    @property
    def retry_after_s(self) -> float | None: ...


SendCompletion = Callable[[str, Mapping[str, str], bytes, float], Awaitable[SendResult]]
"""Sends one request: URL, headers, body, and the time in seconds since the epoch. Never raises."""


class CompletionError(msgspec.Struct, frozen=True):
    kind: str
    detail: str


class Completion(msgspec.Struct, frozen=True):
    """Webhook payload of a finished call. Instants in seconds since the epoch."""

    id: str
    request_id: str
    status: str
    """answered | failed"""
    url: str
    """Path below the gateway's address at which the owner fetches the response."""
    model: str | None
    http_status: int | None
    received_at: float
    ended_at: float | None
    attempts: int
    error: CompletionError | None
    version: int = 1


@dataclass(slots=True)
class _Rest:
    """Backoff state of a webhook that has failed."""

    failures: int = 0
    until: float = 0.0


class CompletionNotifier:
    """Life cycle: `await run()` until it is cancelled."""

    def __init__(
        self,
        config: Config,
        call_store: AsyncCallStore,
        post: SendCompletion,
        counts: DeferredCounters,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`draw` returns a uniform random number in [0, 1)."""
        self._call_store = call_store
        self._post = post
        self._counts = counts
        self._clock = clock
        self._draw = draw
        self._backoff_state: dict[str, _Rest] = defaultdict(_Rest)
        self._has_news = asyncio.Event()
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the webhooks of a new config. Those that failed before are retried at once."""
        self._webhooks = {webhook.name: webhook for webhook in config.store.webhooks}
        self._backoff_state.clear()
        self._has_news.set()

    def wake(self) -> None:
        """Sends pending webhooks now, because a call has ended."""
        self._has_news.set()

    async def run(self) -> None:
        """Runs one task for each webhook, so that a slow one delays no other."""
        telling: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._has_news.clear()
                for name, webhook in self._webhooks.items():
                    is_busy = name in telling and not telling[name].done()
                    if not is_busy and self._backoff_state[name].until <= self._clock.now():
                        telling[name] = asyncio.get_running_loop().create_task(self._tell(webhook), name=f"tell {name}")
                alarm = self._clock.call_at(self._clock.now() + _EVERY_S, self._has_news.set)
                await self._has_news.wait()
                alarm.cancel()
        finally:
            for task in telling.values():
                task.cancel()
            await asyncio.gather(*telling.values(), return_exceptions=True)

    async def _tell(self, webhook: CompletionWebhook) -> None:
        """Sends all pending completions of one webhook in order, until one is not delivered."""
        try:
            waiting = await self._call_store.do(lambda store: store.unnotified(webhook.name, _MOST))
            for place, kept in enumerate(waiting):
                if not await self._has_taken(webhook, kept, len(waiting) - place):
                    return
        except StoreError as error:
            _log.warning(
                "completion webhooks cannot be sent: the store of calls fails", webhook=webhook.name, error=str(error)
            )
            return
        if waiting:
            self._has_news.set()  # more may be pending than one read returns

    async def _has_taken(self, webhook: CompletionWebhook, kept: StoredCall, waiting: int) -> bool:
        """Sends one completion, and returns whether it was delivered. Raises StoreError."""
        rest = self._backoff_state[webhook.name]
        wall = self._clock.wall()
        said = completion(kept)
        content = msgspec.json.encode(said)
        sent = await self._post(webhook.url, _headers(webhook, said, content, wall), content, wall)
        self._counts.webhook_requests[webhook.name, "delivered" if sent.is_delivered else "failed"] += 1
        if not sent.is_delivered:
            rest.failures += 1
            rest.until = self._clock.now() + self._wait_s(rest.failures, sent.retry_after_s)
            if rest.failures == 1:
                _log.warning("webhook delivery failed", webhook=webhook.name, error=sent.problem, pending=waiting)
            return False
        rest.failures = 0
        await self._call_store.run_with_retries(partial(_note_told, kept))
        return True

    def _wait_s(self, failures: int, asked_s: float | None) -> float:
        return delay_s(
            _RETRY, retry=failures, kind=None, retry_after_s=asked_s, previous_s=None, u=self._draw()
        )  # fmt: skip


def completion(kept: StoredCall) -> Completion:
    """Builds the payload of a finished call. Excludes the response: the webhook's receiver may not be the caller."""
    is_answered = kept.state == "answered"
    failed = kept.ended if not is_answered else None
    status = kept.answer.status if kept.answer is not None else failed.status if failed is not None else None
    return Completion(
        kept.id,
        kept.request_id,
        "answered" if is_answered else "failed",
        KEPT_CALLS + kept.id,
        kept.request.model,
        status,
        round(kept.received_at, 3),
        kept.answered_at if is_answered else kept.last_failed_at,
        kept.attempts,
        None if failed is None else CompletionError(failed.kind, failed.detail),
    )


def _note_told(kept: StoredCall, store: CallStore) -> None:
    store.mark_notified(kept.id, kept.state)


def _headers(webhook: CompletionWebhook, said: Completion, content: bytes, wall: float) -> dict[str, str]:
    headers = {
        **webhook.headers,
        "content-type": "application/json",
        "user-agent": f"llm-guard/{__version__}",
        "x-llm-guard-delivery": f"{said.id}-{said.status}",
    }
    if webhook.secret is not None:
        headers[SIGNATURE_HEADER] = signature(webhook.secret, content, int(wall))
    return headers
