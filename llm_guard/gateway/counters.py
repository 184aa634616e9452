"""What is counted of calls, in plain numbers.

Owns the numbers and the buckets. Does not own what is counted when (`gateway.record`), nor how a scrape sees it
(`ops.call_metrics`). The numbers are the event loop's alone, scrapes included, and need no lock: prometheus_client's
own counters have one each, and cost ten times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable

RECENT = 100

_DURATION_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_DELAY_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_OVERHEAD_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1)


Exemplar = tuple[str, int, float, float]
"""The id of a call, of its trace (0: it is not traced), the value, and the instant in seconds since the epoch."""


class Distribution:
    """How often values were at most each of `bounds`, and their sum."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of values at most a bound and above the one before it; the last, of those above all."""
        self.sum = 0.0
        self.exemplars: list[Exemplar | None] = [None] * len(self.counts)
        """The latest of each count, where there is one."""

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def note_call(self, value: float, call_id: str, trace_id: int, at: float) -> None:
        """As `note`; this call is from now on the example of its bucket."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.sum += value
        self.exemplars[index] = (call_id, trace_id, value, at)


def recent_outcomes() -> deque[bool]:
    """Whether the last hundred calls ended well."""
    return deque(maxlen=RECENT)


# The attributes have their metrics' names. A counter's key is its second label; of more, or of none, a tuple.


class ModelCounts:
    """Of the calls with one `model` label."""

    __slots__ = (
        "answered", "answered_s", "attempts_made", "begun", "cache", "call_duration", "calls", "cut_short",
        "dead_letters", "ended", "fallbacks", "hedges", "judged", "lesser_answers", "limits_hit", "overhead",
        "promises", "recent", "recoveries", "refusals", "retries_made", "time_to_first_token", "tokens",
        "tokens_thrown_away", "unasked",
    )  # fmt: skip

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        """Of those that had begun."""
        self.judged = 0
        """Ended, but for those whose end was their client's own doing, or that their caller alone fails at."""
        self.recent = recent_outcomes()
        """Of those."""
        self.unasked = 0
        """Ended well, and nobody was asked for them."""
        self.cut_short = 0
        """Failed for want of time that the gateway did not give them: what they say of an outage is nothing."""
        self.attempts_made = self.retries_made = self.limits_hit = 0
        self.answered = 0
        """By a provider: whole, not streamed, and well."""
        self.answered_s = 0.0
        """How long those took in all."""
        self.calls: dict[str, int] = defaultdict(int)
        self.fallbacks: dict[str, int] = defaultdict(int)
        self.refusals: dict[str, int] = defaultdict(int)
        self.tokens: dict[str, int] = defaultdict(int)
        self.hedges: dict[str, int] = defaultdict(int)
        self.recoveries: dict[tuple[str, str], int] = defaultdict(int)
        self.tokens_thrown_away: dict[tuple[()], int] = defaultdict(int)
        self.dead_letters: dict[tuple[()], int] = defaultdict(int)
        self.promises: dict[tuple[()], int] = defaultdict(int)
        self.cache: dict[str, int] = defaultdict(int)
        self.lesser_answers: dict[str, int] = defaultdict(int)
        self.call_duration = Distribution(_DURATION_S)
        self.time_to_first_token = Distribution(_FIRST_TOKEN_S)
        self.overhead = Distribution(_OVERHEAD_S)

    @property
    def in_flight_calls(self) -> int | None:
        """None: there never were any."""
        return self.begun - self.ended if self.begun else None


class DeploymentCounts:
    """Of the attempts with one `deployment` label."""

    __slots__ = (
        "attempts", "malformed_events", "queue_wait", "refusals", "retries", "retry_delay", "timeouts", "turned_away",
        "upstream_duration",
    )  # fmt: skip

    def __init__(self) -> None:
        self.attempts: dict[str, int] = defaultdict(int)
        self.refusals: dict[str, int] = defaultdict(int)
        """Calls that the gateway refused and that would have gone to it, by `outcome.GATEWAYS_DOING`."""
        self.turned_away = 0
        """Those of them that made no attempt on it."""
        self.retries: dict[str, int] = defaultdict(int)
        self.timeouts: dict[str, int] = defaultdict(int)
        self.malformed_events: dict[tuple[()], int] = defaultdict(int)
        self.upstream_duration = Distribution(_DURATION_S)
        self.queue_wait = Distribution(_DELAY_S)
        self.retry_delay = Distribution(_DELAY_S)


class ClientCounts:
    """Of the calls with one `client` label."""

    __slots__ = ("client_calls", "client_tokens")

    def __init__(self) -> None:
        self.client_calls: dict[str, int] = defaultdict(int)
        self.client_tokens: dict[str, int] = defaultdict(int)
        """input, output, cached (of the input), wasted (output that the client did not get)."""


class CallCounters:
    """All that is counted of calls, by its first label."""

    def __init__(self) -> None:
        self.clients: dict[str, ClientCounts] = {}
        """Those of the config alone."""
        self.models: dict[str, ModelCounts] = defaultdict(ModelCounts)
        self.deployments: dict[str, DeploymentCounts] = defaultdict(DeploymentCounts)
        self.recent = recent_outcomes()
        """Of all models' calls together."""

    def adopt_clients(self, names: Iterable[str]) -> None:
        """From now on these client keys are counted; of others what was counted is forgotten."""
        counted = {name: self.clients.get(name) or ClientCounts() for name in names}
        self.clients.clear()
        self.clients.update(counted)
