"""Breakers' changes of state, as events.

Owns that each is told once, in the order in which they happened. Does not own the breakers: they do not know that
anybody watches, so that a call pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from llm_guard.deployment import Deployment
from llm_guard.ops.journal import Journal
from llm_guard.policy.breaker import Breaker
from llm_guard.policy.transition import History

_Facts = dict[str, str | float | bool | None]


class Transitions:
    """Looks at all breakers, of deployments and of their upstreams; a look of the watch.

    Deployments are made anew by a reload, and breakers kept: it is by their breakers that they are known.
    """

    def __init__(self, deployments: Callable[[], Iterable[Deployment]], journal: Journal) -> None:
        self._deployments = deployments
        self._journal = journal
        self._told: dict[Breaker, int] = {}
        """How many changes of each. A new one has changed never, or since the last look."""

    def look(self, _now: float) -> None:
        told, before = dict[Breaker, int](), self._told
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


def _news(history: History, told: int, whose: _Facts) -> Iterator[tuple[float, _Facts]]:
    """Each with its instant. The oldest may be forgotten: then how many they were."""
    changes = history.changes - told
    latest = history.latest()[-changes:]
    if changes > len(latest):
        yield latest[0].at, whose | {"missing": changes - len(latest)}
    for each in latest:
        yield each.at, whose | {"before": each.before, "after": each.after, "why": each.why}


def _whose(deployment: Deployment, breaker: Breaker) -> _Facts:
    if breaker is deployment.host:
        return {"upstream": deployment.upstream.name}
    return {**deployment.breaker_of()}
