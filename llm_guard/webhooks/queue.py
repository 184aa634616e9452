"""All webhooks of alerts, and their life cycle: start, reload, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from secrets import SystemRandom

from llm_guard.clock import Clock
from llm_guard.config import WebhookConfig
from llm_guard.webhooks.alert_webhook import Webhook, WebhookView
from llm_guard.webhooks.client import WebhookClient
from llm_guard.webhooks.payloads import Notice

_GRACE_S = 1.0
"""Seconds to send what is queued when the process stops, or a reload removes a webhook."""


class Webhooks:
    """Life cycle: `start()`, `adopt` at a reload, `await stop()`."""

    def __init__(self, configs: Iterable[WebhookConfig], source: str, clock: Clock) -> None:
        """`source`: the name of this machine, or of its fleet."""
        self._clock = clock
        self._client = WebhookClient()
        self._source = source
        self._draw: Callable[[], float] = SystemRandom().random
        self._webhooks = [self._new(config) for config in configs]
        self._leaving: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for webhook in self._webhooks:
            webhook.start()

    def adopt(self, configs: Iterable[WebhookConfig], firing: Iterable[Notice]) -> None:
        """Applies new settings. Unchanged webhooks keep their queue; all others start empty, and are sent what is
        `firing`."""
        firing = tuple(firing)
        before = {webhook.config.name: webhook for webhook in self._webhooks}
        self._webhooks = []
        for config in configs:
            webhook = before.get(config.name)
            if webhook is None or webhook.config != config:
                webhook = self._new(config)
                webhook.start()
                for notice in firing:
                    webhook.offer(notice)
            else:
                del before[config.name]
            self._webhooks.append(webhook)
        for webhook in before.values():
            leaving = asyncio.get_running_loop().create_task(webhook.stop(_GRACE_S))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def stop(self) -> None:
        """Stops all webhooks, within little more than a second."""
        stops = [webhook.stop(_GRACE_S) for webhook in self._webhooks]
        await asyncio.gather(*stops, *self._leaving)
        await self._client.close()

    def tell(self, notice: Notice) -> None:
        """Offers a notice to every webhook."""
        for webhook in self._webhooks:
            webhook.offer(notice)

    def remind(self, notice: Notice) -> None:
        """Repeats the notice of an alert that still fires."""
        for webhook in self._webhooks:
            webhook.remind(notice)

    def undelivered(self) -> set[str]:
        """Returns the ids of undelivered notices."""
        return {notice.id for webhook in self._webhooks for notice in webhook.undelivered()}

    @property
    def is_listening(self) -> bool:
        """True if there is a webhook."""
        return bool(self._webhooks)

    def find(self, name: str) -> Webhook | None:
        return next((webhook for webhook in self._webhooks if webhook.config.name == name), None)

    def views(self) -> list[WebhookView]:
        return [webhook.view() for webhook in self._webhooks]

    def _new(self, config: WebhookConfig) -> Webhook:
        return Webhook(config, self._client.post, self._source, self._clock, self._draw)
