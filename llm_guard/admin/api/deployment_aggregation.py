"""Aggregates the deployments with one label: each name under a pattern has a breaker of its own."""

from __future__ import annotations

from itertools import islice

from llm_guard.admin.api.health import WORST_FIRST, Group
from llm_guard.admin.restrictions.deployments import Moment
from llm_guard.admin.schemas.models import BreakerOverrideView, BreakerView, BudgetView, GateView, Quantiles

_GATES = 64
"""Gates of one deployment that are sampled for limit and rate: each caller has one, and there may be a thousand."""


def breaker_view(group: Group, forced: BreakerOverrideView | None, moment: Moment) -> BreakerView:
    """Returns the worst breaker's state, with sums over all. `forced`: an operator's override."""
    now = moment.now
    snapshots = [deployment.breaker.snapshot(now) for deployment in group]
    worst = min(snapshots, key=lambda snapshot: WORST_FIRST.index(snapshot.state))
    calls = sum(snapshot.calls for snapshot in snapshots)
    failures = sum(snapshot.failures for snapshot in snapshots)
    probe_at = worst.probe_at if worst.state == "open" else None
    override = forced if worst.is_forced else None
    return BreakerView(
        worst.state,
        worst.is_forced,
        override.reason if override is not None else worst.why,
        override.since if override is not None else moment.iso(worst.outage_at),
        override.until if override is not None else None,
        override.operator if override is not None else None,
        failures / calls if calls else 0.0,
        calls,
        None if probe_at is None else max(0.0, probe_at - now),
        len(group),
    )


def gate_view(group: Group, now: float) -> GateView:
    """Returns the sums of slots and calls, and the lowest rate."""
    gates = [gate for deployment in group for gate in deployment.gates.all()]
    seen = [gate.snapshot(now) for gate in islice(gates, _GATES)]
    limits = [gate.limit for gate in seen if gate.limit is not None]
    return GateView(
        sum(deployment.gates.in_flight for deployment in group),
        sum(limits) if limits else None,
        sum(gate.waiting for gate in gates),
        min((gate.rate for gate in seen if gate.rate is not None), default=None),
    )


def budget_view(group: Group, now: float) -> BudgetView:
    """Returns the sum of tokens, and the lowest ratio."""
    snapshots = [deployment.budget.snapshot(now) for deployment in group]
    return BudgetView(
        round(sum(snapshot.tokens for snapshot in snapshots), 3), min(snapshot.ratio for snapshot in snapshots)
    )


def first_tokens(group: Group, now: float) -> Quantiles:
    """Returns the quantiles of the deployment with the most attempts."""
    snapshots = [deployment.first_tokens.snapshot(now) for deployment in group]
    busiest = max(snapshots, key=lambda snapshot: snapshot.count)
    return Quantiles(busiest.p50_s, busiest.p95_s, busiest.p99_s)
