"""Sends completion webhooks when deferred calls end.

Pending completions are in the store of calls, so that they survive a restart; `webhooks.delivery` sends them.
`resilience.degradation.deferred` decides which webhook a call has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from llm_guard.clock import Clock
from llm_guard.config import CompletionWebhook, Config
from llm_guard.deferred.counters import DeferredCounters
from llm_guard.deferred.store_client import AsyncCallStore
from llm_guard.proxy.http_server.error_responses import KEPT_CALLS
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.storage.calls.store import CallStore, StoredCall, StoreError
from llm_guard.webhooks.client import WebhookResult
from llm_guard.webhooks.delivery import DeliveryPolicy, SendWebhook, WebhookDelivery
from llm_guard.webhooks.request import WebhookRequest

_log = structlog.get_logger("llm_guard.deferred.completion_webhooks")

_MOST = 1000
"""Completions read from the store at once."""
_POLICY = DeliveryPolicy(
    RetrySettings(base_delay=2.0, max_delay=300.0, jitter="equal", immediate_first=False),
    give_up_after_s=None,  # it is in the store until it is delivered or expires, also over a repair of the receiver
    rate=None,  # the pace of the calls bounds it
    look_every_s=5.0,  # calls may end in another process, or while the store fails
)


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


class CompletionNotifier:
    """All completion webhooks. Life cycle: `start()`, `adopt` at a reload, `await stop()`."""

    def __init__(
        self,
        config: Config,
        call_store: AsyncCallStore,
        post: SendWebhook,
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
        self._is_running = False
        self._webhooks: dict[str, CompletionWebhook] = {}
        self._deliveries: dict[str, WebhookDelivery] = {}
        """By the webhook's name. One that a reload removes stays, idle: it finishes what is in flight, and if the
        webhook returns, nothing is sent by two at once."""
        self.adopt(config)

    def start(self) -> None:
        """Starts sending. Completions that an earlier process left in the store are sent first."""
        self._is_running = True
        for delivery in self._deliveries.values():
            delivery.start()

    def adopt(self, config: Config) -> None:
        """Applies the webhooks of a new config. Those that failed before are retried at once."""
        self._webhooks = {webhook.name: webhook for webhook in config.store.webhooks}
        for delivery in self._deliveries.values():
            delivery.end_backoff()
        for name in self._webhooks.keys() - self._deliveries.keys():
            delivery = self._deliveries[name] = self._new(name)
            if self._is_running:
                delivery.start()

    def wake(self) -> None:
        """Sends pending webhooks now, because a call has ended."""
        for delivery in self._deliveries.values():
            delivery.wake()

    async def stop(self) -> None:
        """Cancels what is in flight: the next process sends it again."""
        await asyncio.gather(*(delivery.stop(0.0) for delivery in self._deliveries.values()))

    def _new(self, name: str) -> WebhookDelivery:
        find = partial(self._find, name)
        pending = StoredCompletions(name, find, self._call_store, self._counts, self._clock)
        return WebhookDelivery(name, pending, _POLICY, self._post, self._clock, self._draw)

    def _find(self, name: str) -> CompletionWebhook | None:
        return self._webhooks.get(name)


class StoredCompletions:
    """Pending completions of one webhook, in the store of calls: `webhooks.delivery.PendingDeliveries`."""

    is_drained = True
    """What is pending stays in the store."""

    def __init__(
        self,
        name: str,
        find: Callable[[], CompletionWebhook | None],
        call_store: AsyncCallStore,
        counts: DeferredCounters,
        clock: Clock,
    ) -> None:
        """`find` returns the webhook's present settings, None if the config has it no more."""
        self._name = name
        self._find = find
        self._call_store = call_store
        self._counts = counts
        self._clock = clock
        self._read: deque[StoredCall] = deque()
        self._is_unsettled = False
        """The first one was sent, and is not settled."""

    async def next(self) -> WebhookRequest | None:
        """Builds the request about the oldest pending completion."""
        webhook = self._find()
        if webhook is None:
            self._read.clear()
            return None
        if not self._read or self._is_unsettled:  # after a failure the call may be gone, or have another result
            await self._read_again()
        if not self._read:
            return None
        self._is_unsettled = True
        said = completion(self._read[0])
        delivery_id = f"{said.id}-{said.status}"
        return WebhookRequest(webhook, webhook.url, msgspec.json.encode(said), delivery_id, self._clock.wall())

    def note(self, result: WebhookResult) -> None:
        self._counts.webhook_requests[self._name, "delivered" if result.is_delivered else "failed"] += 1

    async def settle(self, is_delivered: bool) -> bool:  # noqa: ARG002  # the policy gives none up
        """Records a delivery in the store, so that it is not repeated."""
        self._is_unsettled = False
        try:
            await self._call_store.run_with_retries(partial(_mark_notified, self._read.popleft()))
        except StoreError as error:
            self._read.clear()
            self._log_failing_store(error)
            return False
        return True

    def log_fields(self, will_retry: bool) -> dict[str, object]:  # noqa: ARG002  # it always will
        return {"pending": len(self._read)}

    async def _read_again(self) -> None:
        self._read.clear()
        self._is_unsettled = False
        try:
            self._read.extend(await self._call_store.do(lambda store: store.unnotified(self._name, _MOST)))
        except StoreError as error:
            self._log_failing_store(error)

    def _log_failing_store(self, error: StoreError) -> None:
        _log.warning(
            "completion webhooks cannot be sent: the store of calls fails", webhook=self._name, error=str(error)
        )


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


def _mark_notified(kept: StoredCall, store: CallStore) -> None:
    store.mark_notified(kept.id, kept.state)
