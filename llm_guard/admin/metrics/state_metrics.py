"""Metrics of deployments, upstreams and the gateway itself, sampled at each scrape so that calls need not update
them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from llm_guard.admin.api.health import WORST_FIRST
from llm_guard.admin.context import AdminContext
from llm_guard.admin.metrics.declaration import DeclaredFamily, counter, gauge, histogram, single
from llm_guard.admin.metrics.exposition import Row
from llm_guard.admin.monitor.monitor import LoopLag
from llm_guard.admin.restrictions.cooldowns import credentials_in_cooldown
from llm_guard.log import direct_writer
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.resilience.health.status import HealthState
from llm_guard.routing.deployment import Deployment
from llm_guard.version import __version__, is_compiled

HealthStates = Callable[[], Iterable[tuple[str, HealthState]]]
"""Yields the health of each `deployment` label, with pauses."""
AlertCounts = Callable[[], Mapping[tuple[str, str], int]]
"""Returns how often each alert was raised since the start, by name and severity, including zeros."""

_STATES: tuple[BreakerState, ...] = get_args(BreakerState)
_HEALTH: tuple[HealthState, ...] = get_args(HealthState)
_LOOKS = 200
"""Deployments and gates sampled without a pause: they take a quarter of a millisecond."""
_LOOKS_TO_JUDGE = 5
"""Cost of a deployment's health, in units of sampling one."""


@dataclass(slots=True)
class _Seen:
    """Sums over the deployments with one label: each name under a pattern has a breaker of its own."""

    worst: BreakerState
    entered: dict[BreakerState, int] = field(default_factory=lambda: dict.fromkeys(_STATES, 0))
    last_success: float = 0.0
    in_flight: int = 0
    waiting: int = 0


class StateMetrics:
    """The values of `STATE_METRICS`; `look` must be exhausted before they are read."""

    def __init__(self, running: AdminContext, lag: LoopLag, health: HealthStates, alerts: AlertCounts) -> None:
        self.running = running
        self._gateway = running.gateway
        self.lag = lag
        self._health = health
        self._alerts = alerts
        self.seen: dict[str, _Seen] = {}
        self._judged: list[tuple[str, HealthState]] = []
        self._transitions: dict[tuple[str, str], _Steady] = {}

    def look(self) -> Iterator[None]:
        """Samples all deployments, and yields to allow pauses: a pattern has hundreds, and each caller a gate."""
        seen: dict[str, _Seen] = {}
        looks = 0
        for deployment in self._gateway.deployments():
            one = seen.setdefault(deployment.label, _Seen(deployment.breaker.state))
            looks += _add(one, deployment)
            if looks >= _LOOKS:
                yield
                looks = 0
        health = []
        for verdict in self._health():
            health.append(verdict)
            looks += _LOOKS_TO_JUDGE
            if looks >= _LOOKS:
                yield
                looks = 0
        self.seen, self._judged = seen, health

    def connections(self) -> list[Row]:
        names = ("calls", "ops")
        return [((name,), listener.count) for name, listener in zip(names, self.running.listeners(), strict=False)]

    def dials(self) -> list[Row]:
        upstreams = self._gateway.table.upstreams
        return [((name,), self.running.dials(upstream.connections)) for name, upstream in upstreams.items()]

    def credentials_in_cooldown(self) -> list[Row]:
        counts = dict.fromkeys(self._gateway.table.upstreams, 0)
        for upstream, *_ in credentials_in_cooldown(self._gateway.cooldowns.snapshot(self.running.clock.now())):
            if upstream in counts:
                counts[upstream] += 1
        return [((name,), count) for name, count in counts.items()]

    def breaker_states(self) -> Iterator[Row]:
        return (((label, name), int(name == one.worst)) for label, one in self.seen.items() for name in _STATES)

    def transitions(self) -> Iterator[Row]:
        for label, one in self.seen.items():
            for name in _STATES:
                steady = self._transitions.setdefault((label, name), _Steady())
                yield (label, name), steady.of(one.entered[name])

    def health_states(self) -> Iterator[Row]:
        return (((label, name), int(name == now)) for label, now in self._judged for name in _HEALTH)

    def last_successes(self) -> Iterator[Row]:
        return (((label,), one.last_success) for label, one in self.seen.items() if one.last_success)

    def alerts_raised(self) -> list[Row]:
        return list(self._alerts().items())


