"""The conversion between a stored call and the fields of its hash on a Redis server.

Other programs can read what is stored there, so besides the bodies, the error's text and the caller's identity are
encrypted, whenever there is a key. A field `F` that is encrypted has a field `F.key` with the name of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from llm_guard.storage.calls.bodies import Bodies, Part, Unreadable
from llm_guard.storage.calls.store import (
    CallFailure,
    Purpose,
    StoredCall,
    StoredRequest,
    StoredResponse,
    as_text,
)
from llm_guard.storage.errors import StoreError

HashFields = dict[str, str | bytes | float | None]
"""Values by name; None: the field is missing."""

_TEXTS = ("request_id", "purpose", "state", "client", "webhook", "told")
_INSTANTS = ("received_at", "first_failed_at", "last_failed_at", "due_at", "deadline_at", "answered_at")
_NUMBERS = ("attempts", "rounds")
_UNREADABLE = "its text is stored encrypted, and this gateway does not have the key"


def fields_of(call: StoredCall, bodies: Bodies, runner: str) -> HashFields:
    """Returns the fields of a new call; `runner` has its caller's credentials, if it needs them. Raises StoreError if
    it has no state in which calls are added."""
    is_queued = call.state == "queued"
    if (
        call.purpose not in ("dead_letter", "deferred")
        or call.state not in ("dead", "queued")
        or is_queued != (call.due_at is not None)
        or call.answered_at is not None
    ):
        raise StoreError(f"{call.id}: a call cannot be added in this state")
    fields: HashFields = {name: getattr(call, name) for name in (*_TEXTS, *_NUMBERS)}
    fields |= {name: None if (at := getattr(call, name)) is None else float(at) for name in _INSTANTS}
    fields |= {
        "request": as_text(call.request), "route": call.request.route, "answer": as_text(call.answer),
        "is_repeatable": int(call.request.is_repeatable), "home": runner if call.request.needs_credentials else None,
        "kind": None if call.ended is None else call.ended.kind,
    }  # fmt: skip
    fields |= sealed_text("owner", call.owner, call.id, bodies)
    fields |= sealed_text("ended", as_text(call.ended), call.id, bodies)
    for part, content in bodies.of_new(call).items():
        fields |= sealed_body(part, content, call.id, call.purpose, bodies)
    return fields


def sealed_text(name: str, text: str | None, call_id: str, bodies: Bodies) -> HashFields:
    """Returns a field that is encrypted if there is a key, and that with the name of its key."""
    if text is None:
        return {name: None, f"{name}.key": None}
    key, kept = bodies.seal_always(text.encode(), f"{call_id}/{name}")
    return {name: kept, f"{name}.key": key}


def sealed_body(part: Part, content: bytes | None, call_id: str, purpose: Purpose, bodies: Bodies) -> HashFields:
    """The same for a body, which is encrypted as configured."""
    name = f"{part}.body"
    if content is None:
        return {name: None, f"{name}.key": None}
    key, kept = bodies.seal(content, f"{call_id}/{name}", purpose)
    return {name: kept, f"{name}.key": key}


def call_in(fields: Mapping[str, bytes], bodies: Bodies) -> StoredCall:
    """Returns the call with these fields, which include its `id`. Raises Unreadable."""
    try:
        return _call_in(fields, bodies)
    except (KeyError, ValueError, RecursionError, msgspec.DecodeError) as error:  # something else has changed it
        raise Unreadable(f"{fields['id'].decode(errors='replace')}: {error}") from None


def _call_in(fields: Mapping[str, bytes], bodies: Bodies) -> StoredCall:
    call_id = fields["id"].decode()
    opened: dict[str, bytes | None] = {}
    for name in ("owner", "ended", "request.body", "ended.body", "answer.body"):
        if (content := fields.get(name)) is not None:
            key = fields.get(f"{name}.key")
            opened[name] = bodies.open(content, f"{call_id}/{name}", None if key is None else key.decode())
    facts: dict[str, Any] = {name: fields[name].decode() if name in fields else None for name in _TEXTS}
    facts |= {name: float(fields[name]) if name in fields else None for name in _INSTANTS}
    facts |= {name: int(fields[name]) for name in _NUMBERS}
    request = msgspec.json.decode(fields["request"], type=StoredRequest)
    answer = msgspec.json.decode(fields.get("answer", b"null"), type=StoredResponse | None)
    return StoredCall(
        **facts,
        id=call_id,
        owner=(opened["owner"] or b"").decode(),
        request=msgspec.structs.replace(request, body=opened.get("request.body")),
        ended=_ended(fields, opened),
        answer=answer and msgspec.structs.replace(answer, body=opened.get("answer.body") or b""),
        is_readable=None not in opened.values(),
    )


def _ended(fields: Mapping[str, bytes], opened: Mapping[str, bytes | None]) -> CallFailure | None:
    if "ended" not in opened:
        return None
    text = opened["ended"]
    if text is None:
        return CallFailure(kind=fields["kind"].decode(), detail=_UNREADABLE)
    ended = msgspec.json.decode(text, type=CallFailure)
    return msgspec.structs.replace(ended, body=opened.get("ended.body"))
