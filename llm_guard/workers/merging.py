"""Adds up the metrics of several processes: counters and histograms are sums, gauges what their meaning requires."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

from llm_guard.admin.api.health import WORST_FIRST
from llm_guard.admin.metrics.exposition import Family, Histogram, Row
from llm_guard.proxy.telemetry.recorder import Distribution
from llm_guard.resilience.health.status import HealthState
from llm_guard.workers.snapshot import FamilySnapshot, SentDistribution, distribution_of, taken

Rule = Literal["sum", "max", "min", "worst"]
"""worst: of the states that have 1, the worst one keeps it."""

GAUGES: Mapping[str, Rule] = {
    "llm_guard_in_flight_calls": "sum",
    "llm_guard_open_connections": "sum",
    "llm_guard_spooled_bytes": "sum",
    "llm_guard_spool_limit_bytes": "sum",
    "llm_guard_queue_length": "sum",
    "llm_guard_in_flight_attempts": "sum",
    "llm_guard_credentials_in_cooldown": "max",
    "llm_guard_breaker_state": "worst",
    "llm_guard_health_state": "worst",
    "llm_guard_last_success_timestamp_seconds": "max",
    "llm_guard_event_loop_lag_max_seconds": "max",
    "llm_guard_config_last_reload_successful": "min",
    "llm_guard_config_rolled_back": "max",
    "llm_guard_build_info": "max",
    "llm_guard_degraded": "max",
    "llm_guard_degraded_gateway": "max",
    "llm_guard_upstream_up": "min",
    "llm_guard_deployment_up": "min",
    "llm_guard_upstream_last_ok_timestamp_seconds": "max",
    "llm_guard_engine_state": "max",
    "llm_guard_stored_calls": "max",
    "llm_guard_stored_calls_bytes": "max",
    "llm_guard_cache_entries": "sum",
    "llm_guard_cache_bytes": "sum",
    "llm_guard_client_limit_remaining": "min",
    "llm_guard_injected_faults_active": "max",
    "llm_guard_fleet_replicas": "max",
    "llm_guard_fleet_store_up": "min",
    "llm_guard_fleet_paces": "max",
    "process_virtual_memory_bytes": "sum",
    "process_resident_memory_bytes": "sum",
    "process_start_time_seconds": "min",
    "process_open_fds": "sum",
    "process_max_fds": "min",
}
"""The rule of each gauge."""
IN_ONE_STORE: Mapping[str, Rule] = {"llm_guard_cache_entries": "max", "llm_guard_cache_bytes": "max"}
"""Rules of those that count what all processes share, if the cache is not in their memory."""

_HEALTH_WORST_FIRST = tuple(reversed(get_args(HealthState)))
_ORDERS: Mapping[str, Sequence[str]] = {
    "llm_guard_breaker_state": WORST_FIRST,
    "llm_guard_health_state": _HEALTH_WORST_FIRST,
}


def merged(
    snapshots: Iterable[Iterable[FamilySnapshot]], rules: Mapping[str, Rule] = GAUGES
) -> Iterator[Family | Histogram]:
    """Yields each family of all snapshots with its merged values, in the order of the first that has it."""
    by_name: dict[str, list[FamilySnapshot]] = {}
    for snapshot in snapshots:
        for family in snapshot:
            by_name.setdefault(family.name, []).append(family)
    for families in by_name.values():
        first = families[0]
        if first.kind == "histogram":
            found = _histogram(families)
            yield Histogram(first.name, first.text, first.labels, partial(list, found))
        else:
            rows = _rows(families, "sum" if first.kind == "counter" else rules.get(first.name, "sum"))
            yield Family(first.name, first.kind, first.text, first.labels, partial(list, rows))


def lasting(snapshots: Iterable[Iterable[FamilySnapshot]]) -> list[FamilySnapshot]:
    """Returns the sums of counters and histograms: what remains of processes that have ended."""
    return [family for family in taken(merged(snapshots)) if family.kind != "gauge"]


def _rows(families: Sequence[FamilySnapshot], rule: Rule) -> list[Row]:
    found: dict[tuple[str, ...], float] = {}
    for family in families:
        for values, number in family.rows:
            before = found.get(values)
            found[values] = number if before is None else _combined(before, number, rule)
    rows = list(found.items())
    return rows if rule != "worst" else _worst(rows, _ORDERS[families[0].name])


def _combined(one: float, other: float, rule: Rule) -> float:
    match rule:
        case "sum":
            return one + other
        case "min":
            return min(one, other)
        case _:
            return max(one, other)


def _worst(rows: list[Row], order: Sequence[str]) -> list[Row]:
    """Leaves the 1 to the worst state of each subject; the state is the last label."""
    worst: dict[tuple[str, ...], str] = {}
    for (*subject, state), number in rows:
        known = worst.get(tuple(subject))
        if number and (known is None or order.index(state) < order.index(known)):
            worst[tuple(subject)] = state
    return [(values, int(worst.get(values[:-1]) == values[-1])) for values, _ in rows]


def _histogram(families: Iterable[FamilySnapshot]) -> list[tuple[tuple[str, ...], Distribution]]:
    found: dict[tuple[str, ...], Distribution] = {}
    for family in families:
        for sent in family.distributions:
            before = found.get(sent.values)
            if before is None:
                found[sent.values] = distribution_of(sent)
            else:
                _add(before, sent)
    return list(found.items())


def _add(total: Distribution, sent: SentDistribution) -> None:
    added = distribution_of(sent)
    total.sum += added.sum
    for index, count in enumerate(added.counts):
        total.counts[index] += count
        known, other = total.exemplars[index], added.exemplars[index]
        if other is not None and (known is None or known[3] < other[3]):
            total.exemplars[index] = other
