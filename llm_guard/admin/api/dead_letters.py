"""/admin/dead-letters: dead letters and deferred calls; list, requeue, delete.

`deferred` executes the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused, answer
from llm_guard.admin.schemas.dead_letters import (
    DeadLetterDetail,
    DeadLetterGroup,
    DeadLetterView,
    dead_letter_detail,
    dead_letter_group,
    dead_letter_view,
)
from llm_guard.admin.schemas.subsystems import StoredCallsView
from llm_guard.clock import Clock, iso
from llm_guard.config import Config
from llm_guard.deferred.service import DeferredService
from llm_guard.storage.calls.store import CallFilter, CallStats, CallStore, Purpose, State, StoreError

_STORE_TIMEOUT_S = 5.0
_ROOT = "/admin/dead-letters"
_MOST_IDS = 10_000
_MOST_GROUPS = 200

Id = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
Name = Annotated[str, Meta(min_length=1, max_length=600)]
Instant = Annotated[float, Meta(ge=0, le=1e11, description="Seconds since the epoch.")]


class DeadLetterQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Filter of stored calls."""

    purpose: Purpose | None = None
    """letter: failed calls. later: deferred calls. Both, if it is left out."""
    state: State | None = None
    route: Name | None = None
    kind: Name | None = None
    """Kind of its last failure."""
    since: Instant | None = None
    """Received at this time or later."""
    until: Instant | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    before: Id | UnsetType = UNSET
    """Only calls older than the one with this id."""


class BodyQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Selects whether request and response bodies are included; they may contain prompts."""

    body: bool = False


class Filter(Struct, forbid_unknown_fields=True, frozen=True):
    """Filter; all given fields must match."""

    between_fields: ClassVar[Mapping[str, object]] = {"minProperties": 1}

    purpose: Purpose | UnsetType = UNSET
    route: Name | UnsetType = UNSET
    kind: Name | UnsetType = UNSET
    since: Instant | UnsetType = UNSET
    until: Instant | UnsetType = UNSET


class SelectDeadLetters(Change):
    """The calls to change."""

    between_fields: ClassVar[Mapping[str, object]] = {"minProperties": 2, "maxProperties": 2}
    """`reason`, and one of the three."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=_MOST_IDS)] | UnsetType = UNSET
    filter: Filter | UnsetType = UNSET
    all: Literal[True] | UnsetType = UNSET


class DeadLettersView(Struct, frozen=True):
    """Response of `GET /admin/dead-letters`."""

    calls: list[DeadLetterView]
    """The stored calls, newest first."""
    count: dict[str, int]
    """Number of all stored calls, by purpose and state: `dead_letter/dead`, ..."""
    bytes: int
    oldest: str | None


class SelectionResult(Struct, frozen=True):
    """Result of a change."""

    count: int
    ids: list[str]
    """Ids of the calls, at most a hundred."""
    last_due: str | None = None
    """Earliest time at which the last of them starts."""


_Found = TypeVar("_Found")


