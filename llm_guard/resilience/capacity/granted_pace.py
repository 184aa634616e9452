"""The pace of calls that wait for grants by another gateway of the fleet, or by this one as keeper.

Takes the place of `resilience.capacity.gate.Paces` in a gate while the gate follows a keeper
(`resilience.capacity.shared_gate`). Learns nothing by itself: what becomes of the calls is reported to the keeper.
"""

from __future__ import annotations

from collections import deque
from math import inf

from llm_guard.resilience.capacity.gate import Paces
from llm_guard.resilience.capacity.pace_report import PaceDecision, PaceGrant, PaceState
from llm_guard.resilience.capacity.pacing import Pace, PacerSnapshot, PaceSnapshot
from llm_guard.resilience.capacity.rate_limit_headers import RateHint
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.throttled_callers import ThrottledCallers
from llm_guard.resilience.capacity.wait_queue import WaitQueue

TURN_S = 0.2
"""Average time until a waiting call is known to the keeper: two exchanges."""
GRANT_S = 0.25
"""A grant is used so long after the keeper has given it: by then it has arrived, and calls go as evenly as they were
granted."""
_KEPT_S = 1.0
"""A grant that its gateway cannot use, for lack of a slot, is given back after so long."""


class GrantedPace(Pace):
    """Lets calls pass with grants, and new calls without one while nothing is limited and no call waits."""

    __slots__ = (
        "_at", "_elsewhere", "_gateways", "_queue", "_received_at", "denied", "grants", "is_beside", "source", "state",
        "used",
    )  # fmt: skip

    def __init__(self, queue: WaitQueue, now: float) -> None:
        super().__init__(now)
        self._queue = queue
        self._at = now
        self._received_at = now
        self._elsewhere = 0
        self._gateways = 1
        self.state = PaceState()
        """The pace in the latest decision."""
        self.grants = deque[tuple[float, PaceGrant]]()
        """With the instant at which each is due."""
        self.source = ""
        """A caller that has this pace; "": all that are not apart."""
        self.denied = 0
        """Calls that could not go at once, not reported yet."""
        self.is_beside = False
        """True if the limit is that of other callers."""
        self.used: PaceGrant | None = None
        """The grant of the call that went last; None: it went without."""

    def update(self, state: PaceState, waiting: int, gateways: int, at: float) -> None:
        """Notes a decision that was published at `at`; `waiting`: calls that wait at the other gateways."""
        self.state, self._elsewhere, self._gateways, self._at = state, max(0, waiting), gateways, at

    def receive(self, grant: PaceGrant, due_at: float, now: float) -> None:
        self.grants.append((due_at, grant))
        self._received_at = now

    def take_excess(self, waiting: int, now: float) -> list[PaceGrant]:
        """Removes and returns the grants that are not needed: `waiting` calls could use them."""
        kept = waiting if now < self._received_at + _KEPT_S else 0
        return [self.grants.pop()[1] for _ in range(len(self.grants) - kept)]

    @property
    def is_limited(self) -> bool:
        return self.state.is_limited

    @property
    def is_accepting(self) -> bool:
        return self.state.rate is not None and self.state.held_since_s is None and not self.state.is_probing

    def hold_opens_at(self) -> float:
        return -inf if self.state.held_s is None else self._at + self.state.held_s

    def opens_at(self, now: float) -> float:  # noqa: ARG002  # grants have their own instants
        if self.grants:
            return self.grants[0][0]
        # Calls that have waited for one limit must not all go at once when it ends.
        return inf if self.is_limited or (self._queue.length and not self.is_beside) else -inf

    def forecast_at(self, now: float) -> float:
        return self.opens_at(now)

    def wait_s(self, ahead: int, now: float) -> float:
        """Returns the estimated seconds until `ahead` calls of this gateway have gone, and one more may. The gateways
        take turns."""
        held_s = max(0.0, self.hold_opens_at() - now) + (TURN_S if self.is_limited or ahead else 0.0)
        rate = self.state.rate
        if rate is None:
            return held_s
        return held_s + (ahead + min(self._elsewhere, (ahead + 1) * (self._gateways - 1))) / rate

    def note_denied(self, now: float) -> None:  # noqa: ARG002  # the keeper has a clock of its own
        self.denied += 1

    def take(self, settings: CapacitySettings, waiting: int, now: float) -> None:  # noqa: ARG002  # the keeper counts
        self.used = self.grants.popleft()[1] if self.grants else None

    def put_back(self, entered_at: float, now: float) -> None:
        """Does nothing: the gate reports it."""

    def note_unused(self, entered_at: float) -> None:
        """Does nothing: the gate reports it."""

    def note_hint(self, hint: RateHint, waiting: int, in_flight: int, sent_at: float, now: float) -> None:
        """Does nothing: the gate reports it."""

    def note_retry_after(self, until: float, since: float, now: float) -> None:
        """Does nothing: the gate reports it."""

    def snapshot(self, now: float) -> PaceSnapshot:
        state, at = self.state, self._at
        held_until = self.hold_opens_at()
        return PaceSnapshot(
            PacerSnapshot(
                state.rate, held_until, state.cause, None if state.since_s is None else at - state.since_s,
                is_probing=state.is_probing,
            ),
            held_until if now < held_until else None,
            None if state.held_since_s is None else at - state.held_since_s,
            is_probing=state.is_probing,
        )  # fmt: skip


