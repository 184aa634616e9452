"""Creates deployments and retry budgets, and carries their state over a reload.

While a new route table is built, nothing that is running is changed. `routing.route_table` decides which calls go
where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from llm_guard.config import Rules
from llm_guard.resilience.capacity.gate import CapacitySettings, Gate
from llm_guard.resilience.capacity.response_memory import ResponseMemory
from llm_guard.resilience.causes.provider_errors import ErrorLog
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.callers import Callers
from llm_guard.resilience.retry.hedging import HedgeBudget, HedgeSettings
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget
from llm_guard.routing.deployment import Deployment, FailingDeployments, Gates, NewGate, Upstream

NewBreaker = Callable[[BreakerSettings, float], Breaker]
NewCallers = Callable[[], Callers]

_Identity = tuple[str, str, str | None]
_Share = tuple[_Identity, BreakerSettings, BudgetSettings, CapacitySettings]


class DeploymentObservers:
    """Functions that get each deployment that is created or carried over. They outlive the registries, which a reload
    replaces."""

    def __init__(self) -> None:
        self._observers: list[Callable[[Deployment], None]] = []

    def subscribe(self, observe: Callable[[Deployment], None]) -> None:
        """Calls `observe` from now on, before a call can reach the deployment; it must not raise."""
        self._observers.append(observe)

    def notify(self, deployment: Deployment) -> None:
        """Passes a deployment to all functions, in the order of their subscription."""
        for observe in self._observers:
            observe(deployment)


class DeploymentRegistry:
    """Creates deployments, each with the state of its predecessor if that is not yet taken.

    `fixed` are the deployments that the config names; models that name the same one share it if they agree on its
    breaker, its budget and its capacity.
    """

    def __init__(
        self,
        now: float,
        host: BreakerSettings,
        draw: Callable[[], float],
        previous: DeploymentRegistry | None,
        before: Iterable[Deployment],
        new_breaker: NewBreaker = Breaker,
        new_gate: NewGate = Gate,
        new_callers: NewCallers = Callers,
    ) -> None:
        """`before` are all deployments of the previous table, including those found through patterns. `new_breaker`
        and `new_callers` create the breaker and the callers of a deployment, `new_gate` the gate of an account."""
        self.fixed: dict[_Share, Deployment] = {}
        self._now = now
        self._draw = draw
        self._host = host
        self._new_breaker = new_breaker
        self._new_gate = new_gate
        self._new_callers = new_callers
        self.budgets: dict[str, RetryBudget] = dict(previous.budgets) if previous else {}
        """Retry budgets of routes, by alias."""
        self.hedges: dict[str, HedgeBudget] = dict(previous.hedges) if previous else {}
        self.down: FailingDeployments = previous.down if previous else FailingDeployments()
        """Deployments that fail their probes and are tried last."""
        self.translation_memory: ResponseMemory = previous.translation_memory if previous else ResponseMemory()
        """Memory of all large requests that are translated."""
        self.observers: DeploymentObservers = previous.observers if previous else DeploymentObservers()
        self._hosts: dict[tuple[str, str], Breaker] = {}
        self._errors: dict[tuple[str, str], ErrorLog] = {}
        self._previous: dict[_Identity, list[Deployment]] = {}
        for deployment in before:
            place = (deployment.upstream.name, deployment.upstream.base_url)
            self._hosts[place], self._errors[place] = deployment.host, deployment.upstream_errors
            self._previous.setdefault(_identity(deployment.upstream, deployment.model), []).append(deployment)
        self._waiting: list[Callable[[], None]] | None = []
        """Changes to running objects, delayed until `take_over`; None after it: changes are then applied at once."""

    def take_over(self) -> None:
        """Applies the delayed changes: the new settings take effect on the objects that were carried over."""
        waiting, self._waiting = self._waiting, None
        for act in waiting or ():
            act()

    def forget_previous(self) -> None:
        self._previous.clear()

    def budget(self, alias: str, settings: BudgetSettings) -> RetryBudget:
        """Returns a route's retry budget. All names under one pattern share it."""
        budget = self.budgets.get(alias)
        if budget is None:
            budget = self.budgets[alias] = RetryBudget(settings, self._now)
        self._do(partial(_follow, budget, settings))
        return budget

    def hedge_budget(self, alias: str, settings: HedgeSettings) -> HedgeBudget:
        """Returns a route's hedging budget."""
        budget = self.hedges.get(alias)
        if budget is None:
            budget = self.hedges[alias] = HedgeBudget(settings)
        self._do(partial(_follow_hedging, budget, settings))
        return budget

    def obtain(self, label: str, upstream: Upstream, model: str | None, rules: Rules, *, is_fixed: bool) -> Deployment:
        share = (_identity(upstream, model), rules.breaker, rules.retry.budget, rules.capacity)
        deployment = self.fixed.get(share)
        if deployment is None:
            deployment = self._make(label, upstream, model, rules)
            self._do(partial(self._settle, deployment, rules))
            if is_fixed:
                self.fixed[share] = deployment
        return deployment

    def _make(self, label: str, upstream: Upstream, model: str | None, rules: Rules) -> Deployment:
        before = self._take(_identity(upstream, model), rules.breaker, rules.retry.budget)
        place = (upstream.name, upstream.base_url)
        host = self._hosts.get(place)
        if host is None:
            host = self._hosts[place] = Breaker(self._host, self._draw())
        errors = self._errors.setdefault(place, ErrorLog())
        if before is None:
            budget = RetryBudget(rules.retry.budget, self._now)
            breaker = self._new_breaker(rules.breaker, self._draw())
            return Deployment(
                label, upstream, model, breaker, budget, host, Gates(rules.capacity, self._new_gate),
                self._new_callers(), upstream_errors=errors,
            )  # fmt: skip
        return replace(before, label=label, upstream=upstream, model=model, host=host, upstream_errors=errors)

    def _take(self, identity: _Identity, breaker: BreakerSettings, budget: BudgetSettings) -> Deployment | None:
        """Takes a previous deployment of this identity: one with unchanged settings if there is one, else the first."""
        candidates = self._previous.get(identity, [])
        unchanged = (
            candidate
            for candidate in candidates
            if (candidate.breaker.settings, candidate.budget.settings) == (breaker, budget)
        )
        taken = next(unchanged, candidates[0] if candidates else None)
        if taken is not None:
            candidates.remove(taken)
        return taken

    def _settle(self, deployment: Deployment, rules: Rules) -> None:
        deployment.host.settings = self._host
        deployment.adopt(rules.breaker, rules.retry.budget)
        deployment.gates.adopt(rules.capacity)
        self.observers.notify(deployment)

    def _do(self, act: Callable[[], None]) -> None:
        if self._waiting is None:
            act()
        else:
            self._waiting.append(act)


def _identity(upstream: Upstream, model: str | None) -> _Identity:
    return upstream.name, upstream.base_url, model


def _follow(budget: RetryBudget, settings: BudgetSettings) -> None:
    budget.settings = settings


def _follow_hedging(budget: HedgeBudget, settings: HedgeSettings) -> None:
    budget.settings = settings
