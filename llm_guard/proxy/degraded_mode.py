"""Degraded mode: which routes are degraded, and whether the whole gateway is, by the rule or by an operator override.

Calls of degraded routes wait less for a real answer. The rule is in `resilience.degradation.degraded_mode`;
`admin.api.degraded` keeps the overrides, with their reasons and durations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.outcome import Disposition
from llm_guard.proxy.call import Call
from llm_guard.proxy.response.fallback_response import static_text
from llm_guard.proxy.telemetry.recorder import ModelCounts
from llm_guard.resilience.degradation.degraded_mode import (
    Degradation,
    DegradationSnapshot,
    DegradedSettings,
    RouteTotals,
    is_common,
)
from llm_guard.routing.route_table import NO_ALIAS

OnModeChange = Callable[[str | None, bool, str], None]
"""Called when a mode has changed: with the alias of the route (None: the gateway), whether it is degraded now, and
why."""


@dataclass(frozen=True, slots=True)
class RouteMode:
    """The current mode of one route."""

    is_degraded: bool
    """The effective mode: by the rule, an override, or because the whole gateway is degraded."""
    word: bool | None
    rule: DegradationSnapshot


@dataclass(frozen=True, slots=True)
class Modes:
    """The modes of the gateway and all routes at one moment."""

    is_degraded: bool
    """The gateway's mode."""
    word: bool | None
    """The operator override for the gateway: degraded or not; None: the rule decides."""
    since: float | None
    """When the gateway became degraded; None: it is not."""
    why: str
    routes: Mapping[str, RouteMode]
    """Modes of the routes with `degraded` in their rules, by alias."""

    def degraded_routes(self) -> list[str]:
        return [alias for alias, mode in self.routes.items() if mode.is_degraded]


class DegradedMode:
    """Tracks degraded mode. Call `look` regularly, and `limit_wait` for each call of a route with these rules."""

    def __init__(self, counts: Mapping[str, ModelCounts], clock: Clock, on_change: OnModeChange) -> None:
        """`counts`: the counters of calls by model. `on_change` must not raise."""
        self._counts = counts
        self._clock = clock
        self._on_change = on_change
        self._routes: dict[str, Degradation] = {}
        self._words: dict[str | None, bool] = {}
        """Operator overrides by alias; None: the gateway's."""
        self._told: dict[str | None, bool] = {}
        """The mode last reported for each."""
        self._is_common = False
        self._since: float | None = None
        self._why = ""
        self._now_degraded: frozenset[str] = frozenset()

    def adopt(self, config: Config) -> None:
        """Applies the rules of a new config. The state of a route that still has rules is kept."""
        now, before = self._clock.now(), self._routes
        self._routes = {}
        for alias, rules in rules_of(config).items():
            self._routes[alias] = before.get(alias) or Degradation(rules, self._seen(alias), now)
            self._routes[alias].settings = rules
        for alias in before.keys() - self._routes.keys():
            self._words.pop(alias, None)
            self._tell(alias, False, "the config no longer has these rules", now)
        self._settle({}, now)

    def look(self, now: float) -> None:
        """Updates all modes from the calls that have ended since the last look."""
        turns = {alias: route.note(self._seen(alias), now) for alias, route in self._routes.items()}
        self._settle({alias: turn.why for alias, turn in turns.items() if turn is not None}, now)

    def say(self, alias: str | None, word: bool | None, why: str) -> None:
        """Sets an operator override for a route, or the gateway (None); a `word` of None removes it."""
        self._words.pop(alias, None)
        if word is not None:
            self._words[alias] = word
        self._settle({alias: why}, self._clock.now())

    def limit_wait(self, call: Call, *, has_stale: bool) -> None:
        """Shortens the wait of a call of a degraded route that has a fallback response. To be called before the first
        attempt."""
        route = call.route
        if route is None or route.alias not in self._now_degraded or not (has_stale or static_text(call) is not None):
            return
        mode, now = self._routes[route.alias], self._clock.now()
        if mode.is_degraded and route.alias not in self._words and mode.may_wait(now):
            return
        hurried_by = now + mode.settings.max_wait
        if hurried_by < call.client_deadline:
            call.disposition = call.disposition or Disposition()
            call.disposition.degraded_deadline = call.client_deadline = hurried_by

    def snapshot(self) -> Modes:
        now = self._clock.now()
        routes = {
            alias: RouteMode(alias in self._now_degraded, self._words.get(alias), route.snapshot(now))
            for alias, route in self._routes.items()
        }
        return Modes(self._is_gateway_degraded(), self._words.get(None), self._since, self._why, routes)

    def _seen(self, alias: str) -> RouteTotals:
        counts = self._counts.get(alias)
        if counts is None:
            return RouteTotals()
        ok = counts.calls.get("ok", 0)
        return RouteTotals(counts.begun, ok - counts.unasked, counts.judged - ok - counts.cut_short)

    def _settle(self, why: Mapping[str | None, str], now: float) -> None:
        """Computes the modes from the rules and the overrides, and reports those that have changed."""
        own = {alias: self._words.get(alias, route.is_degraded) for alias, route in self._routes.items()}
        rules = [route.snapshot(now) for route in self._routes.values()]
        degraded = sum(rule.is_degraded for rule in rules)
        in_use = sum(rule.is_in_use or rule.is_degraded for rule in rules)
        self._is_common = is_common(degraded, in_use)
        is_all = self._is_gateway_degraded()
        self._tell(None, is_all, why.get(None, f"{degraded} of {in_use} routes in use are degraded"), now)
        for alias, is_degraded in own.items():
            self._tell(alias, is_degraded, why.get(alias, ""), now)
        self._now_degraded = frozenset(
            alias for alias, is_degraded in own.items() if is_degraded or (is_all and alias not in self._words)
        )

    def _is_gateway_degraded(self) -> bool:
        return self._words.get(None, self._is_common)

    def _tell(self, alias: str | None, is_degraded: bool, why: str, now: float) -> None:
        if is_degraded == self._told.get(alias, False):
            return
        self._told[alias] = is_degraded
        if alias is None:
            self._since, self._why = (now, why) if is_degraded else (None, "")
        self._on_change(alias, is_degraded, why)


def rules_of(config: Config) -> dict[str, DegradedSettings]:
    """Returns the rules by the alias of their route."""
    found = {alias: model.degraded for alias, model in config.models.items()} | {NO_ALIAS: config.defaults.degraded}
    return {alias: rules for alias, rules in found.items() if rules is not None}
