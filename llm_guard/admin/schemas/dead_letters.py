"""Schemas of a stored call. Instants in ISO 8601; null where a value is not known or does not apply."""

from __future__ import annotations

import base64
from typing import Literal

from msgspec import Struct

from llm_guard.clock import iso
from llm_guard.storage.calls.store import CallGroup, Purpose, State, StoredCall


class LastFailureView(Struct, frozen=True):
    kind: str
    detail: str
    status: int | None


class DeadLetterView(Struct, frozen=True):
    """A dead letter or deferred call."""

    id: str
    request_id: str
    purpose: Purpose
    state: State
    route: str
    model: str | None
    path: str
    client: str | None
    stream: bool
    received: str
    first_failed: str | None
    last_failed: str | None
    attempts: int
    """Attempts on upstreams in all."""
    executions: int
    """How often it was executed since it was stored."""
    due: str | None
    """When it is executed next."""
    deadline: str | None
    last_failure: LastFailureView | None
    answered: str | None
    """When it got its response."""


class BodyView(Struct, frozen=True):
    """A body, as text if it is UTF-8."""

    encoding: Literal["utf-8", "base64"]
    content: str


class DeadLetterDetail(Struct, frozen=True):
    """Response of `GET /admin/dead-letters/{id}`."""

    call: DeadLetterView
    request_headers: dict[str, str]
    is_readable: bool
    """False: the bodies were encrypted with a key that this gateway does not have."""
    response_status: int | None
    request_body: BodyView | None
    """null: not requested with ?body=true, or not stored."""
    failure_body: BodyView | None
    response_body: BodyView | None


class DeadLetterGroup(Struct, frozen=True):
    """Stored calls of one route that failed for one reason."""

    route: str
    kind: str | None
    """Kind of the last failure; null: none of them has failed."""
    purpose: Purpose
    state: State
    count: int
    oldest: str
    newest: str
    """When the first and the last of them were received."""


def dead_letter_group(group: CallGroup) -> DeadLetterGroup:
    return DeadLetterGroup(
        group.route, group.kind, group.purpose, group.state, group.count, iso(group.oldest_at), iso(group.newest_at)
    )


def dead_letter_view(kept: StoredCall) -> DeadLetterView:
    request, ended = kept.request, kept.ended
    return DeadLetterView(
        kept.id,
        kept.request_id,
        kept.purpose,
        kept.state,
        request.route,
        request.model,
        request.path,
        kept.client,
        request.is_stream,
        iso(kept.received_at),
        _iso(kept.first_failed_at),
        _iso(kept.last_failed_at),
        kept.attempts,
        kept.rounds,
        _iso(kept.due_at),
        _iso(kept.deadline_at),
        None if ended is None else LastFailureView(ended.kind, ended.detail, ended.status),
        _iso(kept.answered_at),
    )


def dead_letter_detail(kept: StoredCall, *, shows_bodies: bool) -> DeadLetterDetail:
    ended, answer = kept.ended, kept.answer
    return DeadLetterDetail(
        dead_letter_view(kept),
        dict(kept.request.headers),
        kept.is_readable,
        None if answer is None else answer.status,
        _body(kept.request.body) if shows_bodies else None,
        _body(ended.body) if shows_bodies and ended is not None else None,
        _body(answer.body) if shows_bodies and answer is not None else None,
    )


def _body(content: bytes | None) -> BodyView | None:
    if content is None:
        return None
    try:
        return BodyView("utf-8", content.decode())
    except UnicodeDecodeError:
        return BodyView("base64", base64.b64encode(content).decode())


def _iso(at: float | None) -> str | None:
    return None if at is None else iso(at)
