"""Publishes state changes of breakers as events, each once and in order.

It polls the breakers, so that calls need not publish anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from llm_guard.admin.events.event_log import EventLog
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.history import BreakerHistory
from llm_guard.routing.deployment import Deployment

_Facts = dict[str, str | float | bool | None]


class Transitions:
    """Compares each breaker's history with the last look.

    Breakers are the keys, because a reload replaces deployments but keeps their breakers.
    """

    def __init__(self, deployments: Callable[[], Iterable[Deployment]], journal: EventLog) -> None:
        self._deployments = deployments
        self._journal = journal
        self._told: dict[Breaker, int] = {}
        """Number of changes already published of each breaker. A new breaker starts at 0."""

    def look(self, _now: float) -> None:
        told: dict[Breaker, int] = {}
        before = self._told
        news: list[tuple[float, _Facts]] = []
        for deployment in self._deployments():
            for breaker in (deployment.breaker, deployment.host):
                if breaker not in told:
                    told[breaker] = breaker.history.changes
                    if told[breaker] != before.get(breaker, 0):
                        news += _news(breaker.history, before.get(breaker, 0), _whose(deployment, breaker))
        self._told = told
        for _, facts in sorted(news, key=itemgetter(0)):
            self._journal.note("breaker", **facts)


def _news(history: BreakerHistory, told: int, whose: _Facts) -> Iterator[tuple[float, _Facts]]:
    """Yields new changes with their instants. Old ones may be forgotten: the number of those comes first."""
    changes = history.changes - told
    latest = history.latest()[-changes:]
    if changes > len(latest):
        yield latest[0].at, whose | {"missing": changes - len(latest)}
    for transition in latest:
        facts = {"before": transition.before, "after": transition.after, "reason": transition.why}
        yield transition.at, whose | facts | {"refused": transition.refused}


def _whose(deployment: Deployment, breaker: Breaker) -> _Facts:
    if breaker is deployment.host:
        return {"upstream": deployment.upstream.name}
    return {**deployment.breaker_of()}
