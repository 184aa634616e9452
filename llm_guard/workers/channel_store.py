"""The store of the workers of one gateway, which is in their parent's memory, as a worker reaches it."""

from __future__ import annotations

from collections.abc import Mapping

from llm_guard.resilience.capacity.slot_sharing import SlotRequest
from llm_guard.storage.shared.exchange_store import (
    NO_SLOTS,
    Exchanged,
    Override,
    StoredOverrides,
    StoreUnavailable,
)
from llm_guard.workers.channel import Channel, ChannelClosed
from llm_guard.workers.messages import (
    ExchangeReply,
    ExchangeRequest,
    Message,
    OverridesReply,
    OverridesRequest,
    Withdraw,
)

_EXCHANGE_S = 0.3


class ChannelStore:
    """Implements `storage.shared.exchange_store.ExchangeStore`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def exchange(
        self, content: bytes, wanted: Mapping[str, float], slots: Mapping[str, SlotRequest] = NO_SLOTS
    ) -> Exchanged:
        reply = await self._ask(ExchangeRequest(content, dict(wanted), dict(slots)))
        if not isinstance(reply, ExchangeReply):
            raise StoreUnavailable(type(reply).__name__)
        return reply.found

    async def change_overrides(self, changed: Mapping[str, Override]) -> StoredOverrides:
        reply = await self._ask(OverridesRequest(dict(changed)))
        if not isinstance(reply, OverridesReply):
            raise StoreUnavailable(type(reply).__name__)
        return reply.found

    async def close(self) -> None:
        self._channel.tell(Withdraw())

    async def _ask(self, message: Message) -> Message:
        try:
            return await self._channel.ask(message, _EXCHANGE_S)
        except (ChannelClosed, TimeoutError) as error:
            raise StoreUnavailable(type(error).__name__) from None
