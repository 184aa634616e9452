"""The static answer of one call: what its request wants of an answer's form is read, and the answer written.

Owns which calls have one. Does not own its form (`dialect.canned`), nor when it is given (`gateway.last_resort`).
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
    """Whether the call's route has a text for it; it may still want what no text can be."""
    rules = call.route.lasting.degraded if call.route is not None else None
    is_asked_so = call.method == "POST" and not call.is_upgrade
    return rules is not None and rules.answer is not None and is_asked_so and has_form(call.path)


def static_body(call: Call, at: float) -> bytes | None:
    """The answer's body at this instant, in seconds since the epoch; None: it has none."""
    if not has_static(call):
        return None
    assert call.route is not None and call.route.lasting.degraded is not None  # noqa: S101, PT018  # it has one
    text = call.route.lasting.degraded.answer or ""
    occasion = Occasion(call.path, call.id, call.model or "", int(at), call.is_stream, call.choices, wants(call))
    return canned(text, occasion)


def wants(call: Call) -> dict[str, Any]:
    """What the request says of the form of its answer (`canned.FIELDS`). Of a body that is too large to be looked
    at in one go nothing is known."""
    if not isinstance(call.body, bytes):
        return {}
    try:
        return msgspec.structs.asdict(_wants_of(inflate(call.body, call.content_encoding, _MAX_BODY_BYTES)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadRequest):
        return {}
