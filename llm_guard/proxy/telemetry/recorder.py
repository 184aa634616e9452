"""Records each call at its end, in metrics, a log line and the recent calls. Never fails a call.

Callers cannot choose a label: an unknown model is `other`, a name under a pattern is the pattern.
"""

from __future__ import annotations

from typing import get_args

import msgspec
import structlog

from llm_guard.clock import Clock
from llm_guard.log import ACCESS_LOGGER, LEVELS, direct_writer, to_line
from llm_guard.outcome import GATEWAYS_DOING, Category, Disposition, RefusedBy, Scope
from llm_guard.proxy.call import Attempt, Call
from llm_guard.proxy.caller_identity import suspect_of
from llm_guard.proxy.telemetry.access_log import Timestamps, call_line, tokens_of, wasted_by
from llm_guard.proxy.telemetry.counters import CallCounters, DeploymentCounts, Distribution, ModelCounts, OutcomeClass
from llm_guard.proxy.telemetry.recent_calls import CallFate, RecentCalls
from llm_guard.proxy.telemetry.trace_propagation import Tracing

_log = structlog.get_logger(ACCESS_LOGGER)
_INFO = 20
_NO_TOKENS: dict[str, int] = {}
"""Tokens of a call without a client key: its log line does not have them."""

_FROM_BEFORE = ("hit", "stale")
_CLIENTS_REFUSALS: frozenset[RefusedBy] = frozenset(get_args(RefusedBy)) - frozenset(GATEWAYS_DOING)
_CLIENTS_FAILURES: frozenset[Category] = frozenset(
    {
        "client_cancelled", "conflict", "content_policy", "context_length", "invalid_request", "not_found",
        "payload_too_large",
    }
)  # fmt: skip


