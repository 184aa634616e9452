"""Serves `/v1/llm-guard/calls/ID`, where a client polls a deferred call.

Returns 202 with the state while there is no response yet; then the response itself, with the provider's status, content
type and body, so that an SDK parses it as usual. A call that failed for good returns an error in its own dialect. Only
the call's owner sees it, all others get 404.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llm_guard.clock import Clock
from llm_guard.deferred.serialization import owner_of
from llm_guard.deferred.store_client import AsyncCallStore
from llm_guard.outcome import Disposition, Refusal
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.error_responses import KEPT_CALLS, refuse
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.storage.calls.store import CallFilter, StoredCall, StoreError

_LONGEST_POLL_S = 30.0
_UNKNOWN = Refusal(404, "unknown_call", "this API key has no deferred call with this id", by="route")
_UNKNOWN_PATH = Refusal(
    404,
    "unknown_path",
    f"unknown path: try GET or DELETE {KEPT_CALLS}ID, or GET /v1/llm-guard/status",
    by="route",
)
_UNREADABLE = Refusal(
    503, "store_unreadable", "the gateway's store cannot be read now: retry later", by="limit", retry_after_s=5.0,
    should_retry=True,
)  # fmt: skip


class LastFailure(msgspec.Struct, frozen=True):
    kind: str
    detail: str


class StateView(msgspec.Struct, frozen=True):
    """State of a call that has no response yet. Instants in seconds since the epoch."""

    id: str
    status: str
    """queued | running"""
    url: str
    model: str | None
    received_at: float
    attempts: int
    """Exchanges with providers so far."""
    next_try_at: float | None
    deadline_at: float | None
    last_failure: LastFailure | None
    object: str = "llm_guard.call"


class StatusApi:
    """Handles the requests of clients below `/v1/llm-guard/`."""

    def __init__(self, call_store: AsyncCallStore, clock: Clock, give_up: Callable[[str], None]) -> None:
        """`give_up` cancels the call if it runs in this process."""
        self._call_store = call_store
        self._clock = clock
        self._give_up = give_up

    async def serve(self, call: Call, reply: ResponseWriter) -> None:
        """Responds to one request."""
        call.disposition = Disposition(background_purpose="fetch")
        kept_id = call.path.removeprefix(KEPT_CALLS)
        if not call.path.startswith(KEPT_CALLS) or "/" in kept_id or call.method not in ("GET", "HEAD", "DELETE"):
            await refuse(call, _UNKNOWN_PATH, reply)
            return
        try:
            kept = await self._call_store.ask(lambda store: store.get(kept_id))
            if kept is None or kept.owner != owner_of(call):
                await refuse(call, _UNKNOWN, reply)
            elif call.method == "DELETE":
                await self._delete(call, kept, reply)
            else:
                await self._give(call, kept, reply)
        except StoreError:
            await refuse(call, _UNREADABLE, reply)

    async def _delete(self, call: Call, kept: StoredCall, reply: ResponseWriter) -> None:
        """Cancels the call and deletes its response. A gateway that runs it elsewhere ends it at its next renewal of
        leases."""
        self._give_up(kept.id)
        # Not left to the end of its task, which queues the call again first: another gateway might take it.
        await self._call_store.ask(lambda store: store.delete(CallFilter(ids=(kept.id,)), running=True))
        await _send(call, 200, {"id": kept.id, "object": "llm_guard.call", "deleted": True}, [], reply)

    async def _give(self, call: Call, kept: StoredCall, reply: ResponseWriter) -> None:
        if kept.state == "answered":
            await _pass_on(call, kept, reply)
        elif kept.state == "dead":
            call.dialect = kept.request.dialect
            await refuse(call, _failure(kept), reply)
        else:
            await _send(call, 202, state_of(kept), self._when(kept), reply)

    def _when(self, kept: StoredCall) -> list[tuple[str, str]]:
        """Returns a Retry-After header for the next poll."""
        in_s = (kept.due_at or 0.0) - self._clock.wall() if kept.state == "queued" else 0.0
        return header_rules.retry_after(min(max(in_s, 1.0), _LONGEST_POLL_S))


def state_of(kept: StoredCall) -> StateView:
    """Returns the state of a call that is still pending."""
    failed = kept.ended
    return StateView(
        kept.id,
        kept.state,
        KEPT_CALLS + kept.id,
        kept.request.model,
        round(kept.received_at, 3),
        kept.attempts,
        None if kept.due_at is None or kept.state != "queued" else round(kept.due_at, 3),
        None if kept.deadline_at is None else round(kept.deadline_at, 3),
        None if failed is None else LastFailure(failed.kind, failed.detail),
    )


def _failure(kept: StoredCall) -> Refusal:
    ended = kept.ended
    if ended is None:
        return Refusal(502, "failed", "the deferred call failed", by=None)
    status = ended.status if ended.status is not None and ended.status >= 400 else 502
    tried = f"{ended.detail} (attempts: {kept.attempts})"
    return Refusal(status, f"upstream_{ended.kind}", tried, by=None)


async def _pass_on(call: Call, kept: StoredCall, reply: ResponseWriter) -> None:
    answer = kept.answer
    if answer is None:
        message = "its response is stored encrypted, and this gateway does not have the key"
        await refuse(call, Refusal(503, "answer_unreadable", message, by=None), reply)
        return
    call.sent_status = answer.status
    said_by = ("x-llm-guard-deployment", header_rules.value_of(answer.headers, "x-llm-guard-deployment"))
    ours = [("x-llm-guard-request-id", call.id), ("x-llm-guard-attempts", str(kept.attempts)), said_by]
    headers = [*header_rules.to_client(answer.headers), *ours, ("x-llm-guard-state", kept.state)]
    await reply.send(answer.status, "", headers, answer.body)


async def _send(call: Call, status: int, body: object, headers: list[tuple[str, str]], reply: ResponseWriter) -> None:
    call.sent_status = status
    said = [("Content-Type", "application/json"), *headers, *header_rules.ours(call, None)]
    if isinstance(body, StateView):
        said.append(("x-llm-guard-state", body.status))
    await reply.send(status, "", said, msgspec.json.encode(body))
