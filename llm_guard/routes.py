"""Config -> immutable table: model name -> Route -> targets in the order in which they are tried.

Owns which deployments a call may go to, and which calls share a breaker. Does not own what is known of a deployment
over a reload (`pool`), what the file says (`config`), nor what becomes of a call (`gateway.attempt_loop`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType

from llm_guard.api_keys import KeyFilePools
from llm_guard.config import (
    Config,
    DeploymentConfig,
    Rules,
    is_name,
    is_pattern,
    matching_key,
    near_names,
)
from llm_guard.deployment import Deployment, Down, Upstream, upstream_of
from llm_guard.dialect import DialectName
from llm_guard.dialect.continuation import Prefill
from llm_guard.policy.backoff import RetrySettings
from llm_guard.policy.balance import Balance
from llm_guard.policy.deadline import TimeoutSettings
from llm_guard.policy.hedge import HedgeBudget, HedgeSettings
from llm_guard.policy.lasting import Lasting
from llm_guard.policy.retry_budget import RetryBudget
from llm_guard.policy.stream import StreamSettings, effective_recover
from llm_guard.pool import Pool

NO_ALIAS = "none"
"""The alias of calls that name no model."""

_NAMES_PER_PATTERN = 256


@dataclass(frozen=True, slots=True)
class Target:
    """One step of a route."""

    deployment: Deployment
    alias: str
    """Of the route it comes from: its own or that of a fallback."""
    model: str | None
    """The model name to send; None leaves the body alone."""
    timeouts: TimeoutSettings
    retry: RetrySettings
    queue_wait_s: float = 30.0
    """The longest a call waits for its turn."""
    weight: float = 1.0
    group: int = 0
    """Targets of one group may be tried in another order; those of a lower group come first."""
    prefill: Prefill = "none"
    max_buffered_answer: int = 16 << 20
    """A unary JSON answer up to this size is read whole before commit."""


@dataclass(frozen=True, slots=True)
class Hedging:
    """A route's second attempts."""

    settings: HedgeSettings
    budget: HedgeBudget


@dataclass(frozen=True, slots=True)
class Route:
    """Where calls for one model go. `timeouts.total` rules the call, a target's own timeouts its attempts."""

    alias: str
    """The key in `models`, for a pattern its text; `none` for pass-through. A metric's label."""
    timeouts: TimeoutSettings
    targets: tuple[Target, ...]
    """By group."""
    budget: RetryBudget
    """Of all its calls together, whichever deployments they are sent to."""
    balance: Balance = "order"
    hedging: Hedging | None = None
    stream: StreamSettings = field(default_factory=StreamSettings)
    lasting: Lasting = field(default_factory=Lasting)
    down: Down = field(default_factory=Down)
    """Of all routes together."""
    has_peers: bool = field(init=False)
    """Two targets are of one group."""

    def __post_init__(self) -> None:
        groups = [target.group for target in self.targets]
        object.__setattr__(self, "has_peers", len(set(groups)) < len(groups))


def compile_routes(
    config: Config,
    now: float,
    previous: RouteTable | None = None,
    draw: Callable[[], float] = lambda: 0.0,
    key_files: KeyFilePools = MappingProxyType({}),
) -> RouteTable:
    """A table with every deployment of the config; `now` is when their retry budgets begin, `draw` gives each breaker
    where its jitter begins, `key_files` has the keys of every `api_key_file`.

    A deployment that was in `previous` (the same upstream name, base_url and model) keeps all that is known of it,
    under the settings that it has now; so do the names lately found through a pattern, and the routes' budgets. Until
    the table takes over, nothing has changed for `previous`.
    """
    carried = (previous.pool, previous.deployments()) if previous else (None, ())
    pool = Pool(now, config.defaults.breaker, draw, *carried)
    table = RouteTable(config, pool, key_files)
    for name in previous.names() if previous else ():
        table.find(name)
    pool.forget_previous()
    return table


