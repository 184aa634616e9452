"""Selects the next deployment of a call's route that admits the call, now or after a wait.

All waits of a call happen here: for a backoff, a Retry-After, or a place in a wait queue. `resilience.retry.decision`
decides what follows a failure, `proxy.attempts.admission` whether a deployment admits the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llm_guard.clock import Clock
from llm_guard.proxy.attempts.admission import AdmissionControl, AtCapacity, QueueGrant, Unavailable
from llm_guard.proxy.call import Attempt, Call, Skipped
from llm_guard.proxy.caller_identity import suspect_of
from llm_guard.proxy.translation.interfaces import CallTranslator
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.limits import RetryBudget, try_spend_all
from llm_guard.resilience.routing.candidates import (
    Candidate,
    Candidates,
    LoadCandidate,
    WaitedFor,
    arranged,
    can_finish,
    failing_last,
)
from llm_guard.resilience.throttling.release_spreading import WORTH_SPREADING_S
from llm_guard.routing.deployment import FailingDeployments
from llm_guard.routing.lease import Lease
from llm_guard.routing.route_table import Route, Target

# Two or three exchanges of a fleet, in which the lease for probes may be granted.
_PROBE_WAIT_S = 0.05
_PROBE_WAITS = 6


@dataclass(frozen=True, slots=True)
class _Wait:
    seconds: float
    candidate: Candidate
    is_for_turn: bool


class CandidateSelector:
    """Yields one deployment after the other to a call, until one has answered well or none is left."""

    __slots__ = (
        "_admission", "_clock", "call", "candidates", "latest", "rejected", "route", "tried_since", "wait_reason",
    )  # fmt: skip

    def __init__(
        self, call: Call, route: Route, admission: AdmissionControl, clock: Clock, draw: Callable[[], float]
    ) -> None:
        self.call = call
        self.route = route
        self.rejected: list[Unavailable | AtCapacity] = []
        """The reasons for which deployments were dropped without an attempt."""
        self.latest: Attempt | None = None
        """The attempt that provided the latest response; set by the attempt loop."""
        self.wait_reason: WaitedFor = ""
        """The reason of the call's wait before the current deployment; empty if it did not wait."""
        self.tried_since = clock.now()
        """The instant at which the call was first tried, or its stream died."""
        self._admission = admission
        self._clock = clock
        targets = route.targets
        if len(targets) == 1 or call.is_sticky:
            self.candidates = Candidates([Candidate(0, targets[0].alias)])
        else:
            order = order_of(targets, route, self.tried_since, draw)
            self.candidates = Candidates([Candidate(place, targets[place].alias) for place in order])

    def target(self, candidate: Candidate) -> Target:
        return self.route.targets[candidate.place]

    def budgets(self, candidate: Candidate) -> tuple[RetryBudget, ...]:
        """Returns the budgets from each of which a retry takes a token: the deployment's and the route's, or only the
        caller's if that caller is judged separately."""
        deployment = self.route.targets[candidate.place].deployment
        if deployment.callers.has_failures:
            suspect = suspect_of(self.call, deployment, self._clock.now())
            if suspect is not None:
                return (suspect.budget,)
        return (deployment.budget, self.route.budget)

    async def next(self) -> tuple[Candidate, Lease] | None:
        """Returns the next deployment and a lease on it; None if none is left."""
        self.wait_reason = ""
        while stops := self.candidates.next():
            waits: list[_Wait] = []
            for candidate in stops:
                if waits and self._waits_for_own_model(waits, candidate):
                    break
                if self.call.translation is not None and not await self._prepare(self.call.translation, candidate):
                    continue
                found = self._try(candidate)
                if isinstance(found, Lease):
                    if waits:
                        self._defer(waits)
                    return candidate, found
                if found is not None:
                    waits.append(found)
            if any(wait.is_for_turn for wait in waits) and self.candidates.release():
                continue  # another deployment may have room: try those before queueing here
            if waits:
                wait = min(waits, key=lambda wait: wait.seconds)
                lease = await self._pass_timed(wait)
                if lease is not None:
                    return wait.candidate, lease
        return None

    async def _prepare(self, translation: CallTranslator, candidate: Candidate) -> bool:
        """Translates the request, if this deployment needs that. Drops the deployment if that is not possible: before
        it costs a permit, a slot or a token of any budget."""
        target = self.target(candidate)
        if translation.is_ready(target):
            return True
        why = await translation.prepare(target)
        if why is not None:
            self._drop(candidate, why)
        return why is None

    def preferred(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """Returns the deployments to try before waiting for this one: those of the same model, or all others if the
        model has no `fallback_after`."""
        return (
            self.candidates.peers(candidate)
            if self.target(candidate).retry.fallback_after
            else self.candidates.others(candidate)
        )

    def has_free(self, stops: tuple[Candidate, ...]) -> bool:
        """Returns True if one of them would admit the call at once."""
        return next(self._free(stops), None) is not None

    def has_free_key(self, candidate: Candidate) -> bool:
        """Returns True if another key of its upstream could be used now."""
        return self._admission.has_free_key(self.call, self.target(candidate))

    def free_peer(self, candidate: Candidate) -> Candidate | None:
        """Returns another deployment of the same model that would admit the call at once, if any."""
        return next(self._free(self.candidates.peers(candidate)), None)

    def fallback_at(self, candidate: Candidate) -> float:
        """Returns the instant from which a fallback to another model is preferred to a wait for this one."""
        half_s = (self.call.commit_by - self.tried_since) / 2
        return self.tried_since + min(self.target(candidate).retry.fallback_after, half_s)

    def try_enter(self, candidate: Candidate) -> Lease | None:
        """Returns a lease for a hedge on this deployment; None if it does not admit the call at once."""
        found = self._admission.try_enter(self.call, self.target(candidate), hint_patience_s=0.0)
        return found if isinstance(found, Lease) else None

    def _free(self, stops: tuple[Candidate, ...]) -> Iterator[Candidate]:
        now = self._clock.now()
        for candidate in stops:
            target = self.target(candidate)
            if candidate.not_before > now or not self._admission.is_free(self.call, target):
                continue
            if self.call.translation is None or self.call.translation.is_ready(target):
                yield candidate

    def _waits_for_own_model(self, waits: list[_Wait], candidate: Candidate) -> bool:
        """Returns True if the call should wait for a deployment before `candidate` rather than fall back to its
        model."""
        first = waits[0].candidate
        if candidate.alias == first.alias or not self.target(first).retry.fallback_after:
            return False
        return self._clock.now() + min(wait.seconds for wait in waits) <= self.fallback_at(first)

    def _may_fall_back(self, candidate: Candidate) -> bool:
        """Returns True if a fallback to another model is left, but only after `fallback_after`."""
        if not self.target(candidate).retry.fallback_after:
            return False
        return any(other.alias != candidate.alias for other in self.candidates.others(candidate))

    def _hint_patience_s(self, candidate: Candidate) -> float:
        """Returns the longest Retry-After, in seconds, that the call waits out instead of dropping the deployment."""
        target = self.target(candidate)
        if not self.candidates.has_others():
            return target.retry.max_delay
        return hint_patience_s(
            target.retry, bool(self.preferred(candidate)), max(0.0, self.fallback_at(candidate) - self._clock.now())
        )

    def _try(self, candidate: Candidate) -> Lease | _Wait | None:
        """Returns a lease, or the wait before the next try; None if the deployment is dropped."""
        if self.call.recovery is not None and self.call.recovery.resume_mode(self.target(candidate)) is None:
            self._drop(candidate, "cannot resume the stream")
            return None
        if self.call.attempts:  # the first attempt is always made
            now = self._clock.now()
            if candidate.not_before > now and self._is_in_time(candidate, candidate.not_before):
                return _Wait(candidate.not_before - now, candidate, is_for_turn=False)
            if not self._is_worth_asking(candidate, now):
                return None
        return self._ask_entrance(candidate, None)

    def _is_worth_asking(self, candidate: Candidate, now: float) -> bool:
        """Returns True if time and retry budget are left for this deployment; otherwise drops it."""
        if not self._is_in_time(candidate, max(now, candidate.not_before)):
            self._drop(candidate, "deadline")
        elif _is_owed(candidate) and not all(budget.can_spend(now) for budget in self.budgets(candidate)):
            self._drop(candidate, "retry budget empty")
        else:
            return True
        return False

    def _ask_entrance(self, candidate: Candidate, grant: QueueGrant | None) -> Lease | _Wait | None:
        target = self.route.targets[candidate.place]
        patience_s = self._hint_patience_s(candidate) if self._admission.has_cooldowns() else 0.0
        found = self._admission.try_enter(self.call, target, hint_patience_s=patience_s, grant=grant)
        if isinstance(found, Lease):
            if candidate.retries and _is_owed(candidate):
                candidate.is_paid = try_spend_all(self.budgets(candidate), self._clock.now())
            return found
        if isinstance(found, AtCapacity) and found.has_place and found.wait_s <= self._patience_s(candidate):
            return _Wait(found.wait_s, candidate, is_for_turn=True)
        if isinstance(found, Unavailable) and found.awaits_lease and candidate.probe_waits < _PROBE_WAITS:
            candidate.probe_waits += 1
            candidate.waited_for = "probe"
            return _Wait(_PROBE_WAIT_S, candidate, is_for_turn=False)
        self._reject(candidate, found)
        return None

    async def _pass_timed(self, wait: _Wait) -> Lease | None:
        self.wait_reason = "queue" if wait.is_for_turn else wait.candidate.waited_for
        since = self._clock.now()
        try:
            return await self._pass(wait)
        finally:
            self.call.waited_s = round(self.call.waited_s + self._clock.now() - since, 9)

    async def _pass(self, wait: _Wait) -> Lease | None:
        """Waits. Returns a lease if the wait was for a queue grant and the grant has come."""
        if not wait.is_for_turn:
            await self._clock.sleep(wait.seconds)
            self._spread(wait.candidate)
            return None
        now = self._clock.now()
        until = now + self._patience_s(wait.candidate)
        is_interim = now < (fallback_at := self.fallback_at(wait.candidate)) < until and self._may_fall_back(
            wait.candidate
        )
        turn = await self._admission.wait_turn(
            self.call, self.target(wait.candidate), fallback_at if is_interim else until
        )
        if isinstance(turn, AtCapacity):
            if not (is_interim and turn.has_place):
                self._reject(wait.candidate, turn)
            return None
        if not self._is_worth_asking(wait.candidate, self._clock.now()):
            self._admission.give_back(turn)
            return None
        found = self._ask_entrance(wait.candidate, turn)
        return found if isinstance(found, Lease) else None

    def _spread(self, candidate: Candidate) -> None:
        """Delays a call at the end of its Retry-After, so that a backlog does not return all at once
        (`resilience.throttling.release_spreading`)."""
        if candidate.waited_for != "retry-after" or (candidate.previous_s or 0.0) < WORTH_SPREADING_S:
            return
        deployment, now = self.target(candidate).deployment, self._clock.now()
        candidate.not_before = now + deployment.returns.take(deployment.budget.calls, now)
        candidate.waited_for = "queue"

    def _patience_s(self, candidate: Candidate) -> float:
        """Returns how long the call may wait in the queue."""
        return min(self.target(candidate).queue_wait_s, self.call.commit_by - self._clock.now())

    def _is_in_time(self, candidate: Candidate, at: float) -> bool:
        """Returns True if an attempt begun at `at` could end before the deadline. The first attempt is always made."""
        if not self.call.attempts:
            return True
        deployment = self.target(candidate).deployment
        latency = deployment.first_tokens if self.call.is_stream else deployment.latency
        return can_finish(at, self.call.commit_by, latency)

    def _defer(self, waits: list[_Wait]) -> None:
        """Records deployments that were at capacity when another had room; they stay candidates."""
        for wait in waits:
            if wait.is_for_turn:
                self.call.skipped.append(Skipped(self.target(wait.candidate).deployment.label, "at capacity"))

    def _reject(self, candidate: Candidate, why: Unavailable | AtCapacity) -> None:
        self.rejected.append(why)
        deployment = self.target(candidate).deployment
        is_full = isinstance(why, AtCapacity)
        is_held = isinstance(why, Unavailable) and why.is_held
        if is_full:
            deployment.full.note(self._clock.now())
        deployment.held += is_held
        self._drop(candidate, why.why, () if is_held else deployment.failed_calls())

    def _drop(self, candidate: Candidate, why: str, failed_calls: tuple[str, ...] = ()) -> None:
        self.call.skipped.append(Skipped(self.target(candidate).deployment.label, why, failed_calls))
        self.candidates.drop(candidate)


def hint_patience_s(settings: RetrySettings, has_preferred: bool, until_fallback_s: float) -> float:
    """Returns the longest Retry-After, in seconds, that a call waits out while another deployment is left: 0 if that
    one is preferred to a wait. `until_fallback_s` is the longest wait before a fallback to another model."""
    return 0.0 if has_preferred else min(settings.max_delay, until_fallback_s)


def _is_owed(candidate: Candidate) -> bool:
    """Returns True if the next retry here has not yet been charged to the retry budgets."""
    return candidate.retries > 0 and not candidate.is_paid


def order_of(targets: tuple[Target, ...], route: Route, now: float, draw: Callable[[], float]) -> tuple[int, ...]:
    """Returns the order in which a call tries the targets, as their indexes in the route."""
    order = tuple(range(len(targets)))
    if route.balance != "order":
        order = arranged([_candidate(target, now) for target in targets], route.balance, draw)
    if route.has_peers:
        shares = [target.deployment.budget.recent.failure_share(now) for target in targets]
        if any(shares):
            order = failing_last(order, [target.group for target in targets], shares)
    return _down_last(order, targets, route.down) if route.down.keys else order


def _down_last(order: tuple[int, ...], targets: tuple[Target, ...], down: FailingDeployments) -> tuple[int, ...]:
    """Moves deployments that are down to the end; apart from that the order stays."""
    first = [place for place in order if not down.has(targets[place].deployment)]
    return (*first, *[place for place in order if down.has(targets[place].deployment)])


def _candidate(target: Target, now: float) -> LoadCandidate:
    deployment = target.deployment
    return LoadCandidate(target.group, target.weight, deployment.gates.in_flight, deployment.cost.cost_s(now))
