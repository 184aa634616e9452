"""The end that always runs: metrics, one log line for each call.

Owns what a call leaves behind. Decides nothing, and never fails a call. No label is a caller's to choose: an unknown
model is `other`, a name under a pattern is the pattern.
"""

from __future__ import annotations

import msgspec
import structlog

from llm_guard.call import Attempt, Call
from llm_guard.clock import Clock
from llm_guard.gateway.call_line import Timestamps, call_line
from llm_guard.gateway.counters import CallCounters, ModelCounts
from llm_guard.log import direct_writer, to_line

_log = structlog.get_logger("llm_guard")


class Recorder:
    """Counts calls, and writes a line for each."""

    def __init__(self, counters: CallCounters, clock: Clock) -> None:
        """Lines go where structlog's go; straight there, if that is a `LogWriter`."""
        self._clock = clock
        self._models = counters.models
        self._deployments = counters.deployments
        self._writer = direct_writer()
        self._timestamps = Timestamps()

    def begin(self, call: Call) -> None:
        """The call has a route."""
        call.is_in_flight = True
        self._models[_model(call)].begun += 1

    def end(self, call: Call) -> None:
        """The call is over, however it ended."""
        now = self._clock.now()
        model = self._models[_model(call)]
        if call.is_in_flight:  # a refused call may have a route, and never began
            call.is_in_flight = False
            model.ended += 1
        spent_s = overhead_s(call, now)
        self._count(call, model, now, spent_s)
        self._write(call, now, spent_s)

    def _count(self, call: Call, model: ModelCounts, now: float, spent_s: float) -> None:
        model.calls[call.outcome] += 1
        model.call_duration.note(now - call.started_at)
        if call.refusal is not None and call.refusal.by is not None:
            model.refusals[call.refusal.by] += 1
        if call.usage.input:
            model.tokens["input"] += call.usage.input
        if call.usage.output:
            model.tokens["output"] += call.usage.output
        if call.thrown_away:
            model.tokens_thrown_away[()] += call.thrown_away
        if call.first_token_at is not None:
            model.time_to_first_token.note(call.first_token_at - call.started_at)
        if call.attempts:
            model.overhead.note(spent_s)
        for attempt in call.attempts:
            self._count_attempt(attempt, call, model, now)

    def _count_attempt(self, attempt: Attempt, call: Call, model: ModelCounts, now: float) -> None:
        label = attempt.target.deployment.label
        deployment = self._deployments[label]
        deployment.attempts[attempt.outcome] += 1
        deployment.upstream_duration.note((attempt.ended_at or now) - attempt.started_at)
        if attempt.failure is not None and attempt.failure.limit is not None:
            deployment.timeouts[attempt.failure.limit] += 1
        if attempt.is_hedge:
            model.hedges["lost" if attempt.failure is not None else "won"] += 1
        elif attempt.is_retry:
            deployment.retries[_reason(call, attempt)] += 1
            if attempt.waited_for != "queue":
                deployment.retry_delay.note(attempt.waited_s)
        elif attempt.is_fallback:
            model.fallbacks[label] += 1
        if attempt.waited_for == "queue":
            deployment.queue_wait.note(attempt.waited_s)
        if attempt.manner is not None:
            model.recoveries[attempt.manner, attempt.outcome] += 1
        if (watch := attempt.watch) is not None:
            if watch.garbled:
                deployment.malformed_events[()] += watch.garbled
            if watch.tokens and attempt.failure is not None and attempt.answered_at is None:
                model.tokens_thrown_away[()] += watch.tokens  # it died while it was held back

    def _write(self, call: Call, now: float, spent_s: float) -> None:
        line = call_line(call, now, spent_s)
        if self._writer is None:
            _log.info("call", **msgspec.to_builtins(line))
            return
        line.event, line.level = "call", "info"
        line.timestamp = self._timestamps.of(self._clock.wall())
        self._writer.write(to_line(line))


def overhead_s(call: Call, now: float) -> float:
    """The call's time less its exchanges and its waits: what the gateway itself, and the client's reading, took."""
    elsewhere_s, until = 0.0, call.started_at
    for attempt in call.attempts:  # a hedge runs beside another: what both took counts once
        ended_at = attempt.ended_at or now
        began_at = attempt.started_at - attempt.waited_s
        if ended_at > until:
            elsewhere_s += ended_at - max(until, began_at)
            until = ended_at
    return max(0.0, now - call.started_at - elsewhere_s)


def _model(call: Call) -> str:
    return call.route.alias if call.route is not None else "other"


def _reason(call: Call, retry: Attempt) -> str:
    """How the attempt before on the same deployment ended."""
    before = call.attempts[: call.attempts.index(retry)]
    return next(each.outcome for each in reversed(before) if each.target is retry.target)
