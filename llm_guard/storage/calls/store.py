"""Types and protocol of the store of deferred calls and dead letters.

The stores are `storage.calls.sqlite_store` and `storage.calls.redis_store`; the calls are processed in `deferred`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from llm_guard.dialects import DialectName
from llm_guard.storage.errors import StoreError as StoreError  # noqa: PLC0414  # part of this contract

Purpose = Literal["dead_letter", "deferred"]
State = Literal["dead", "queued", "running", "answered"]
"""dead      all attempts failed; kept until it is requeued, deleted or too old
queued    to be sent at `due_at`
running   being sent by a gateway, which must extend its lease in time
answered  finished; the response is kept for a while
"""


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request, without its credentials."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    """Headers that are forwarded to a provider; none that may contain a credential, a cookie or an account."""
    body: bytes | None
    """The body, with its content encoding removed; None: not stored."""
    dialect: DialectName
    model: str | None
    route: str
    """Name of the route when the call was received."""
    upstream_name: str | None = None
    is_stream: bool = False
    is_repeatable: bool = True
    """True if it may be sent again although it may have been executed."""
    needs_credentials: bool = False
    """True if its caller's credentials are sent with it. They are in the memory of the gateway that received it."""
    priority: int = 1


class CallFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The last failure of a call."""

    kind: str
    """Label of the failure kind, or code of the gateway's refusal."""
    detail: str
    status: int | None = None
    """Status that the client got."""
    attempts: int = 0
    """Number of exchanges with providers."""
    body: bytes | None = None
    """The provider's error body, if bodies are stored."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A complete response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A deferred call or dead letter. Times are in seconds since the epoch."""

    id: str
    """128 random bits, so that it cannot be guessed."""
    request_id: str
    """Request ID of the original call."""
    purpose: Purpose
    state: State
    owner: str
    """Identifies the caller; not a credential."""
    client: str | None
    """Name of the client key, if the caller has one."""
    request: StoredRequest
    received_at: float
    first_failed_at: float | None = None
    last_failed_at: float | None = None
    attempts: int = 0
    """Number of exchanges with providers, in all."""
    rounds: int = 0
    """How often processing was started."""
    due_at: float | None = None
    deadline_at: float | None = None
    ended: CallFailure | None = None
    answer: StoredResponse | None = None
    answered_at: float | None = None
    webhook: str | None = None
    """Name of the webhook that is notified at the end; None: none."""
    told: State | None = None
    """The state that the webhook was last notified of. A dead call may be requeued and then end in another state."""
    is_readable: bool = True
    """False: its bodies were encrypted with a key that this gateway does not have, and are missing here."""


INTERRUPTED = CallFailure(
    kind="interrupted",
    detail="the gateway ended during the call; the call may have been executed, and is not retried automatically",
)
OVERDUE = CallFailure(kind="deadline", detail="its deadline has passed, and no store.encryption_key fits its request")

HOME_S = 10.0
"""Seconds after which a gateway that has not used the store is taken for dead, and its callers' credentials for
lost."""


class CallFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter; None matches any value."""

    purpose: Purpose | None = None
    state: State | None = None
    route: str | None = None
    kind: str | None = None
    since: float | None = None
    """Received at this time or later."""
    until: float | None = None
    ids: Collection[str] | None = None


class CallStats(msgspec.Struct, frozen=True, kw_only=True):
    """Number and size of stored calls."""

    count: dict[str, int]
    """Number of calls by `purpose/state`."""
    size: int
    """Size of all calls in bytes."""
    oldest_at: float | None = None


class CallGroup(msgspec.Struct, frozen=True):
    """Stored calls of one route that failed for one reason."""

    route: str
    kind: str | None
    """Kind of the last failure; None: none of them has failed."""
    purpose: Purpose
    state: State
    count: int
    oldest_at: float
    newest_at: float
    """When the first and the last of them were received."""


class CallStore(Protocol):
    """A store of calls. Blocking; used by one thread. Changes are on the disk when a method returns. All methods raise
    StoreError.

    Several gateways may share one store: a call that one of them runs is not started by another while its lease lasts.
    """

    def add(self, *calls: StoredCall) -> None:
        """Adds calls that are dead, or queued with a `due_at`: all or none. Their ids must be new."""

    def get(self, call_id: str) -> StoredCall | None: ...

    def find(self, wanted: CallFilter, limit: int, before: str | None) -> list[StoredCall]:
        """Returns calls without bodies, newest first. `before`: only calls older than the one with this id; none if it
        is gone."""

    def stats(self) -> CallStats: ...

    def groups(self, limit: int) -> list[CallGroup]:
        """Counts all calls by route, kind of failure, purpose and state; the largest groups first."""

    def begin(self, now: float, limit: int, lease_s: float, purpose: Purpose | None = None) -> list[StoredCall]:
        """Marks queued calls that are due as `running` here, longest due first, and returns them with bodies. Skips
        calls encrypted with a key that this gateway does not have, and calls that need credentials which another
        gateway has, while that one lives: it must call this method or `recover` within HOME_S seconds."""

    def extend(self, ids: Sequence[str], now: float, lease_s: float) -> list[str]:
        """Extends the leases of calls that run here; returns the ids of those that do not."""

    def reschedule(self, times: Mapping[str, tuple[float, float]]) -> None:
        """Corrects due times and deadlines after the wall clock was set. `times`: due time and deadline by id, of calls
        that are queued or running."""

    def put_back(self, call_id: str, ended: CallFailure | None, now: float, due_at: float) -> bool:
        """Queues a running call again. False: it no longer runs here (its lease ended, or it was deleted)."""

    def answer(self, call_id: str, answer: StoredResponse, attempts: int, now: float) -> bool:
        """Stores the response of a running call and deletes its request. False: it no longer runs here, and nothing is
        stored."""

    def dead_letter(self, call_id: str, ended: CallFailure, now: float) -> bool:
        """Marks a running call as dead: it has failed for good. False: it no longer runs here."""

    def requeue(self, wanted: CallFilter, now: float, pace_s: float) -> list[str]:
        """Queues dead calls that have their request, `pace_s` apart and without a deadline; returns their ids. Of two
        simultaneous calls of this method, only one gets each call."""

    def delete(self, wanted: CallFilter, *, running: bool = False) -> int:
        """Deletes calls and returns their number; running ones only with `running`: the gateway that runs them learns
        it from `extend`, and its result is not stored. Deletes a limited number at once; call it again for the rest."""

    def mark_notified(self, call_id: str, state: State) -> None:
        """Records that the call's webhook was notified of this state."""

    def unnotified(self, webhook: str, limit: int) -> list[StoredCall]:
        """Returns finished or dead calls that this webhook was not notified of, oldest first, without bodies."""

    def recover(self, now: float) -> int:
        """Takes over running calls after their lease or their process has ended: repeatable ones are queued, the others
        are dead. Returns their number."""

    def sweep(self, now: float, answered_for_s: float, max_age_s: float, max_bytes: int) -> int:
        """Deletes calls that are too old, then the oldest dead ones until the rest of them fits; returns the number.
        Marks calls that this gateway has no key for as dead after their deadline. Deletes a limited number at once; the
        next sweep goes on."""

    def close(self) -> None: ...


def as_text(part: StoredRequest | CallFailure | StoredResponse | None) -> str | None:
    """The part as JSON, without its body."""
    if part is None:
        return None
    bare = msgspec.structs.replace(part, body=b"" if isinstance(part, StoredResponse) else None)
    return msgspec.json.encode(bare).decode()


def stored_at(call: StoredCall) -> float:
    """Returns about when a new call is stored: when it failed, or else is due."""
    return call.last_failed_at or call.due_at or call.received_at
