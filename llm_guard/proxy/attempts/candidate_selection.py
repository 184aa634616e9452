"""Selects the next deployment of a call's route that admits the call, now or after a wait.

All waits of a call happen here: for a backoff, a Retry-After, or a place in a wait queue. `policy.next_step` decides
what follows a failure, `gateway.entrance` whether a deployment admits the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llm_guard.call import Call, Skipped
from llm_guard.clock import Clock
from llm_guard.deployment import Down
from llm_guard.gateway.caller import suspect_of
from llm_guard.gateway.entrance import Entrance, Full, Shut, Turn
from llm_guard.leave import Leave
from llm_guard.policy.backoff import RetrySettings
from llm_guard.policy.balance import Candidate, arranged, failing_last
from llm_guard.policy.deadline import can_finish
from llm_guard.policy.itinerary import Itinerary, Stop, WaitedFor
from llm_guard.policy.retry_budget import RetryBudget, try_spend_all
from llm_guard.policy.returns import WORTH_SPREADING_S
from llm_guard.routes import Route, Target


@dataclass(frozen=True, slots=True)
class _Wait:
    seconds: float
    stop: Stop
    is_for_turn: bool


class Way:
    """Yields one deployment after the other to a call, until one has answered well or none is left."""

    __slots__ = ("_clock", "_entrance", "call", "left_out", "line", "route", "tried_since", "waited_for")

    def __init__(self, call: Call, route: Route, entrance: Entrance, clock: Clock, draw: Callable[[], float]) -> None:
        self.call = call
        self.route = route
        self.left_out: list[Shut | Full] = []
        """The reasons for which deployments were dropped without an attempt."""
        self.waited_for: WaitedFor = ""
        """The reason of the call's wait before the current deployment; empty if it did not wait."""
        self.tried_since = clock.now()
        """The instant at which the call was first tried, or its stream died."""
        self._entrance = entrance
        self._clock = clock
        targets = route.targets
        if len(targets) == 1 or call.is_bound:
            self.line = Itinerary([Stop(0, targets[0].alias)])
        else:
            order = order_of(targets, route, clock, draw)
            self.line = Itinerary([Stop(place, targets[place].alias) for place in order])

    def target(self, stop: Stop) -> Target:
        return self.route.targets[stop.place]

    def budgets(self, stop: Stop) -> tuple[RetryBudget, ...]:
        """Returns the budgets from each of which a retry takes a token: the deployment's and the route's, or only the
        caller's if that caller is judged separately."""
        deployment = self.route.targets[stop.place].deployment
        if deployment.callers.has_failures:
            suspect = suspect_of(self.call, deployment, self._clock.now())
            if suspect is not None:
                return (suspect.budget,)
        return (deployment.budget, self.route.budget)

    async def next(self) -> tuple[Stop, Leave] | None:
        """Returns the next deployment and a lease on it; None if none is left."""
        self.waited_for = ""
        while stops := self.line.next():
            waits: list[_Wait] = []
            for stop in stops:
                if waits and self._waits_for_own_model(waits, stop):
                    break
                found = self._try(stop)
                if isinstance(found, Leave):
                    if waits:
                        self._pass_over(waits)
                    return stop, found
                if found is not None:
                    waits.append(found)
            if any(wait.is_for_turn for wait in waits) and self.line.release():
                continue  # another deployment may have room: try those before queueing here
            if waits:
                wait = min(waits, key=lambda each: each.seconds)
                leave = await self._pass_timed(wait)
                if leave is not None:
                    return wait.stop, leave
        return None

    def preferred(self, stop: Stop) -> tuple[Stop, ...]:
        """Returns the deployments to try before waiting for this one: those of the same model, or all others if the
        model has no `fallback_after`."""
        return self.line.peers(stop) if self.target(stop).retry.fallback_after else self.line.others(stop)

    def has_free(self, stops: tuple[Stop, ...]) -> bool:
        """Returns True if one of them would admit the call at once."""
        return next(self._free(stops), None) is not None

    def has_free_key(self, stop: Stop) -> bool:
        """Returns True if another key of its upstream could be used now."""
        return self._entrance.has_free_key(self.call, self.target(stop))

    def free_peer(self, stop: Stop) -> Stop | None:
        """Returns another deployment of the same model that would admit the call at once, if any."""
        return next(self._free(self.line.peers(stop)), None)

    def fallback_at(self, stop: Stop) -> float:
        """Returns the instant from which a fallback to another model is preferred to a wait for this one."""
        half_s = (self.call.commit_by - self.tried_since) / 2
        return self.tried_since + min(self.target(stop).retry.fallback_after, half_s)

    def try_enter(self, stop: Stop) -> Leave | None:
        """Returns a lease for a hedge on this deployment; None if it does not admit the call at once."""
        found = self._entrance.try_enter(self.call, self.target(stop), hint_patience_s=0.0)
        return found if isinstance(found, Leave) else None

    def _free(self, stops: tuple[Stop, ...]) -> Iterator[Stop]:
        now = self._clock.now()
        for stop in stops:
            if stop.not_before <= now and self._entrance.is_free(self.call, self.target(stop)):
                yield stop

    def _waits_for_own_model(self, waits: list[_Wait], stop: Stop) -> bool:
        """Returns True if the call should wait for a deployment before `stop` rather than fall back to its model."""
        first = waits[0].stop
        if stop.alias == first.alias or not self.target(first).retry.fallback_after:
            return False
        return self._clock.now() + min(wait.seconds for wait in waits) <= self.fallback_at(first)

    def _may_fall_back(self, stop: Stop) -> bool:
        """Returns True if a fallback to another model is left, but only after `fallback_after`."""
        if not self.target(stop).retry.fallback_after:
            return False
        return any(other.alias != stop.alias for other in self.line.others(stop))

    def _hint_patience_s(self, stop: Stop) -> float:
        """Returns the longest Retry-After, in seconds, that the call waits out instead of dropping the deployment."""
        target = self.target(stop)
        if not self.line.has_others():
            return target.retry.max_delay
        return hint_patience_s(
            target.retry, bool(self.preferred(stop)), max(0.0, self.fallback_at(stop) - self._clock.now())
        )

    def _try(self, stop: Stop) -> Leave | _Wait | None:
        """Returns a lease, or the wait before the next try; None if the deployment is dropped."""
        if self.call.recovery is not None and self.call.recovery.manner(self.target(stop)) is None:
            self._drop(stop, "cannot go on with the stream")
            return None
        if self.call.attempts:  # the first attempt is always made
            now = self._clock.now()
            if stop.not_before > now and self._is_in_time(stop, stop.not_before):
                return _Wait(stop.not_before - now, stop, is_for_turn=False)
            if not self._is_worth_asking(stop, now):
                return None
        return self._ask_entrance(stop, None)

    def _is_worth_asking(self, stop: Stop, now: float) -> bool:
        """Returns True if time and retry budget are left for this deployment; otherwise drops it."""
        if not self._is_in_time(stop, max(now, stop.not_before)):
            self._drop(stop, "deadline")
        elif _is_owed(stop) and not all(budget.can_spend(now) for budget in self.budgets(stop)):
            self._drop(stop, "retry budget empty")
        else:
            return True
        return False

    def _ask_entrance(self, stop: Stop, turn: Turn | None) -> Leave | _Wait | None:
        target = self.route.targets[stop.place]
        patience_s = self._hint_patience_s(stop) if self._entrance.has_cooldowns() else 0.0
        found = self._entrance.try_enter(self.call, target, hint_patience_s=patience_s, turn=turn)
        if isinstance(found, Leave):
            if stop.retries and _is_owed(stop):
                stop.is_paid = try_spend_all(self.budgets(stop), self._clock.now())
            return found
        if isinstance(found, Full) and found.has_place and found.wait_s <= self._patience_s(stop):
            return _Wait(found.wait_s, stop, is_for_turn=True)
        self._leave_out(stop, found)
        return None

    async def _pass_timed(self, wait: _Wait) -> Leave | None:
        self.waited_for = "queue" if wait.is_for_turn else wait.stop.waited_for
        since = self._clock.now()
        try:
            return await self._pass(wait)
        finally:
            self.call.waited_s = round(self.call.waited_s + self._clock.now() - since, 9)

    async def _pass(self, wait: _Wait) -> Leave | None:
        """Waits. Returns a lease if the wait was for a queue grant and the grant has come."""
        if not wait.is_for_turn:
            await self._clock.sleep(wait.seconds)
            self._spread(wait.stop)
            return None
        now = self._clock.now()
        until = now + self._patience_s(wait.stop)
        is_interim = now < (fallback_at := self.fallback_at(wait.stop)) < until and self._may_fall_back(wait.stop)
        turn = await self._entrance.wait_turn(self.call, self.target(wait.stop), fallback_at if is_interim else until)
        if isinstance(turn, Full):
            if not (is_interim and turn.has_place):
                self._leave_out(wait.stop, turn)
            return None
        if not self._is_worth_asking(wait.stop, self._clock.now()):
            self._entrance.give_back(turn)
            return None
        found = self._ask_entrance(wait.stop, turn)
        return found if isinstance(found, Leave) else None

    def _spread(self, stop: Stop) -> None:
        """Delays a call at the end of its Retry-After, so that a backlog does not return all at once
        (`policy.returns`)."""
        if stop.waited_for != "retry-after" or (stop.previous_s or 0.0) < WORTH_SPREADING_S:
            return
        deployment, now = self.target(stop).deployment, self._clock.now()
        stop.not_before = now + deployment.returns.take(deployment.budget.calls, now)
        stop.waited_for = "queue"

    def _patience_s(self, stop: Stop) -> float:
        """Returns how long the call may wait in the queue."""
        return min(self.target(stop).queue_wait_s, self.call.commit_by - self._clock.now())

    def _is_in_time(self, stop: Stop, at: float) -> bool:
        """Returns True if an attempt begun at `at` could end before the deadline. The first attempt is always made."""
        if not self.call.attempts:
            return True
        deployment = self.target(stop).deployment
        latency = deployment.first_tokens if self.call.is_stream else deployment.latency
        return can_finish(at, self.call.commit_by, latency)

    def _pass_over(self, waits: list[_Wait]) -> None:
        """Records deployments that were at capacity when another had room; they stay candidates."""
        for wait in waits:
            if wait.is_for_turn:
                self.call.skipped.append(Skipped(self.target(wait.stop).deployment.label, "no room now"))

    def _leave_out(self, stop: Stop, why: Shut | Full) -> None:
        self.left_out.append(why)
        self._drop(stop, why.why)

    def _drop(self, stop: Stop, why: str) -> None:
        self.call.skipped.append(Skipped(self.target(stop).deployment.label, why))
        self.line.drop(stop)