class GrantedPaces(Paces):
    """The paces of a gate that follows a keeper."""

    __slots__ = ("_decided_at", "_decision", "_granted", "_granted_apart", "_queue")

    def __init__(self, queue: WaitQueue, now: float) -> None:
        super().__init__(now)
        self._queue = queue
        self._decision, self._decided_at = PaceDecision(0), now
        self.free = self._granted = GrantedPace(queue, now)
        self._granted_apart = GrantedPace(queue, now)

    @property
    def all(self) -> tuple[GrantedPace, GrantedPace]:
        return self._granted, self._granted_apart

    def update(self, decision: PaceDecision, at: float, now: float) -> None:
        """Follows a decision that was published at `at`."""
        self._decision, self._decided_at = decision, at
        elsewhere, gateways = decision.waiting - self._queue.length, len(decision.members)
        self._granted.update(decision.free, elsewhere, gateways, at)
        self._granted_apart.update(decision.apart or PaceState(), elsewhere, gateways, at)
        self._granted.is_beside = decision.apart is not None
        self._granted_apart.source = next(iter(decision.callers), "")
        if decision.apart is None:
            self.apart = None
            self._granted.grants.extend(self._granted_apart.grants)
            self._granted_apart.grants.clear()
        else:
            self.apart = ThrottledCallers(self._granted_apart, list(decision.callers), now)
            self.apart.has_all = decision.has_all

    def receive(self, grant: PaceGrant, now: float) -> None:
        due_at = self._decided_at + grant.granted_at - self._decision.at + GRANT_S
        pace = self.of_known(grant.source)
        (self._granted_apart if pace is self._granted_apart else self._granted).receive(grant, due_at, now)

    def alone(self, gateways: int, settings: CapacitySettings, now: float) -> Paces:
        """Returns paces that begin with an equal part of each rate: no keeper decides any more."""
        paces = Paces(now)
        if self._decision.apart is not None:
            state = self._granted_apart.snapshot(now)
            paces.begin_at(state, gateways, () if self._decision.has_all else self._decision.callers, now)
        if self._granted.is_limited:
            paces.begin_at(self._granted.snapshot(now), gateways, (), now)
        else:
            paces.free.open_for_backlog(settings, self._queue.length, now)
        return paces

    def of(self, caller: str, now: float) -> Pace:  # noqa: ARG002  # the keeper separates callers
        return self.of_known(caller)

    def forecast_of(self, caller: str) -> Pace | None:
        return self.of_known(caller)

    # C passes by position what Python passes by name.

    def note_rate_limited(
        self,
        caller: str,
        entered_at: float,
        settings: CapacitySettings,
        now: float,
        has_waited: bool,
    ) -> None:
        """Does nothing: the gate reports it."""

    def note_accepted(
        self,
        caller: str,
        entered_at: float,
        settings: CapacitySettings,
        waiting: int,
        now: float,
        is_ok: bool,
    ) -> None:
        """Does nothing: the gate reports it."""

    def join_if_limited(self, now: float) -> None:
        """Does nothing: the keeper decides which callers are apart."""

    def reset(self, now: float) -> None:
        """Does nothing: the gate reports it."""

    def release(self, now: float) -> None:
        """Does nothing: a gate that does not pace does not follow."""

    def end_holds(self, now: float) -> None:
        """Does nothing: the gate reports it."""
