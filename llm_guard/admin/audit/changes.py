"""Carries out changes of operators: applies each, writes it to the audit trail, publishes an event. Serves
/admin/audit."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

import structlog
from msgspec import UNSET, Meta, Struct, UnsetType

from llm_guard.admin.audit.writer import AuditWriter, WriteResult
from llm_guard.admin.events.event_log import EventLog
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, Refused, answer
from llm_guard.clock import Clock, iso
from llm_guard.storage.audit_log import Entry

_log = structlog.get_logger("llm_guard.admin.audit.changes")

_Now = TypeVar("_Now")


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """Result of a change."""

    now: object
    """New state, for the response."""
    detail: Mapping[str, object] = field(default_factory=dict)
    """Details for the audit trail."""
    warnings: list[str] = field(default_factory=list)
    """Side effects that the operator may not have intended."""


class Changed(Struct, Generic[_Now], frozen=True):
    """Response to every change."""

    now: _Now
    audited: bool
    """The change is in the audit trail, on the disk."""
    audit_error: str | None
    """Why it is not in the audit trail; the change was made all the same, because an emergency must not wait for a
    disk."""
    warnings: list[str]
    """Side effects that may not be intended."""


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Page of the audit trail."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    before: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | UnsetType = UNSET
    """Only entries with a lower id."""


class Changes(EndpointGroup):
    """Carries out changes: `make` those of operators, `note` those that follow from them later."""

    def __init__(self, trail: AuditWriter, journal: EventLog, clock: Clock) -> None:
        self._trail = trail
        self._journal = journal
        self._clock = clock
        self._instance = f"{socket.gethostname()}:{os.getpid()}"
        self._observers: list[Callable[[str, str], None]] = []

    def subscribe(self, observer: Callable[[str, str], None]) -> None:
        """Calls `observer` after each change by an operator, with the operator and the reason."""
        self._observers.append(observer)

    async def make(
        self, asked: AdminRequest, action: str, target: str, do: Callable[[], ChangeResult | Awaitable[ChangeResult]]
    ) -> AdminResponse:  # fmt: skip
        """Carries out a change, and responds with the new state. `asked.body` is a `Change`. `do` may raise Refused, if
        nothing was changed."""
        reason = asked.body.reason
        try:
            done = do()
            if inspect.isawaitable(done):
                done = await done
        except Refused:
            raise
        except BaseException as error:  # half of it may be done, also when the operator has disconnected
            self.note(asked.who, action, target, reason, {"failed": type(error).__name__})
            self._notify_observers(asked.who, reason)
            raise
        self._notify_observers(asked.who, reason)
        problem = await self._trail.wait_written(self._note(asked.who, action, target, reason, done.detail))
        return answer(Changed(done.now, problem is None, problem, done.warnings))

    def _notify_observers(self, who: str, reason: str) -> None:
        for observer in self._observers:
            observer(who, reason)

    def note(self, actor: str, action: str, target: str, reason: str, detail: Mapping[str, object]) -> None:
        """Records a change that was made: in the audit trail, the log and the event log."""
        _ = self._note(actor, action, target, reason, detail)  # the trail logs its own errors

    def _note(self, actor: str, action: str, target: str, reason: str, detail: Mapping[str, object]) -> WriteResult:
        self._journal.note("change", actor=actor, action=action, target=target, reason=reason)
        _log.info("changed", operator=actor, action=action, target=target, reason=reason)
        at = iso(self._clock.wall())
        return self._trail.add(
            Entry(
                at=at,
                actor=actor,
                action=action,
                target=target,
                reason=reason,
                detail=dict(detail),
                instance=self._instance,
            )
        )

    async def stop(self) -> None:
        """Writes what is left to the audit trail."""
        await self._trail.close()

    def pages(self) -> list[Endpoint]:
        summary = "Returns the changes with actor and reason, newest first. id null: not written to the disk."
        return [Endpoint("GET", "/admin/audit", summary, self._give, query=AuditQuery, gives=list[Entry])]

    async def _give(self, asked: AdminRequest) -> AdminResponse:
        wants: AuditQuery = asked.wants
        return answer(await self._trail.latest(wants.limit, None if wants.before is UNSET else wants.before))
