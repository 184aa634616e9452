"""Fallback responses of a failed call: an estimate of tokens, a stale response from the cache, a deferred call (202) or
a static response, else the error.

Owns this order, the static response in the format that the request expects (`dialects.static_answer` writes it), and
the decision to keep a failed call as a dead letter.

A call with a fallback response has failed all the same: the log line, success rates and alerts count it as a failure,
and the fallback response is logged and counted separately.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from llm_guard.clock import Clock
from llm_guard.dialects.static_answer import FIELDS, StaticAnswerRequest, has_form, static_response_body
from llm_guard.outcome import Disposition, Exhausted, Failure, Refusal
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.cache.response_cache import ResponseCache
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.error_responses import pass_on, refusal_for, refuse, send_accepted
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.ports import DeferredStore
from llm_guard.proxy.request_body.model_field import BadRequest, inflate
from llm_guard.proxy.telemetry.recorder import is_caused_by_client
from llm_guard.proxy.translation.interfaces import CallTranslator

ASYNC_HEADER = "x-llm-guard-async"
LETTER_HEADER = "x-llm-guard-dead-letter"

_CONTENT_TYPES = {
    True: [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")],
    False: [("Content-Type", "application/json")],
}


class FallbackResponder:
    """The last stage of every call that has failed."""

    def __init__(self, cache: ResponseCache, deferred_store: DeferredStore, clock: Clock) -> None:
        self._cache = cache
        self._deferred_store = deferred_store
        self._clock = clock

    async def respond(self, call: Call, result: Exhausted, reply: ResponseWriter) -> None:
        """Sends the client a fallback response, or the error."""
        call.give_up(result)
        if call.translation is not None and await self._has_estimate(call, call.translation, reply):
            return
        if not _is_worth_it(call):
            await _say(call, result, reply, self._clock.now())
            return
        _note_hurry(call, result)
        old = await self._cache.find_stale(call)
        if old is None and await self._has_deferred(call, reply):
            return
        await self.dead_letter(call, reply)
        if old is not None:
            await self._cache.serve_stale(call, old, reply)
        elif (static := static_body(call, self._clock.wall())) is not None:
            _disposition(call).fallback = "static"
            await _give(call, static, reply)
        else:
            await _say(call, result, reply, self._clock.now())

    async def _has_estimate(self, call: Call, translation: CallTranslator, reply: ResponseWriter) -> bool:
        """Sends the estimate that a call of count_tokens gets if no provider can count. It is no failure: a client that
        counts tokens needs no more."""
        if call.failure is not None and is_caused_by_client(call):
            return False
        body = await translation.estimate()
        if body is None:
            return False
        call.give_up(Exhausted(None, None, "estimated"))
        _disposition(call).fallback = "estimate"
        await _give(call, body, reply)
        return True

    async def dead_letter(self, call: Call, reply: ResponseWriter) -> None:
        """Keeps a failed call as a dead letter, where its route or its client wants that."""
        if _wants_letter(call, reply) and _is_worth_it(call):
            await self._deferred_store.dead_letter(call)

    async def _has_deferred(self, call: Call, reply: ResponseWriter) -> bool:
        """Returns whether the call was deferred. That is not possible after an early head, which has sent status
        200."""
        assert call.route is not None  # noqa: S101  # only calls with a route get here
        is_wanted = call.route.lasting.later.mode == "on_failure" and call.method == "POST" and not call.is_upgrade
        if not is_wanted or reply.has_begun:
            return False
        deferred_id = await self._deferred_store.defer(call, is_at_once=False)
        if isinstance(deferred_id, Refusal):
            return False
        await send_accepted(call, deferred_id, reply)
        return True


def is_deferred_at_once(call: Call, reply: ResponseWriter) -> bool:
    """Returns whether the call is deferred before any provider is tried."""
    assert call.route is not None  # noqa: S101  # it was identified
    is_requested = _async_header(reply) == "true"
    return call.method == "POST" and call.route.lasting.later.is_at_once(is_asked_for=is_requested)


def is_async_header_valid(reply: ResponseWriter) -> bool:
    return _async_header(reply) in ("true", "false")


def _async_header(reply: ResponseWriter) -> str:
    return reply.request.names.get(ASYNC_HEADER, "false").strip().lower()


def may_be_kept(call: Call, reply: ResponseWriter) -> bool:
    """Returns whether the call may be kept with its body after its client has gone: deferred, or as a dead letter."""
    assert call.route is not None  # noqa: S101  # it was identified
    is_deferrable = call.route.lasting.later.mode in ("on_failure", "always") or ASYNC_HEADER in reply.request.names
    return call.method == "POST" and (is_deferrable or _wants_letter(call, reply))


def _is_worth_it(call: Call) -> bool:
    """Returns whether a fallback response is due: the failure is not the client's doing. A refusal by the gateway
    counts as well, even where an operator holds the last deployment: the client could not have avoided it."""
    if call.failure is None:
        return call.refusal is None or call.refusal.by != "translation"
    return not is_caused_by_client(call)


def _note_hurry(call: Call, result: Exhausted) -> None:
    """Marks a call that degraded mode has cut short: its failure is no evidence about the route's health."""
    disposition, failure = call.disposition, result.failure
    if disposition is not None and failure is not None and disposition.degraded_deadline < call.deadline_at:
        disposition.was_cut_short = failure.is_early or failure.limit == "total"


