"""Which gateway of a fleet decides about the pace of one deployment, and what the others do while none does.

The keeper is elected by a lease. It has a term of its own, higher than those before it: of two that both believe to be
the keeper, all follow the later one. A new keeper continues at the rate that the last one has published. If none is
heard of for two seconds, or the store fails, each gateway goes on with an equal part of the last rate; when they meet
again, the keeper adds the parts up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from llm_guard.resilience.capacity.pace_keeper import PaceKeeper
from llm_guard.resilience.capacity.pace_report import PaceDecision, PaceReport
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.shared_gate import SharedGate

KEEPER_LEASE_S = 0.8
_SILENT_S = 0.5
"""A keeper that was not heard of for so long may have died: another gateway requests the lease."""
_LOST_S = 2.0
"""After so long without any keeper each gateway works alone."""


class PaceSharing:
    """One gateway's part in it, for one deployment and account. Follows `report`, then `conclude` or `work_alone`."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._keeper: PaceKeeper | None = None
        self._decision: PaceDecision | None = None
        """The one that the gate follows."""
        self._decided_at = -inf
        self._listed_at = -inf
        """When a keeper had last heard of this gateway."""
        self._highest_term = 0

    @property
    def is_keeper(self) -> bool:
        return self._keeper is not None

    @property
    def is_shared(self) -> bool:
        """True if this gateway knows of a keeper."""
        return self._decision is not None

    @property
    def has_grants(self) -> bool:
        """True if this gateway is the keeper, and calls of others wait for its decision."""
        decision = self._decision
        if self._keeper is None or decision is None:
            return False
        return decision.is_limited or any(one.grants for one in decision.members.values())

    def wants_lease(self, now: float) -> bool:
        """Returns whether this gateway should be the keeper, or stay it."""
        return self._keeper is not None or now >= self._decided_at + _SILENT_S

    def is_needed(self, gate: SharedGate | None, others: Mapping[str, PaceReport], now: float) -> bool:
        """Returns whether any gateway has to share the pace."""
        is_active = gate is not None and gate.is_active(now)
        is_keeping = self._keeper is not None and self._keeper.is_active
        return is_active or is_keeping or any(report.is_active for report in others.values())

    def report(self, gate: SharedGate | None, now: float) -> PaceReport:
        """Returns what to publish."""
        own = PaceReport() if gate is None else gate.report(now)
        keeper = self._keeper
        if keeper is None:
            return own
        return replace(own, is_active=own.is_active or keeper.is_active, decision=keeper.decision(now))

    def conclude(
        self,
        gate: SharedGate | None,
        settings: CapacitySettings,
        others: Mapping[str, tuple[float, PaceReport]],
        gateways: int,
        now: float,
        *,
        has_lease: bool,
    ) -> None:
        """Applies what the other gateways have published, each with its age."""
        self._elect(settings, others, now, has_lease=has_lease)
        if self._keeper is not None:
            self._decide(self._keeper, gate, others, now)
        if gate is None:
            return
        decision = self._decision
        if decision is not None and now >= self._decided_at + _LOST_S:
            self._decision = None
            gate.work_alone(gateways, now)
        elif decision is not None and self._replica in decision.members:
            self._listed_at = now
            gate.follow(decision, self._replica, now - self._decided_at, now)
        elif now >= self._listed_at + _LOST_S:  # the keeper cannot read what this gateway publishes: no grant will come
            gate.work_alone(gateways, now)

    def end(self, gate: SharedGate | None, now: float) -> None:
        """Shares nothing any more: no gateway has to."""
        self.work_alone(gate, 1, now)

    def work_alone(self, gate: SharedGate | None, gateways: int, now: float) -> None:
        """Goes on without the store."""
        self._keeper = self._decision = None
        self._decided_at = -inf
        if gate is not None:
            gate.work_alone(gateways, now)
            gate.end_report()

    def _elect(
        self,
        settings: CapacitySettings,
        others: Mapping[str, tuple[float, PaceReport]],
        now: float,
        *,
        has_lease: bool,
    ) -> None:
        """Finds the keeper, which may be this gateway."""
        found = [(report.decision.term, replica, age_s, report.decision)
                 for replica, (age_s, report) in others.items() if report.decision is not None]  # fmt: skip
        self._highest_term = max([self._highest_term, *(term for term, *_ in found)])
        latest = max(found, default=None, key=lambda one: one[:2])
        own = (-1, "") if self._keeper is None else (self._keeper.term, self._replica)
        if latest is not None and latest[:2] > own and latest[0] >= self._term:
            self._keeper = None
            self._decision, self._decided_at = latest[3], now - latest[2]
        is_silent = now >= self._decided_at + _SILENT_S
        if not has_lease:
            self._keeper = None
        elif self._keeper is None and is_silent:
            self._highest_term += 1
            self._keeper = PaceKeeper(settings, self._highest_term, self._replica, now)
            if self._decision is not None:
                self._keeper.begin_at(self._decision, now - self._decided_at, now)

    @property
    def _term(self) -> int:
        return 0 if self._decision is None else self._decision.term

    def _decide(
        self, keeper: PaceKeeper, gate: SharedGate | None, others: Mapping[str, tuple[float, PaceReport]], now: float
    ) -> None:
        reports = {replica: report for replica, (_, report) in others.items()}
        if gate is not None:
            reports[self._replica] = gate.report(now)
        keeper.advance(now)
        for replica, report in sorted(reports.items()):
            keeper.note(replica, report, now)
        keeper.keep(reports, now)
        keeper.advance(now)
        self._decision, self._decided_at = keeper.decision(now), now