def hint_patience_s(settings: RetrySettings, has_preferred: bool, until_fallback_s: float) -> float:
    """Returns the longest Retry-After, in seconds, that a call waits out while another deployment is left: 0 if that
    one is preferred to a wait. `until_fallback_s` is the longest wait before a fallback to another model."""
    return 0.0 if has_preferred else min(settings.max_delay, until_fallback_s)


def _is_owed(stop: Stop) -> bool:
    """Returns True if the next retry here has not yet been charged to the retry budgets."""
    return stop.retries > 0 and not stop.is_paid


def order_of(
    targets: tuple[Target, ...], route: Route, clock: Clock, draw: Callable[[], float]
) -> tuple[int, ...] | range:  # fmt: skip
    """Returns the order in which a call tries the targets, as their indexes in the route."""
    now = clock.now()
    order: tuple[int, ...] | range
    if route.balance == "order":
        order = range(len(targets))
    else:
        order = arranged([_candidate(target, now) for target in targets], route.balance, draw)
    if route.has_peers:
        shares = [target.deployment.budget.recent.failure_share(now) for target in targets]
        if any(shares):
            order = failing_last(order, [target.group for target in targets], shares)
    return _down_last(order, targets, route.down) if route.down.keys else order


def _down_last(order: tuple[int, ...] | range, targets: tuple[Target, ...], down: Down) -> tuple[int, ...]:
    """Moves deployments that are down to the end; apart from that the order stays."""
    first = [place for place in order if not down.has(targets[place].deployment)]
    return (*first, *[place for place in order if down.has(targets[place].deployment)])


def _candidate(target: Target, now: float) -> Candidate:
    deployment = target.deployment
    return Candidate(target.group, target.weight, deployment.gates.in_flight, deployment.cost.cost_s(now))