async def _give(call: Call, body: bytes, reply: ResponseWriter) -> None:
    call.sent_status = 200
    headers = [*_CONTENT_TYPES[call.is_stream], *header_rules.ours(call, None)]
    await reply.send(200, "", headers, body)


def _wants_letter(call: Call, reply: ResponseWriter) -> bool:
    rule = call.route.lasting.letters if call.route is not None else "off"
    if call.method != "POST" or call.is_upgrade or rule == "off":
        return False
    return rule == "always" or reply.request.names.get(LETTER_HEADER, "").strip().lower() == "true"


def _disposition(call: Call) -> Disposition:
    if call.disposition is None:
        call.disposition = Disposition()
    return call.disposition


async def _say(call: Call, result: Exhausted, reply: ResponseWriter, now: float) -> None:
    """Sends the failure itself, with a Retry-After for when the breaker of its deployment takes calls again."""
    if result.refusal is not None:
        await refuse(call, result.refusal, reply)
        return
    assert result.failure is not None  # noqa: S101  # one of the two is set
    wait_s = result.failure.retry_after_s
    if wait_s is None:
        wait_s = _open_for_s(call, result.failure, now)
    if result.failure.answer is not None:
        await pass_on(call, result.failure, result.failure.answer, wait_s, reply)
        return
    refusal = refusal_for(call, result.failure)
    await refuse(call, replace(refusal, retry_after_s=wait_s) if refusal.retry_after_s is None else refusal, reply)


def _open_for_s(call: Call, failure: Failure, now: float) -> float | None:
    """Returns how long the breaker of the failed deployment refuses calls; None: it does not, or is not the cause."""
    attempt = next((attempt for attempt in call.attempts if attempt.failure is failure), None)
    if attempt is None or failure.kind.is_final:
        return None
    wait_s = attempt.target.deployment.breaker.come_back_s(now)
    return wait_s if wait_s > 0 else None


_MAX_BODY_BYTES = 1 << 20

_wants_of = msgspec.json.Decoder(msgspec.defstruct("Wants", [(name, Any, None) for name in FIELDS])).decode


def static_text(call: Call) -> str | None:
    """Returns the static text that the call's route has for it, if any. The request may still require something that no
    text can be."""
    rules = call.route.lasting.degraded if call.route is not None else None
    is_asked_so = call.method == "POST" and not call.is_upgrade
    return rules.static_response if rules is not None and is_asked_so and has_form(call.path) else None


def static_body(call: Call, at: float) -> bytes | None:
    """Returns the body of the static response at this instant, in seconds since the epoch; None: the call has none."""
    text = static_text(call)
    if text is None:
        return None
    occasion = StaticAnswerRequest(
        call.path, call.id, call.model or "", int(at), call.is_stream, call.choices, wants(call)
    )
    return static_response_body(text, occasion)


def wants(call: Call) -> dict[str, Any]:
    """Returns the fields of the request that determine the form of its response (`dialects.static_answer.FIELDS`);
    empty if the body is too large to be read in one go, or unreadable."""
    if not isinstance(call.body, bytes):
        return {}
    try:
        return msgspec.structs.asdict(_wants_of(inflate(call.body, call.content_encoding, _MAX_BODY_BYTES)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadRequest):
        return {}