class RouteTable:
    """All routes of one config; `compile_routes` builds it.

    It never changes, but for the names that a pattern stands for: it keeps those lately asked for.
    """

    __slots__ = ("_keys", "_live", "_models", "_pass_through", "_recent", "_routes", "pool", "upstreams")

    def __init__(self, config: Config, pool: Pool, key_files: KeyFilePools) -> None:
        self.upstreams: Mapping[str, Upstream] = {
            name: upstream_of(name, each, key_files) for name, each in config.upstreams.items()
        }
        self._models = config.models
        self.pool = pool
        self._live: dict[str, Route] = {}
        self._recent = {key: OrderedDict[str, None]() for key in config.models if is_pattern(key)}
        self._keys = _keys_by_name(config)
        self._routes = {name: self._route(key, name) for name, key in self._keys.items()}
        for key in self._recent:
            self._make_fixed(key)
        self._pass_through = {name: self._route_through(name, config.defaults) for name in self.upstreams}

    def take_over(self) -> None:
        """From the one before: to be called once."""
        self.pool.take_over()

    def find(self, model: str) -> Route | None:
        """By the name itself, else by the longest pattern; None where there is neither."""
        route = self._routes.get(model)
        if route is not None:
            return route
        route = self._live.get(model)
        if route is None:
            return self._discover(model)
        self._recent[route.alias].move_to_end(model)
        return route

    def preview(self, model: str) -> Route | None:
        """As `find`, for whoever only looks: a name that only a pattern stands for is not remembered."""
        known = self._routes.get(model) or self._live.get(model)
        key = self._pattern_of(model) if known is None else None
        return known if key is None else self._route(key, model)

    def passthrough(self, dialect: DialectName) -> Route | None:
        """For a call that names no model: to the first upstream of its dialect."""
        names = (name for name, upstream in self.upstreams.items() if upstream.dialect == dialect)
        return self.upstream_route(next(names, ""))

    def upstream_route(self, name: str) -> Route | None:
        """For `/upstreams/NAME/…`."""
        return self._pass_through.get(name)

    def near(self, model: str, limit: int = 3) -> tuple[str, ...]:
        """At most `limit` keys of the config that `model` may be a slip of, likeliest first."""
        return near_names(model, self._models, limit)

    def deployments(self) -> tuple[Deployment, ...]:
        """Each once: of the config, of pass-through, and of the names lately found through a pattern.

        Labels may repeat: names of one pattern have theirs in common, and so have two models that call the
        same deployment under different breaker or budget settings.
        """
        live = (target.deployment for route in self._live.values() for target in route.targets)
        return tuple(dict.fromkeys(chain(self.pool.fixed.values(), live)))

    def names(self) -> tuple[str, ...]:
        """Every name that has a route by now; of those that a pattern stands for, the latest last."""
        return tuple(chain(self._routes, *self._recent.values()))

    def _pattern_of(self, model: str) -> str | None:
        return matching_key(self._recent, model) if is_name(model) and not is_pattern(model) else None

    def _discover(self, model: str) -> Route | None:
        key = self._pattern_of(model)
        if key is None:
            return None
        recent = self._recent[key]
        # Clients choose these names: without a bound each would leave a breaker behind.
        if len(recent) >= _NAMES_PER_PATTERN:
            oldest, _ = recent.popitem(last=False)
            del self._live[oldest]
        recent[model] = None
        route = self._live[model] = self._route(key, model)
        return route

    def _route(self, key: str, name: str) -> Route:
        targets: dict[tuple[str, str], Target] = {}
        groups: dict[tuple[str, int], int] = {}
        for step_key, step_name in self._steps(key, name):
            for each in sorted(self._models[step_key].deployments, key=lambda each: each.priority):
                sent = each.model or step_name
                if (each.upstream, sent) not in targets:
                    group = groups.setdefault((step_key, each.priority), len(groups))
                    targets[each.upstream, sent] = self._target(step_key, step_name, each, group)
        return self._route_to(key, self._models[key], tuple(targets.values()))

    def _route_to(self, alias: str, rules: Rules, targets: tuple[Target, ...]) -> Route:
        budget, hedge = self.pool.budget(alias, rules.retry.budget), rules.hedge
        hedging = Hedging(hedge, self.pool.hedge_budget(alias, hedge)) if hedge is not None else None
        lasting = Lasting(rules.cache, rules.dead_letter, rules.answer_later, rules.degraded)
        takes_prefill = any(target.prefill != "none" for target in targets)
        recover = effective_recover(rules.stream.recover, takes_prefill=takes_prefill)
        stream = replace(rules.stream, recover=recover)
        return Route(alias, rules.timeout, targets, budget, rules.balance, hedging, stream, lasting, self.pool.down)

    def _target(self, key: str, name: str, config: DeploymentConfig, group: int) -> Target:
        model = self._models[key]
        return Target(
            self._deployment(key, name, config),
            key,
            config.model or name,
            model.timeout,
            model.retry,
            model.capacity.queue_wait,
            config.weight,
            group,
            config.prefill or self.upstreams[config.upstream].prefill,
            model.max_buffered_answer,
        )

    def _steps(self, key: str, name: str) -> Iterator[tuple[str, str]]:
        """Key and name of the model, then of its fallbacks, each followed by its own."""
        waiting: list[tuple[str, str]] = [(key, name)]
        seen: set[str] = set()
        while waiting:
            key, name = waiting.pop()
            if name not in seen:
                seen.add(name)
                yield key, name
                waiting += [(self._keys[each], each) for each in reversed(self._models[key].fallbacks)]

    def _deployment(self, key: str, name: str, config: DeploymentConfig) -> Deployment:
        upstream = self.upstreams[config.upstream]
        label = f"{upstream.name}/{config.model or key}"
        is_fixed = config.model is not None or name in self._keys
        return self.pool.obtain(label, upstream, config.model or name, self._models[key], is_fixed=is_fixed)

    def _make_fixed(self, pattern: str) -> None:
        """Those of a pattern's deployments that do not wait for a name to be asked for."""
        for each in self._models[pattern].deployments:
            if each.model is not None:
                self._deployment(pattern, pattern, each)

    def _route_through(self, name: str, rules: Rules) -> Route:
        deployment = self.pool.obtain(name, self.upstreams[name], None, rules, is_fixed=True)
        target = Target(
            deployment,
            NO_ALIAS,
            None,
            rules.timeout,
            rules.retry,
            rules.capacity.queue_wait,
            prefill=self.upstreams[name].prefill,
            max_buffered_answer=rules.max_buffered_answer,
        )
        return replace(self._route_to(f"{NO_ALIAS}/{name}", rules, (target,)), alias=NO_ALIAS)


def _keys_by_name(config: Config) -> dict[str, str]:
    """The names that the config itself speaks of, exact models and fallbacks, and where each is found."""
    fallbacks = chain.from_iterable(model.fallbacks for model in config.models.values())
    names = dict.fromkeys(chain((key for key in config.models if not is_pattern(key)), fallbacks))
    return {name: key for name in names if (key := matching_key(config.models, name)) is not None}
