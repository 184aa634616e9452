"""What keeps calls beyond their clients, as the way of a call sees it.

Owns this interface alone. Who keeps them is `errands`, where is `store.kept_calls`.
"""

from __future__ import annotations

from typing import Protocol

from llm_guard.call import Call
from llm_guard.gateway.reply import Reply
from llm_guard.outcome import Refusal


class Keeper(Protocol):
    """None of its methods raises for a disk that is slow, full or gone, and none takes longer than a few seconds."""

    async def promise(self, call: Call, *, is_at_once: bool) -> str | Refusal:
        """Keeps a call that is to be answered later; its id, under which it is on the disk when this returns, or why
        not. `is_at_once`: nobody was asked yet; else `call.failure` or `call.refusal` says how it has failed. The id is
        noted in `call.beyond`, for headers, log line and counters."""

    async def bury(self, call: Call) -> str | None:
        """Keeps a call that nobody could answer, as `call.failure` or `call.refusal` says; the letter's id, under which
        it is on the disk, or None: it could not be kept, which has been counted. Noted in `call.beyond`, too."""

    async def show(self, call: Call, reply: Reply) -> None:
        """Answers a client who asks below `/v1/llm-guard/` for a call that it was promised."""
