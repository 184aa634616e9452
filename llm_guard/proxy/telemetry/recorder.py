"""Records each call at its end, in counters and histograms, a log line and the recent calls. Never fails a call.

Callers cannot choose a label: an unknown model is `other`, a name under a pattern is the pattern. Counts are plain
numbers, which `admin.metrics.call_metrics` exposes. Only the event loop uses them, for scrapes as well, so they need no
lock: prometheus_client's own counters have one each, and cost ten times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec
import structlog

from llm_guard.clock import Clock
from llm_guard.log import ACCESS_LOGGER, LEVELS, direct_writer, to_line
from llm_guard.outcome import GATEWAYS_DOING, Category, Disposition, RefusedBy, Scope
from llm_guard.proxy.call import Attempt, Call
from llm_guard.proxy.caller_identity import suspect_of
from llm_guard.proxy.telemetry.access_log import CallFate, RecentCalls, Timestamps, call_line, tokens_of, wasted_by
from llm_guard.proxy.telemetry.trace_propagation import Tracing

RECENT = 100

_DURATION_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_DELAY_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_OVERHEAD_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1)


Exemplar = tuple[str, int, float, float]
"""The id of a call, of its trace (0: not traced), the value, and the instant in seconds since the epoch."""


class Distribution:
    """A histogram: counts of values per bucket, and their sum."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        """Count of the values of each bucket: at most its bound and above the one before; the last is for values above
        all bounds."""
        self.sum = 0.0
        self.exemplars: list[Exemplar | None] = [None] * len(self.counts)
        """The latest exemplar of each bucket, where there is one."""

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def note_call(self, value: float, call_id: str, trace_id: int, at: float) -> None:
        """Counts a value like `note`, and makes this call the exemplar of its bucket."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.sum += value
        self.exemplars[index] = (call_id, trace_id, value, at)


OutcomeClass = Literal["ok", "failed", "refused"]
"""Classes of outcomes: their durations are not comparable. A call is refused if the gateway itself refused it."""


def by_outcome(*outcomes: OutcomeClass, bounds: tuple[float, ...]) -> dict[OutcomeClass, Distribution]:
    """Returns an empty distribution for each class of outcomes."""
    return {outcome: Distribution(bounds) for outcome in outcomes}


def recent_outcomes() -> deque[bool]:
    """Returns a buffer for the outcomes of the last hundred calls: True for those that succeeded."""
    return deque(maxlen=RECENT)


# Attributes are named like their metrics. A counter's key is its second label; a tuple where it has several more
# labels, or none.


class ModelCounts:
    """Counts of the calls with one `model` label."""

    __slots__ = (
        "answered",
        "answered_s",
        "attempts_made",
        "begun",
        "cache",
        "call_duration",
        "calls",
        "cut_short",
        "dead_letters",
        "deferred_calls_accepted",
        "ended",
        "fallback_responses",
        "fallbacks",
        "hedges",
        "judged",
        "limits_hit",
        "overhead",
        "recent",
        "refusals",
        "retries_made",
        "stream_resumes",
        "time_to_first_token",
        "tokens",
        "unasked",
        "wasted_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        """Ended calls among those begun."""
        self.judged = 0
        """Ended calls, except those that failed by their client's doing, or for a caller that alone fails."""
        self.recent = recent_outcomes()
        """Outcomes of the last hundred judged calls."""
        self.unasked = 0
        """Successful calls that needed no upstream: cached or deferred."""
        self.cut_short = 0
        """Failed calls that degraded mode has cut short: they are no evidence of an outage."""
        self.attempts_made = self.retries_made = self.limits_hit = 0
        self.answered = 0
        """Successful unary calls that a provider has answered."""
        self.answered_s = 0.0
        """Total duration of those calls."""
        self.calls: dict[str, int] = defaultdict(int)
        self.fallbacks: dict[str, int] = defaultdict(int)
        self.refusals: dict[str, int] = defaultdict(int)
        self.tokens: dict[str, int] = defaultdict(int)
        self.hedges: dict[str, int] = defaultdict(int)
        self.stream_resumes: dict[tuple[str, str], int] = defaultdict(int)
        self.wasted_tokens: dict[tuple[()], int] = {(): 0}
        self.dead_letters: dict[tuple[()], int] = {(): 0}
        self.deferred_calls_accepted: dict[tuple[()], int] = {(): 0}
        self.cache: dict[str, int] = defaultdict(int)
        self.fallback_responses: dict[str, int] = defaultdict(int)
        self.call_duration = by_outcome("ok", "failed", "refused", bounds=_DURATION_S)
        self.time_to_first_token = Distribution(_FIRST_TOKEN_S)
        self.overhead = Distribution(_OVERHEAD_S)

    @property
    def in_flight_calls(self) -> int | None:
        """Number of calls in flight; None: there has been none yet."""
        return self.begun - self.ended if self.begun else None


class DeploymentCounts:
    """Counts of the attempts with one `deployment` label."""

    __slots__ = (
        "attempts", "malformed_events", "queue_wait", "refusals", "retries", "retry_delay", "timeouts", "turned_away",
        "upstream_duration",
    )  # fmt: skip

    def __init__(self) -> None:
        self.attempts: dict[str, int] = defaultdict(int)
        self.refusals: dict[str, int] = defaultdict(int)
        """Calls that the gateway refused and that would have gone to this deployment, by `outcome.GATEWAYS_DOING`."""
        self.turned_away = 0
        """Those of them that made no attempt on it."""
        self.retries: dict[str, int] = defaultdict(int)
        self.timeouts: dict[str, int] = defaultdict(int)
        self.malformed_events: dict[tuple[()], int] = {(): 0}
        self.upstream_duration = by_outcome("ok", "failed", bounds=_DURATION_S)
        self.queue_wait = Distribution(_DELAY_S)
        self.retry_delay = Distribution(_DELAY_S)


class ClientCounts:
    """Counts of the calls with one `client` label."""

    __slots__ = ("client_calls", "client_tokens")

    def __init__(self) -> None:
        self.client_calls: dict[str, int] = defaultdict(int)
        self.client_tokens: dict[str, int] = defaultdict(int)
        """Tokens by kind: input, output, cached (of the input), wasted (output that the client did not get)."""


class CallCounters:
    """All counts of calls, by their first label."""

    def __init__(self) -> None:
        self.clients: dict[str, ClientCounts] = {}
        """Counts of the client keys in the config."""
        self.models: dict[str, ModelCounts] = defaultdict(ModelCounts)
        self.deployments: dict[str, DeploymentCounts] = defaultdict(DeploymentCounts)
        self.recent = recent_outcomes()
        """Outcomes of the last hundred judged calls of all models."""
        self.translations: dict[tuple[str, str, str], int] = defaultdict(int)
        """Translated attempts, by the client's dialect, the upstream's, and their outcome."""
        self.translation_losses: dict[str, int] = defaultdict(int)
        """Translated attempts that lost a field, by its name."""

    def adopt(self, clients: Iterable[str], models: Iterable[str], deployments: Iterable[str]) -> None:
        """Counts these client keys from now on, and deletes the counts of all other keys. The models and deployments
        have counts of zero from now on, if they had none."""
        counted = {name: self.clients.get(name) or ClientCounts() for name in clients}
        self.clients.clear()
        self.clients.update(counted)
        for model in models:
            self.models[model]
        for deployment in deployments:
            self.deployments[deployment]


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
