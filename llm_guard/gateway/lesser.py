"""The static fallback response of one call, in the format that its request expects.

Decides which calls have one. `dialect.canned` writes it, `gateway.last_resort` decides when it is sent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llm_guard.call import Call
from llm_guard.dialect.canned import FIELDS, Occasion, canned, has_form
from llm_guard.gateway.model_field import BadRequest, inflate

_MAX_BODY_BYTES = 1 << 20

_wants_of = msgspec.json.Decoder(msgspec.defstruct("Wants", [(name, Any, None) for name in FIELDS])).decode


def has_static(call: Call) -> bool:
    """Returns whether the call's route has a static text for it. The request may still require something that no text
    can be."""
    rules = call.route.lasting.degraded if call.route is not None else None
    is_asked_so = call.method == "POST" and not call.is_upgrade
    return rules is not None and rules.answer is not None and is_asked_so and has_form(call.path)


def static_body(call: Call, at: float) -> bytes | None:
    """Returns the body of the static response at this instant, in seconds since the epoch; None: the call has none."""
    if not has_static(call):
        return None
    assert call.route is not None and call.route.lasting.degraded is not None  # noqa: S101, PT018  # it has one
    text = call.route.lasting.degraded.answer or ""
    occasion = Occasion(call.path, call.id, call.model or "", int(at), call.is_stream, call.choices, wants(call))
    return canned(text, occasion)


def wants(call: Call) -> dict[str, Any]:
    """Returns the fields of the request that determine the form of its response (`dialect.canned.FIELDS`); empty if the
    body is too large to be read in one go, or unreadable."""
    if not isinstance(call.body, bytes):
        return {}
    try:
        return msgspec.structs.asdict(_wants_of(inflate(call.body, call.content_encoding, _MAX_BODY_BYTES)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadRequest):
        return {}
