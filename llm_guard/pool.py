"""Deployments and retry budgets over reloads: each is made once, and made anew with what was known of it.

Owns what is carried over, and when: while a table is built, nothing that runs is touched. Does not own which calls go
to which deployment (`routes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from llm_guard.config import Rules
from llm_guard.deployment import Deployment, Down, Gates, Upstream
from llm_guard.policy.breaker import Breaker, BreakerSettings
from llm_guard.policy.gate import CapacitySettings
from llm_guard.policy.hedge import HedgeBudget, HedgeSettings
from llm_guard.policy.retry_budget import BudgetSettings, RetryBudget

Dress = Callable[[Deployment], None]

_Identity = tuple[str, str, str | None]
_Share = tuple[_Identity, BreakerSettings, BudgetSettings, CapacitySettings]


class Pool:
    """Makes deployments, each with what was known of it before if nobody else has taken that.

    `fixed` are the deployments that the config names; models that name the same one share it if they agree on its
    breaker, its budget and its capacity.
    """

    def __init__(
        self,
        now: float,
        host: BreakerSettings,
        draw: Callable[[], float],
        previous: Pool | None,
        before: Iterable[Deployment],
    ) -> None:
        """`before`: the deployments of `previous`, also those that it has not kept."""
        self.fixed: dict[_Share, Deployment] = {}
        self._now = now
        self._draw = draw
        self._host = host
        self.budgets: dict[str, RetryBudget] = dict(previous.budgets) if previous else {}
        """Of the routes' retries, by their aliases."""
        self.hedges: dict[str, HedgeBudget] = dict(previous.hedges) if previous else {}
        self.down: Down = previous.down if previous else Down()
        """Who was found down, and is asked last."""
        self.dress: Dress = previous.dress if previous else _as_it_is
        """For every deployment, when it is made or made anew: what operators have said of its label goes for it too."""
        self._hosts: dict[tuple[str, str], Breaker] = {}
        self._previous: dict[_Identity, list[Deployment]] = {}
        for deployment in before:
            self._hosts[deployment.upstream.name, deployment.upstream.base_url] = deployment.host
            self._previous.setdefault(_identity(deployment.upstream, deployment.model), []).append(deployment)
        self._waiting: list[Callable[[], None]] | None = []
        """What is to be done to what runs; None: it has been, and all that follows is done at once."""

    def take_over(self) -> None:
        """From now on these settings hold for what was carried over."""
        waiting, self._waiting = self._waiting, None
        for act in waiting or ():
            act()

    def forget_previous(self) -> None:
        self._previous.clear()

    def budget(self, alias: str, settings: BudgetSettings) -> RetryBudget:
        """Of a route's retries. All names under one pattern share it."""
        budget = self.budgets.get(alias)
        if budget is None:
            budget = self.budgets[alias] = RetryBudget(settings, self._now)
        self._do(partial(_follow, budget, settings))
        return budget

    def hedge_budget(self, alias: str, settings: HedgeSettings) -> HedgeBudget:
        """Of a route's second attempts."""
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
        host = self._hosts.get((upstream.name, upstream.base_url))
        if host is None:
            host = self._hosts[upstream.name, upstream.base_url] = Breaker(self._host, self._draw())
        if before is None:
            budget = RetryBudget(rules.retry.budget, self._now)
            breaker = Breaker(rules.breaker, self._draw())
            return Deployment(label, upstream, model, breaker, budget, host, Gates(rules.capacity))
        return replace(before, label=label, upstream=upstream, model=model, host=host)

    def _take(self, identity: _Identity, breaker: BreakerSettings, budget: BudgetSettings) -> Deployment | None:
        """Of two with one identity the one whose settings have not changed, else the first."""
        candidates = self._previous.get(identity, [])
        unchanged = (each for each in candidates if (each.breaker.settings, each.budget.settings) == (breaker, budget))
        taken = next(unchanged, candidates[0] if candidates else None)
        if taken is not None:
            candidates.remove(taken)
        return taken

    def _settle(self, deployment: Deployment, rules: Rules) -> None:
        deployment.host.settings = self._host
        deployment.adopt(rules.breaker, rules.retry.budget)
        deployment.gates.adopt(rules.capacity)
        self.dress(deployment)

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


def _as_it_is(_deployment: Deployment) -> None:
    """Nobody has said anything."""
