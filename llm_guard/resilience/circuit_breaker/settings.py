"""Settings of a circuit breaker (`resilience.circuit_breaker.breaker`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_guard.resilience.circuit_breaker.history import BreakerMode
from llm_guard.resilience.units import Count, OptionalCount, OptionalSeconds, Pause, Ratio, Seconds

BreakerFailure = Literal[
    "timeout", "connect_timeout", "network", "truncated", "certificate", "malformed", "server_error", "edge_error",
    "overloaded", "gpu_oom",
]  # fmt: skip
"""Labels of the failure kinds that a breaker counts (`outcome.FailureKind` with `Signal.UNHEALTHY`)."""
Sensitivity = Literal["statistical", "literal"]
"""How much evidence opens a breaker: more than chance explains, or exactly the configured numbers."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """Durations in seconds. The same settings apply to the breaker of a caller that fails alone
    (`resilience.circuit_breaker.callers`)."""

    sensitivity: Sensitivity = "statistical"
    """`statistical`: it opens when nothing succeeds any more, and not because a share of the calls fails: retries cure
    random failures and a throttle detects overload (`resilience.throttling.adaptive_throttle`), an open breaker does
    neither. `literal`: only the numbers below decide. At 60 % random failures such a breaker is open most of the time,
    and at 40 % five failures in a row come every 160 calls."""
    consecutive_failures: Count = 5
    """Failures in a row that open it. `literal`: at any pace. `statistical`: they must also fill a quarter of a second
    of the usual traffic (5 at up to 20 calls/s, 13 at 50, 25 at 100, 101 at 400; in the first second they must last
    that long, or be 20, unless fewer than 5 are configured), and be improbable at the share that fails anyway (at 10
    calls/s 11 where 20 % fail, 19 where 40 % do). While other calls are in flight for longer than these took to fail,
    they do not open it: successes may take longer than failures."""
    failure_rate: Ratio = 0.5
    """`literal`: share of failed calls in the window at which it opens, once there are `min_calls`. `statistical`: not
    used."""
    slow_call: OptionalSeconds = None
    """A call that took longer than this is slow; None: no call is."""
    slow_call_rate: Ratio = 0.8
    """Share of slow calls in the window, failed or not, at which it opens. `literal`: once there are `min_calls`.
    `statistical`: once a share of 0.9 times this one is ruled out (less than once in 10,000): at 0.8 this takes 29
    calls of which all are slow, 95 of which 90 % are."""
    window: Seconds = 60.0
    """How far back the shares look."""
    window_calls: OptionalCount = None
    """At most this many of the last calls count. Once there are that many, the share of slow calls alone decides, as
    in `literal`, because no more evidence can come."""
    min_calls: Count = 20
    """Calls in the window that are needed for a share to count. `statistical` may need more, see `slow_call_rate`."""
    ignore: tuple[BreakerFailure, ...] = ()
    """Kinds of failures that are not evidence: they neither open it nor keep it closed."""
    open_for: Seconds = 30.0
    """How long calls are refused before one is let through as a probe, and after each probe that fails. With
    `early_probes` it is the maximum."""
    max_open_for: Seconds = 300.0
    """Without `early_probes` the time grows to an eighth of the outage so far, up to this. Unused with them."""
    open_jitter: Ratio = 0.1
    """Each open period is cut by up to this share, so that breakers that opened together do not probe together."""
    early_probes: bool = True
    """One call is let through as a probe 250 ms after it opened, and the next ones at intervals of 800 ms plus a
    fortieth of the outage so far, at most 1.25 s or `open_for`; if a share of calls opened it, of 250 ms plus a
    fortieth. A probe that took longer to fail is followed by the next at once. If more than 250 calls are refused in
    such an interval it is shorter, down to 200 ms plus a fortieth of the outage: clients that wait for its end return
    sooner. A recovery is noticed at once after a blip, and within 1.25 s after any outage. False: only `open_for` and
    `max_open_for` count."""
    half_open_calls: Count = 1
    """Probes in flight at the same time. One that does not return holds its place for 1 s to 2.1 s, the longer the
    longer the outage: then the next is let through, and the first to succeed counts. A caller that has not failed
    lately may probe beside them."""
    success_threshold: Count = 1
    """Probes that must succeed to close it."""
    slow_start: Pause = 10.0
    """After it closed, calls in flight grow from half of those before the outage, by one for each success
    (`resilience.capacity.gate`), for at most this long; 0s: no limit."""
    state: BreakerMode = "auto"
    """auto: decided by the evidence; all other modes are operator overrides."""