def _add(one: _Seen, deployment: Deployment) -> int:
    """Adds a deployment to the sums, and returns the cost."""
    breaker = deployment.breaker
    one.worst = min(one.worst, breaker.state, key=WORST_FIRST.index)
    for state, count in breaker.history.entered().items():
        one.entered[state] += count
    one.last_success = max(one.last_success, deployment.last_success_wall or 0.0)
    one.in_flight += deployment.gates.in_flight
    gates = deployment.gates.all()
    one.waiting += sum(gate.waiting for gate in gates)
    return 1 + len(gates) // 16


class _Steady:
    """Makes a counter that never falls from a sum with parts that vanish (a pattern forgets its oldest names)."""

    __slots__ = ("_last", "_lost")

    def __init__(self) -> None:
        self._lost = self._last = 0

    def of(self, now: int) -> int:
        self._lost += max(0, self._last - now)
        self._last = now
        return self._lost + now


def _dropped(_state: StateMetrics) -> float:
    writer = direct_writer()
    return writer.dropped if writer is not None else 0


def _build(_state: StateMetrics) -> list[Row]:
    return [((__version__, platform.python_version(), str(is_compiled()).lower()), 1)]


def _by_label(number: Callable[[_Seen], int]) -> Callable[[StateMetrics], Iterator[Row]]:
    return lambda state: (((label,), number(one)) for label, one in state.seen.items())


STATE_METRICS: tuple[DeclaredFamily[StateMetrics], ...] = (
    gauge("open_connections", "Open connections of clients, by listener.", ("listener",), StateMetrics.connections),
    gauge(
        "spooled_bytes", "Disk space that request bodies use.", (),
        single(lambda state: state.running.gateway.spool.used_bytes),
    ),
    gauge(
        "spool_limit_bytes", "Limit of the disk space for request bodies.", (),
        single(lambda state: state.running.gateway.spool.max_bytes),
    ),
    gauge("queue_length", "Calls in the wait queue.", ("deployment",), _by_label(lambda one: one.waiting)),
    gauge("in_flight_attempts", "Attempts running now.", ("deployment",), _by_label(lambda one: one.in_flight)),
    counter(
        "connection_attempts",
        "Connections opened to an upstream's host. Upstreams with one host show the same number.",
        ("upstream",), StateMetrics.dials,
    ),
    gauge(
        "credentials_in_cooldown", "Credentials in a cooldown.", ("upstream",), StateMetrics.credentials_in_cooldown
    ),
    gauge("breaker_state", "1 for the state a breaker is in.", ("deployment", "state"), StateMetrics.breaker_states),
    counter("breaker_transitions", "Changes of a breaker's state.", ("deployment", "to"), StateMetrics.transitions),
    gauge(
        "health_state", "1 for the health state of a deployment.", ("deployment", "state"), StateMetrics.health_states
    ),
    gauge(
        "last_success_timestamp_seconds", "Time of a deployment's last success.", ("deployment",),
        StateMetrics.last_successes,
    ),
    counter("alerts", "Alerts that fired.", ("alert", "severity"), StateMetrics.alerts_raised),
    histogram(
        "event_loop_lag", "Time that the event loop was blocked when a periodic check was due: four a second.", (),
        lambda state: [((), state.lag.distribution)],
    ),
    gauge(
        "event_loop_lag_max_seconds",
        "Longest time that the event loop was blocked, in the last one or two minutes.", (),
        single(lambda state: state.lag.max_s),
    ),
    counter("log_lines_dropped", "Log lines dropped because the output was too slow.", (), single(_dropped)),
    gauge(
        "config_last_reload_successful", "1 if the last reload of the config succeeded, 0 if it was refused.", (),
        single(lambda state: int(not state.running.reloads.problems)),
    ),
    gauge(
        "config_rolled_back", "1 while an earlier config runs after a rollback; a restart uses the file.", (),
        single(lambda state: int(state.running.reloads.is_rolled_back)),
    ),
    gauge("build_info", "1; the labels have the versions.", ("version", "python", "compiled"), _build),
)  # fmt: skip
"""All of them, in the order of a call's life; those of the gateway itself come last."""