class Recorder:
    """Counts calls, and writes a log line for each."""

    def __init__(self, counters: CallCounters, tracing: Tracing, clock: Clock) -> None:
        """Log lines go through structlog, or directly to its `LogWriter` if it has one."""
        self._tracing = tracing
        self._clock = clock
        self.models = counters.models
        """Counters by model label."""
        self._deployments = counters.deployments
        self._clients = counters.clients
        self.adopt = counters.adopt
        self._recent = counters.recent
        self._counters = counters
        self._writer = direct_writer()
        self._threshold = LEVELS.threshold(ACCESS_LOGGER)
        self._timestamps = Timestamps()
        self.timelines = RecentCalls()

    def begin(self, call: Call) -> None:
        """Counts a call as in flight; it has a route."""
        call.is_in_flight = True
        self.models[_model(call)].begun += 1

    def end(self, call: Call) -> None:
        """Records a call that has ended in any way."""
        now, wall = self._clock.now(), self._clock.wall()
        model = self.models[_model(call)]
        if call.is_in_flight:  # a refused call was never counted as in flight, even if it has a route
            call.is_in_flight = False
            model.ended += 1
        for attempt in call.attempts:
            if attempt.buffer is not None:
                attempt.buffer.release()
        if call.translation is not None:
            self._count_translations(call)
            call.translation.close()
        spent_s = overhead_s(call, now)
        outcome, tokens = call.outcome, _NO_TOKENS
        if call.client_key is not None:
            tokens = tokens_of(call)
            if (client := self._clients.get(call.client_key)) is not None:
                if call.disposition is None or not call.disposition.background_purpose:
                    client.client_calls[outcome] += 1
                for kind, count in tokens.items():
                    client.client_tokens[kind] += count
        self._count(call, outcome, model, now, wall, spent_s)
        self._write(call, outcome, tokens, now, wall, spent_s)
        if call.trace is not None:
            self._tracing.export(call, call.trace, now)
        if call.translation is not None or call.recovery is not None:
            _end_cycles(call)

    def _count(self, call: Call, outcome: str, model: ModelCounts, now: float, wall: float, spent_s: float) -> None:
        if call.disposition is not None:
            _count_disposition(call, call.disposition, model)
            if call.disposition.background_purpose:
                self._count_background_call(call, model, now)
                return
        model.calls[outcome] += 1
        if outcome == "ok" or not (is_caused_by_client(call) or _fails_alone(call, now)):
            model.judged += 1
            model.recent.append(outcome == "ok")
            self._recent.append(outcome == "ok")
        model.attempts_made += len(call.attempts)
        trace_id = call.trace.trace_id if call.trace is not None else 0
        group: OutcomeClass = "ok" if outcome == "ok" else "failed"
        if (refused_by := call.refused_by) is not None:
            group = "refused"
            self._count_refusal(call, refused_by, model)
        duration: Distribution = model.call_duration[group]  # here and below: as a C struct in the compiled build
        duration.note_call(now - call.started_at, call.id, trace_id, wall)
        if prompt := call.usage.prompt:
            model.tokens["input"] += prompt
        if call.usage.output:
            model.tokens["output"] += call.usage.output
        if call.wasted_tokens:
            model.wasted_tokens[()] += call.wasted_tokens
        if call.first_token_at is not None:
            model.time_to_first_token.note_call(call.first_token_at - call.started_at, call.id, trace_id, wall)
        elif outcome == "ok" and call.attempts and not (call.is_stream or call.is_upgrade):
            model.answered += 1
            model.answered_s += now - call.started_at
        if call.attempts:
            model.overhead.note(spent_s)
        for attempt in call.attempts:
            self._count_attempt(attempt, call, model, now)

    def _count_background_call(self, call: Call, model: ModelCounts, now: float) -> None:
        """Counts the tokens and attempts of a call that is not a client's call."""
        if prompt := call.usage.prompt:
            model.tokens["input"] += prompt
        if call.usage.output:
            model.tokens["output"] += call.usage.output
        for attempt in call.attempts:
            self._count_attempt(attempt, call, model, now)

    def _count_refusal(self, call: Call, refused_by: RefusedBy, model: ModelCounts) -> None:
        """Counts a call that the gateway refused, also on every deployment that could have served it."""
        model.refusals[refused_by] += 1
        if refused_by not in GATEWAYS_DOING:
            return
        attempted = {attempt.target.deployment.label for attempt in call.attempts}
        skipped = {skip.deployment for skip in call.skipped}
        for label in attempted | skipped:
            deployment = self._deployments[label]
            deployment.refusals[refused_by] += 1
            deployment.turned_away += label not in attempted

    def _count_attempt(self, attempt: Attempt, call: Call, model: ModelCounts, now: float) -> None:
        label = attempt.target.deployment.label
        deployment: DeploymentCounts = self._deployments[label]
        deployment.attempts[attempt.outcome] += 1
        group: OutcomeClass = "ok" if attempt.failure is None else "failed"
        duration: Distribution = deployment.upstream_duration[group]
        duration.note((attempt.ended_at or now) - attempt.timed_from)
        if attempt.failure is not None:
            if wasted := wasted_by(attempt):
                model.wasted_tokens[()] += wasted
            if attempt.failure.limit is not None:
                deployment.timeouts[attempt.failure.limit] += 1
                model.limits_hit += 1
        if attempt.is_hedge:
            model.hedges["lost" if attempt.failure is not None else "won"] += 1
        elif attempt.is_retry:
            model.retries_made += 1
            deployment.retries[_reason(call, attempt)] += 1
            if attempt.waited_for != "queue":
                deployment.retry_delay.note(attempt.waited_s)
        elif attempt.is_fallback:
            model.fallbacks[label] += 1
        if attempt.waited_for == "queue":
            deployment.queue_wait.note(attempt.waited_s)
        if attempt.resume_mode is not None:
            model.stream_resumes[attempt.resume_mode, attempt.outcome] += 1
        if attempt.watch is not None and attempt.watch.garbled:
            deployment.malformed_events[()] += attempt.watch.garbled

    def _count_translations(self, call: Call) -> None:
        for attempt in call.attempts:
            if (translation := attempt.translation) is not None and translation.is_translated:
                self._counters.translations[call.dialect, translation.dialect, attempt.outcome] += 1
                for name in translation.dropped:
                    self._counters.translation_losses[name] += 1

    def _write(self, call: Call, outcome: str, tokens: dict[str, int], now: float, wall: float, spent_s: float) -> None:
        line = call_line(call, outcome, tokens, now, spent_s)
        writer, is_logged = self._writer, self._threshold.level <= _INFO
        if writer is None and is_logged:
            _log.info("call", **msgspec.to_builtins(line))
        line.event, line.level = "call", "info"
        line.timestamp = self._timestamps.of(wall)
        written = to_line(line)
        if writer is not None and is_logged:
            writer.write(written)
        if call.disposition is not None and call.disposition.background_purpose in ("fetch", "status"):
            return  # status polls would displace the calls that they are about
        self.timelines.keep(written, now, "well" if outcome == "ok" else _fate(call))


