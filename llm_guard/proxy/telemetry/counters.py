"""Counters and histograms of calls, in plain numbers.

`proxy.telemetry.recorder` counts, `admin.metrics.call_metrics` exposes them. Only the event loop uses these numbers,
for scrapes as well, so they need no lock: prometheus_client's own counters have one each, and cost ten times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Literal

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