class DeadLetterApi(EndpointGroup):
    """Endpoints of stored calls, under the current config; a reload replaces it."""

    def __init__(self, config: Config, deferred: DeferredService, changes: Changes, clock: Clock) -> None:
        self._deferred = deferred
        self._changes = changes
        self._clock = clock
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config."""
        self._pace_s = 1 / config.store.dead_letters.requeue_rate
        rules = (config.defaults, *config.models.values())
        self._keeps_by_itself = any(
            rule.dead_letter == "always" or rule.deferred.mode in ("always", "on_failure") for rule in rules
        )

    def pages(self) -> list[Endpoint]:
        gives = Changed[SelectionResult]
        return [
            Endpoint(
                "GET", _ROOT, "Lists stored calls, newest first.", self._list, query=DeadLetterQuery,
                gives=DeadLettersView, may_miss=True,
            ),
            Endpoint(
                "GET", f"{_ROOT}/stats", "Counts stored calls by route and kind of failure, the largest groups first.",
                self._stats, gives=list[DeadLetterGroup],
            ),
            Endpoint(
                "GET", f"{_ROOT}/{{id}}", "Returns a stored call.", self._one,
                query=BodyQuery, gives=DeadLetterDetail,
            ),
            Endpoint(
                "POST", f"{_ROOT}/requeue", "Executes dead letters again, at a limited rate.", self._requeue,
                takes=SelectDeadLetters, gives=gives,
            ),
            Endpoint(
                "POST", f"{_ROOT}/delete", "Deletes stored calls, except running ones.", self._delete,
                takes=SelectDeadLetters, gives=gives,
            ),
            Endpoint(
                "DELETE", f"{_ROOT}/{{id}}", "Deletes a stored call.", self._delete_one, takes=Change, gives=gives,
            ),
        ]  # fmt: skip

    def view_if_used(self) -> StoredCallsView | None:
        """Returns the counts; None if no call is stored, and no model stores calls without a request header."""
        counts = self._deferred.counts
        found = counts.found or CallStats(count={}, size=0)
        lost = dict[str, int](counts.lost.items())
        if not (self._keeps_by_itself or found.count or lost):
            return None
        oldest = None if found.oldest_at is None else iso(found.oldest_at)
        return StoredCallsView(dict(found.count), found.size, oldest, lost)

    async def _list(self, asked: AdminRequest) -> AdminResponse:
        wants: DeadLetterQuery = asked.wants
        wanted = CallFilter(
            purpose=wants.purpose, state=wants.state, route=wants.route, kind=wants.kind, since=wants.since,
            until=wants.until,
        )  # fmt: skip
        before = None if wants.before is UNSET else wants.before
        found, stats = await self._ask(lambda store: (store.find(wanted, wants.limit, before), store.stats()))
        if before is not None and not found and await self._ask(lambda store: store.get(before)) is None:
            raise _unknown()
        oldest = None if stats.oldest_at is None else iso(stats.oldest_at)
        return answer(DeadLettersView([dead_letter_view(call) for call in found], stats.count, stats.size, oldest))

    async def _stats(self, _asked: AdminRequest) -> AdminResponse:
        groups = await self._ask(lambda store: store.groups(_MOST_GROUPS))
        return answer([dead_letter_group(group) for group in groups])

    async def _one(self, asked: AdminRequest) -> AdminResponse:
        kept = await self._ask(lambda store: store.get(asked.params["id"]))
        if kept is None:
            raise _unknown()
        return answer(dead_letter_detail(kept, shows_bodies=asked.wants.body))

    async def _requeue(self, asked: AdminRequest) -> AdminResponse:
        wanted, target = _chosen(asked.body, "dead")

        async def do() -> ChangeResult:
            now, pace_s = self._clock.wall(), self._pace_s
            ids = await self._ask(lambda store: store.requeue(wanted, now, pace_s))
            self._deferred.runner.wake()
            warnings = (
                []
                if ids
                else ["none of these can be requeued: GET /admin/dead-letters?state=dead lists those that can"]
            )
            last_due = iso(now + pace_s * (len(ids) - 1)) if ids else None
            return ChangeResult(
                SelectionResult(len(ids), ids[:100], last_due), {"count": len(ids), "ids": ids[:100]}, warnings
            )

        return await self._changes.make(asked, "dead-letters.requeue", target, do)

    async def _delete(self, asked: AdminRequest) -> AdminResponse:
        return await self._delete_those(asked, *_chosen(asked.body, None))

    async def _delete_one(self, asked: AdminRequest) -> AdminResponse:
        kept_id = asked.params["id"]
        if await self._ask(lambda store: store.get(kept_id)) is None:
            raise _unknown()
        return await self._delete_those(asked, CallFilter(ids=(kept_id,)), kept_id)

    async def _delete_those(self, asked: AdminRequest, wanted: CallFilter, target: str) -> AdminResponse:
        # Excludes calls that are stored while this request runs.
        until = min(self._clock.wall(), wanted.until if wanted.until is not None else math.inf)
        doomed = replace(wanted, until=until) if wanted.ids is None else wanted

        async def do() -> ChangeResult:
            count = 0
            while some := await self._ask(lambda store: store.delete(doomed)):
                count += some
            warnings = [] if count else ["none was deleted: none matches, or those that match are being executed"]
            return ChangeResult(SelectionResult(count, []), {"count": count}, warnings)

        return await self._changes.make(asked, "dead-letters.delete", target, do)

    async def _ask(self, act: Callable[[CallStore], _Found]) -> _Found:
        """Runs `act` on the store. Raises Refused if the store fails."""
        try:
            return await self._deferred.call_store.ask(act, _STORE_TIMEOUT_S)
        except StoreError as error:
            raise Refused(503, "call_store_unavailable", f"{error}; the gateway still serves calls") from None


def _chosen(body: SelectDeadLetters, state: State | None) -> tuple[CallFilter, str]:
    """Returns the filter of the chosen calls, and their description for the audit trail. Raises Refused."""
    if sum(choice is not UNSET for choice in (body.ids, body.filter, body.all)) != 1:
        raise Refused(422, "invalid_body", "send exactly one of `ids`, `filter` and `all`: true")
    if body.ids is not UNSET:
        return CallFilter(state=state, ids=tuple(body.ids)), body.ids[0] if len(
            body.ids
        ) == 1 else f"{len(body.ids)} ids"
    chosen = Filter() if body.filter is UNSET else body.filter
    terms = {name: getattr(chosen, name) for name in chosen.__struct_fields__ if getattr(chosen, name) is not UNSET}
    if body.filter is not UNSET and not terms:
        raise Refused(422, "invalid_body", "`filter` is empty: to choose all stored calls, send `all`: true")
    said = ", ".join(f"{name}: {value}" for name, value in terms.items())
    return CallFilter(state=state, **terms), said or "all"


def _unknown() -> Refused:
    return Refused(404, "unknown_call", "no stored call has this id: GET /admin/dead-letters lists them")