def overhead_s(call: Call, now: float) -> float:
    """Returns the call's time without its exchanges and waits: what the gateway itself and the client's reading
    took."""
    elsewhere_s, until = call.waited_s, call.started_at
    attempt: Attempt  # as a C struct in the compiled build
    for attempt in call.attempts:  # a hedge overlaps with another attempt: the common time counts once
        ended_at = attempt.ended_at or now
        began_at = attempt.started_at - attempt.waited_s
        if ended_at > until:
            elsewhere_s += ended_at - max(until, began_at)
            until = ended_at
    return max(0.0, now - call.started_at - elsewhere_s)


def _model(call: Call) -> str:
    return call.route.alias if call.route is not None else "other"


def _end_cycles(call: Call) -> None:
    """Drops what refers to the call: kept, it would keep the call in memory until the garbage collector runs."""
    call.translation = call.recovery = None
    for attempt in call.attempts:
        attempt.translation = None


def _count_disposition(call: Call, disposition: Disposition, model: ModelCounts) -> None:
    if disposition.background_purpose:
        return
    if disposition.cache:
        model.cache[disposition.cache] += 1
    if disposition.dead_letter_id:
        model.dead_letters[()] += 1
    if disposition.deferred_id:
        model.deferred_calls_accepted[()] += 1
    if call.outcome == "ok":
        model.unasked += disposition.cache in _FROM_BEFORE or bool(disposition.deferred_id)
        return
    model.cut_short += disposition.was_cut_short
    if kind := _fallback_response(disposition):
        model.fallback_responses[kind] += 1


def _fallback_response(disposition: Disposition) -> str:
    """Returns the kind of fallback response that a failed call got; "" if it got none."""
    if disposition.cache == "stale_if_error":
        return "stale"
    return "deferred" if disposition.deferred_id else disposition.fallback


def _fails_alone(call: Call, now: float) -> bool:
    """Returns True if only this caller's calls fail, which says nothing about the service that others get."""
    targets = call.route.targets if call.route is not None else ()
    return any(suspect_of(call, target.deployment, now) is not None for target in targets)


def is_caused_by_client(call: Call) -> bool:
    """Returns True if neither the gateway nor an upstream could have served the call, or if the gateway was draining,
    which is announced. A maintenance hold does not count: to the caller it is an outage."""
    if call.failure is None:
        return call.refusal is not None and call.refusal.by in _CLIENTS_REFUSALS
    kind = call.failure.kind
    if kind.category in _CLIENTS_FAILURES:
        return True
    return kind.scope is Scope.CREDENTIAL and _is_callers_key(call)


def _is_callers_key(call: Call) -> bool:
    """Returns True if the refused key was the caller's own; without attempts, the key was in a cooldown."""
    if call.attempts:
        return not call.attempts[-1].target.deployment.upstream.has_own_key
    targets = call.route.targets if call.route is not None else ()
    return bool(targets) and not any(target.deployment.upstream.has_own_key for target in targets)


def _fate(call: Call) -> CallFate:
    """Returns the class under which a call that did not succeed is kept among the recent calls."""
    if is_caused_by_client(call):
        return "own_doing"
    return "failed" if call.attempts else "turned_away"


def _reason(call: Call, retry: Attempt) -> str:
    """Returns the outcome of the previous attempt on the same deployment."""
    before = call.attempts[: call.attempts.index(retry)]
    return next(attempt.outcome for attempt in reversed(before) if attempt.target is retry.target)
