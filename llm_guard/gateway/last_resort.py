"""What a client gets when nobody has answered: an answer from before, a promise, a lesser answer, else the failure.

Owns this order, and that a call is kept where its route or its client wants that. Does not own the answers.

Whatever it gets, the call has failed: that is its outcome, in the log and for success rates and alerts, and what its
client has got in place of an answer is said and counted beside it.
"""

from __future__ import annotations

from dataclasses import replace

from llm_guard.call import Call
from llm_guard.clock import Clock
from llm_guard.gateway import headers as header_rules
from llm_guard.gateway.answer_cache import AnswerCache
from llm_guard.gateway.answers import give_promise, pass_on, refuse
from llm_guard.gateway.keeping import Keeper
from llm_guard.gateway.lesser import static_body
from llm_guard.gateway.record import is_clients_doing
from llm_guard.gateway.refusals import own_words
from llm_guard.gateway.reply import Reply
from llm_guard.outcome import Beyond, Failure, GaveUp, Refusal

ASYNC_HEADER = "x-llm-guard-async"
LETTER_HEADER = "x-llm-guard-dead-letter"

_CONTENT_TYPES = {
    True: [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")],
    False: [("Content-Type", "application/json")],
}


class LastResort:
    """Asked by every call that has failed."""

    def __init__(self, clock: Clock) -> None:
        self.keeper: Keeper | None = None
        self.cache: AnswerCache | None = None
        self._clock = clock

    async def give(self, call: Call, result: GaveUp, reply: Reply) -> None:
        """Answers the client."""
        call.give_up(result)
        if not _is_worth_it(call):
            await _say(call, result, reply, self._clock.now())
            return
        _note_hurry(call, result)
        old = await self.cache.find_stand_in(call) if self.cache is not None else None
        if old is None and await self._has_promised(call, reply):
            return
        await self.bury(call, reply)
        if old is not None and self.cache is not None:
            await self.cache.stand_in(call, old, reply)
        elif (static := static_body(call, self._clock.wall())) is not None:
            await _give_static(call, static, reply)
        else:
            await _say(call, result, reply, self._clock.now())

    async def bury(self, call: Call, reply: Reply) -> None:
        """Keeps a call that has failed, where that is wanted."""
        if self.keeper is not None and _wants_letter(call, reply) and _is_worth_it(call):
            await self.keeper.bury(call)

    async def _has_promised(self, call: Call, reply: Reply) -> bool:
        """Behind an early head, which said 200, no promise can stand."""
        assert call.route is not None  # noqa: S101  # somebody was to be asked
        is_wanted = call.route.lasting.later.when == "on_failure" and call.method == "POST" and not call.is_upgrade
        if self.keeper is None or not is_wanted or reply.has_begun:
            return False
        promised = await self.keeper.promise(call, is_at_once=False)
        if isinstance(promised, Refusal):
            return False
        await give_promise(call, promised, reply)
        return True


def may_be_kept(call: Call, reply: Reply) -> bool:
    """Whether the call may be kept beyond its client, with its body: for a promise, or as a letter."""
    assert call.route is not None  # noqa: S101  # it was identified
    is_promised = call.route.lasting.later.when in ("on_failure", "always") or ASYNC_HEADER in reply.request.names
    return call.method == "POST" and (is_promised or _wants_letter(call, reply))


def _is_worth_it(call: Call) -> bool:
    """Nobody but the gateway and its upstreams is to blame. What was refused on its way, even for an operator who holds
    the last deployment, its client could not help."""
    return call.failure is None or not is_clients_doing(call)


def _note_hurry(call: Call, result: GaveUp) -> None:
    """It waited less than it would have, had its route been well: that must not be taken for a sign of illness."""
    beyond, failure = call.beyond, result.failure
    if beyond is not None and failure is not None and beyond.hurried_by < call.deadline_at:
        beyond.is_cut_short = failure.is_early or failure.limit == "total"


async def _give_static(call: Call, body: bytes, reply: Reply) -> None:
    _beyond(call).lesser = "static"
    call.sent_status = 200
    headers = [*_CONTENT_TYPES[call.is_stream], *header_rules.ours(call, None)]
    await reply.send(200, "", headers, body)


def _wants_letter(call: Call, reply: Reply) -> bool:
    rule = call.route.lasting.letters if call.route is not None else "off"
    if call.method != "POST" or call.is_upgrade or rule == "off":
        return False
    return rule == "always" or reply.request.names.get(LETTER_HEADER, "").strip().lower() == "true"


def _beyond(call: Call) -> Beyond:
    if call.beyond is None:
        call.beyond = Beyond()
    return call.beyond


async def _say(call: Call, result: GaveUp, reply: Reply, now: float) -> None:
    """The failure itself, and when its deployment takes calls again where the breaker is open."""
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
    refusal = own_words(call, result.failure)
    await refuse(call, replace(refusal, retry_after_s=wait_s) if refusal.retry_after_s is None else refusal, reply)


def _open_for_s(call: Call, failure: Failure, now: float) -> float | None:
    """How long the breaker of the deployment that failed refuses calls; None: it does not, or is not what failed."""
    attempt = next((attempt for attempt in call.attempts if attempt.failure is failure), None)
    if attempt is None or failure.kind.is_final:
        return None
    wait_s = attempt.target.deployment.breaker.come_back_s(now)
    return wait_s if wait_s > 0 else None
