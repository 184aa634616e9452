"""Calls that are kept: dead letters, and those that are answered later.

Owns the nouns, and what a store of them must do. Does not own a store (`store.kept_calls` in SQLite), nor who works
through them (`errands`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from llm_guard.dialect import DialectName
from llm_guard.store.errors import StoreError as StoreError  # noqa: PLC0414  # part of this contract

Purpose = Literal["letter", "later"]
State = Literal["dead", "queued", "running", "answered"]
"""dead      nobody could answer it; it stays until somebody asks again, deletes it, or it is too old
queued    it is to be asked, at `due_at`
running   a gateway is asking; the lease says until when it may be silent
answered  over; the answer is kept for a while
"""


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client has asked for, without its credentials."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    """Those that travel to a provider; none in which a credential, a cookie or an account may stand."""
    body: bytes | None
    """As it came, decoded; None: it is not kept."""
    dialect: DialectName
    model: str | None
    route: str
    """Its alias when it was received."""
    upstream_name: str | None = None
    is_stream: bool = False
    is_repeatable: bool = True
    """It may be asked again though it may have been executed."""
    priority: int = 1


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How asking for it has failed, the last time."""

    kind: str
    """The failure kind's label, or the code of a refusal."""
    detail: str
    status: int | None = None
    """What its client was told."""
    attempts: int = 0
    """Exchanges with providers."""
    body: bytes | None = None
    """The provider's own words, where the bodies are kept."""


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class KeptCall(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. Instants in seconds since the epoch."""

    id: str
    """Not to be guessed: 128 random bits."""
    request_id: str
    """Of the call that it was."""
    purpose: Purpose
    state: State
    owner: str
    """Whose it is: tells callers apart, and is no credential."""
    client: str | None
    """The name of the client's key, if it has one."""
    request: StoredRequest
    received_at: float
    first_failed_at: float | None = None
    last_failed_at: float | None = None
    attempts: int = 0
    """Exchanges with providers, in all."""
    rounds: int = 0
    """How often it was begun."""
    due_at: float | None = None
    deadline_at: float | None = None
    ended: Ended | None = None
    answer: StoredAnswer | None = None
    answered_at: float | None = None
    webhook: str | None = None
    """Who is told when it is over, as the config calls him; None: nobody."""
    told: State | None = None
    """As what he has been told of it; one that was dead may be asked again, and then there is something new to tell."""
    is_readable: bool = True
    """False: its bodies were sealed with a key that this gateway does not have, and are missing here."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which of them; None: any."""

    purpose: Purpose | None = None
    state: State | None = None
    route: str | None = None
    kind: str | None = None
    since: float | None = None
    """Received at this instant or later."""
    until: float | None = None
    ids: Collection[str] | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are, and how large."""

    count: dict[str, int]
    """By `purpose/state`."""
    size: int
    """In bytes, of all."""
    oldest_at: float | None = None


class KeptCalls(Protocol):
    """Blocks; of one thread. What has returned is on the disk. Every method raises StoreError.

    Several gateways may share one: what one of them has begun, no other begins while the lease lasts.
    """

    def add(self, *calls: KeptCall) -> None:
        """Those that are dead, or queued with a `due_at`: all, or none. Their ids are new."""

    def get(self, call_id: str) -> KeptCall | None: ...

    def find(self, wanted: Wanted, limit: int, before: str | None) -> list[KeptCall]:
        """The newest first, without bodies; `before`: older than the one with this id, and none if that is gone."""

    def stats(self) -> Found: ...

    def begin(self, now: float, limit: int, lease_s: float, purpose: Purpose | None = None) -> list[KeptCall]:
        """Takes what is queued and due, the longest due first, with bodies: it is `running` from now on, here. What is
        sealed with a key that is not known here is left for who knows it."""

    def extend(self, ids: Sequence[str], now: float, lease_s: float) -> list[str]:
        """Those that run here go on; the ids of those that do not."""

    def reschedule(self, times: Mapping[str, tuple[float, float]]) -> None:
        """By id, when a queued call is due, and when one that is queued or runs expires: the wall clock was set."""

    def put_back(self, call_id: str, ended: Ended | None, now: float, due_at: float) -> bool:
        """It is queued again. False: it does not run here any more (its lease ended, or it was deleted)."""

    def answer(self, call_id: str, answer: StoredAnswer, attempts: int, now: float) -> bool:
        """It is over, and what it asked for is not kept any longer. False: as above, and the answer is not kept."""

    def bury(self, call_id: str, ended: Ended, now: float) -> bool:
        """It is dead: it has failed for good."""

    def requeue(self, wanted: Wanted, now: float, pace_s: float) -> list[str]:
        """Those that are dead and whose request is kept are queued, `pace_s` apart, without a deadline; their ids. Of
        two who ask at once, one gets each."""

    def delete(self, wanted: Wanted) -> int:
        """How many; those that run stay. Where there are many not all at once: the next call goes on."""

    def told(self, call_id: str, state: State) -> None:
        """Its webhook was told that it is that."""

    def untold(self, webhook: str, limit: int) -> list[KeptCall]:
        """Over or dead, which this webhook was not told; the oldest first, without bodies."""

    def recover(self, now: float) -> int:
        """Of those whose lease or whose process has ended: repeatable ones are queued, the rest is dead; how many."""

    def sweep(self, now: float, answered_for_s: float, max_age_s: float, max_bytes: int) -> int:
        """Deletes what is too old, then the oldest dead ones until the rest of them fits; how many. What nobody here
        has the key to is dead when its deadline has passed. Where there are many not all at once: the next time goes
        on."""

    def close(self) -> None: ...
