"""The interface to the store of deferred calls and dead letters.

`deferred` implements it; `storage.calls.sqlite_store` stores the calls.
"""

from __future__ import annotations

from typing import Protocol

from llm_guard.outcome import Refusal
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.response_writer import ResponseWriter


class DeferredStore(Protocol):
    """Stores calls beyond the connections of their clients. No method raises when the disk is slow, full or gone, and
    none takes longer than a few seconds."""

    async def defer(self, call: Call, *, is_at_once: bool) -> str | Refusal:
        """Stores a deferred call. Returns its id, under which it is on the disk by then, or why it was not accepted.
        `is_at_once`: no deployment was tried; else `call.failure` or `call.refusal` says how the call has failed. The
        id is set in `call.disposition`, for headers, log line and counters."""

    async def dead_letter(self, call: Call) -> str | None:
        """Stores a failed call (`call.failure` or `call.refusal`) as a dead letter. Returns its id, under which it is
        on the disk by then; None: it could not be stored, which is counted. The id is set in `call.disposition`,
        too."""

    async def serve_status_api(self, call: Call, reply: ResponseWriter) -> None:
        """Answers a client's request below `/v1/llm-guard/` for one of its deferred calls."""
