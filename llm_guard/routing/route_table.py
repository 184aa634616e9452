"""Compiles a config into a route table: model name -> Route -> targets in the order in which they are tried.

Decides which deployments a call may go to, and which calls share a breaker. `routing.deployment_registry` carries
deployments over a reload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from types import MappingProxyType

from llm_guard.config import (
    Config,
    DeploymentConfig,
    Rules,
    chat_routes,
    is_name,
    is_pattern,
    matching_key,
    mixed_routes,
    near_names,
)
from llm_guard.dialects import DialectName
from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.caching.freshness import CacheSettings
from llm_guard.resilience.capacity.gate import Gate
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.callers import Callers
from llm_guard.resilience.degradation.deferred import DeadLetterMode, DeferredSettings
from llm_guard.resilience.degradation.degraded_mode import DegradedSettings
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.hedging import HedgeBudget, HedgeSettings
from llm_guard.resilience.retry.limits import RetryBudget
from llm_guard.resilience.routing.candidates import Balance, TimeoutSettings
from llm_guard.resilience.streams.settings import StreamSettings, effective_recover
from llm_guard.resilience.translation.settings import TranslateSettings
from llm_guard.routing.api_keys import KeyFilePools
from llm_guard.routing.deployment import Deployment, FailingDeployments, NewGate, Upstream, upstream_of
from llm_guard.routing.deployment_registry import DeploymentRegistry, NewBreaker, NewCallers


@dataclass(frozen=True, slots=True)
class RouteRules:
    """A route's rules."""

    cache: CacheSettings | None = None
    """None: every call goes to a provider."""
    letters: DeadLetterMode = "on_request"
    later: DeferredSettings = field(default_factory=DeferredSettings)
    degraded: DegradedSettings | None = None
    """None: no fallback responses."""
    comes_first: bool = field(init=False)
    """True if there is something to do before a provider is tried."""

    def __post_init__(self) -> None:
        does = self.cache is not None or self.later.mode == "always" or self.degraded is not None
        object.__setattr__(self, "comes_first", does)


NO_ALIAS = "none"
"""The alias of calls that name no model."""

_NAMES_PER_PATTERN = 256


@dataclass(frozen=True, slots=True)
class Target:
    """One step of a route."""

    deployment: Deployment
    alias: str
    """Alias of the model that it belongs to: the route's own, or a fallback's."""
    model: str | None
    """Model name to send; None to leave the body as it is."""
    timeouts: TimeoutSettings
    retry: RetrySettings
    queue_wait_s: float = 30.0
    """Longest wait in the queue, in seconds."""
    weight: float = 1.0
    group: int = 0
    """Load-balancing group: targets within one may be tried in any order, lower groups first."""
    prefill: Prefill = "none"
    max_buffered_answer: int = 16 << 20
    """Unary JSON responses up to this size, in bytes, are read whole before commit."""
    max_tokens: int | None = None
    """Limit for translated requests that have none; None: the route's."""


@dataclass(frozen=True, slots=True)
class Hedging:
    """A route's settings and budget for hedging."""

    settings: HedgeSettings
    budget: HedgeBudget


@dataclass(frozen=True, slots=True)
class Route:
    """The targets of calls for one model. `timeouts.total` limits the call, a target's own timeouts its attempts."""

    alias: str
    """Key in `models` (a pattern's text for a pattern); `none` for pass-through. Used as a metric label."""
    timeouts: TimeoutSettings
    targets: tuple[Target, ...]
    """Targets, sorted by group."""
    budget: RetryBudget
    """Retry budget of all its calls, to any deployment."""
    balance: Balance = "order"
    hedging: Hedging | None = None
    stream: StreamSettings = field(default_factory=StreamSettings)
    lasting: RouteRules = field(default_factory=RouteRules)
    down: FailingDeployments = field(default_factory=FailingDeployments)
    """Deployments of all routes that fail their probes."""
    translate: TranslateSettings | None = None
    """None: calls of another dialect are not translated."""
    dialect: DialectName | None = field(init=False)
    """The dialect of all targets; None if they differ, or if one lacks an endpoint of it, or has a form of its own."""
    has_peers: bool = field(init=False)
    """True if two targets are in the same group."""

    def __post_init__(self) -> None:
        groups = [target.group for target in self.targets]
        object.__setattr__(self, "has_peers", len(set(groups)) < len(groups))
        upstreams = [target.deployment.upstream for target in self.targets]
        dialects = {None if upstream.lacks_responses or upstream.form else upstream.dialect for upstream in upstreams}
        object.__setattr__(self, "dialect", dialects.pop() if len(dialects) == 1 else None)


def compile_routes(
    config: Config,
    now: float,
    previous: RouteTable | None = None,
    draw: Callable[[], float] = lambda: 0.0,
    key_files: KeyFilePools = MappingProxyType({}),
    new_breaker: NewBreaker = Breaker,
    new_gate: NewGate = Gate,
    new_callers: NewCallers = Callers,
) -> RouteTable:
    """Builds the table of a config. Retry budgets begin at `now`, `draw` seeds the jitter of each breaker, `key_files`
    has the keys of every `api_key_file`, `new_...` create parts of deployments. A deployment that was in `previous`
    (same upstream name, base_url and model) keeps its state, under new settings; so do the routes' budgets, and names
    recently found through a pattern. `previous` changes only with `take_over`."""
    carried, before = (previous.pool, previous.deployments()) if previous else (None, ())
    pool = DeploymentRegistry(now, config.defaults.breaker, draw, carried, before, new_breaker, new_gate, new_callers)
    table = RouteTable(config, pool, key_files)
    for name in previous.names() if previous else ():
        table.find(name)
    pool.forget_previous()
    if [*mixed_routes(config), *chat_routes(config)] or any(upstream.form for upstream in config.upstreams.values()):
        import_module("llm_guard.dialects.translation.endpoints")  # not during the first call that needs it
    return table


class RouteTable:
    """All routes of one config, built by `compile_routes`.

    Immutable, except for the names that match a pattern: recently used ones are cached.
    """

    __slots__ = ("_keys", "_live", "_models", "_pass_through", "_recent", "_routes", "pool", "upstreams")

    def __init__(self, config: Config, pool: DeploymentRegistry, key_files: KeyFilePools) -> None:
        self.upstreams: Mapping[str, Upstream] = {
            name: upstream_of(name, upstream, key_files) for name, upstream in config.upstreams.items()
        }
        self._models = config.models
        self.pool = pool
        self._live: dict[str, Route] = {}
        self._recent = {
            key: BoundedMap[str, None](_NAMES_PER_PATTERN, self._live.__delitem__)
            for key in config.models
            if is_pattern(key)
        }
        """Names found through each pattern, least recently used first. Clients choose them: without a bound each would
        leave a breaker in memory."""
        self._keys = _keys_by_name(config)
        self._routes = {name: self._route(key, name) for name, key in self._keys.items()}
        for key in self._recent:
            self._make_fixed(key)
        self._pass_through = {name: self._route_through(name, config.defaults) for name in self.upstreams}

    def take_over(self) -> None:
        """Takes over from the previous table; to be called once."""
        self.pool.take_over()

    def find(self, model: str) -> Route | None:
        """Returns the route of a model, by its exact name, else by the longest matching pattern; None if none
        matches."""
        route = self._routes.get(model)
        if route is not None:
            return route
        route = self._live.get(model)
        if route is None:
            return self._discover(model)
        self._recent[route.alias].move_to_end(model)
        return route

    def preview(self, model: str) -> Route | None:
        """Returns the same as `find`, without caching a name that matches a pattern."""
        known = self._routes.get(model) or self._live.get(model)
        key = self.pattern_of(model) if known is None else None
        return known if key is None else self._route(key, model)

    def passthrough(self, dialect: DialectName) -> Route | None:
        """Returns the route of calls without a model: to the first upstream of the dialect, of those that have all of
        its paths if there is one."""
        names = [name for name, upstream in self.upstreams.items() if upstream.dialect == dialect]
        whole = (name for name in names if self.upstreams[name].form is None)
        return self.upstream_route(next(whole, names[0] if names else ""))

    def upstream_route(self, name: str) -> Route | None:
        """Returns the route of `/upstreams/NAME/…`."""
        return self._pass_through.get(name)

    def near(self, model: str, limit: int = 3) -> tuple[str, ...]:
        """Returns at most `limit` keys of the config that `model` may be a misspelling of, likeliest first."""
        return near_names(model, self._models, limit)

    def is_exact(self, model: str) -> bool:
        """Returns whether the config contains the name itself, as a model or a fallback."""
        return model in self._routes

    def exact_names(self, dialect: DialectName) -> tuple[str, ...]:
        """Returns the names that the config contains, as models and fallbacks, of one dialect."""
        return tuple(
            name for name, route in self._routes.items() if route.targets[0].deployment.upstream.dialect == dialect
        )

    def upstreams_of(self, pattern: str | None, dialect: DialectName) -> tuple[str, ...]:
        """Returns the upstreams to which a pattern sends the requested name itself, and which list their models; None:
        those of all patterns."""
        keys = self._recent if pattern is None else (pattern,)
        sent = (deployment for key in keys for deployment in self._models[key].deployments if deployment.model is None)
        names = dict.fromkeys(deployment.upstream for deployment in sent)
        listing = (name for name in names if self.upstreams[name].form is None)
        return tuple(name for name in listing if self.upstreams[name].dialect == dialect)

    def deployments(self) -> tuple[Deployment, ...]:
        """Returns each deployment once: of the config, of pass-through, and of names recently found through a pattern.

        Labels may repeat: names of one pattern share theirs, and so do two models that use the same deployment with
        different breaker, budget or capacity settings.
        """
        live = (target.deployment for route in self._live.values() for target in route.targets)
        return tuple(dict.fromkeys(chain(self.pool.fixed.values(), live)))

    def names(self) -> tuple[str, ...]:
        """Returns all names that have a route now; those that match a pattern are last, the most recently used at the
        end."""
        return tuple(chain(self._routes, *self._recent.values()))

    def pattern_of(self, model: str) -> str | None:
        """Returns the pattern that matches a name; None if there is none."""
        return matching_key(self._recent, model) if is_name(model) and not is_pattern(model) else None

    def steps(self, key: str, name: str) -> Iterator[tuple[str, str]]:
        """Yields key and name of the model and of its fallbacks, each followed by its own fallbacks. Raises KeyError if
        `key` is not one of `models`."""
        waiting: list[tuple[str, str]] = [(key, name)]
        seen: set[str] = set()
        while waiting:
            key, name = waiting.pop()
            if name not in seen:
                seen.add(name)
                yield key, name
                waiting += [(self._keys[fallback], fallback) for fallback in reversed(self._models[key].fallbacks)]

    def _discover(self, model: str) -> Route | None:
        key = self.pattern_of(model)
        if key is None:
            return None
        self._recent[key][model] = None
        route = self._live[model] = self._route(key, model)
        return route

    def _route(self, key: str, name: str) -> Route:
        targets: dict[tuple[str, str], Target] = {}
        groups: dict[tuple[str, int], int] = {}
        for step_key, step_name in self.steps(key, name):
            for deployment in sorted(self._models[step_key].deployments, key=lambda deployment: deployment.priority):
                sent = deployment.model or step_name
                if (deployment.upstream, sent) not in targets:
                    group = groups.setdefault((step_key, deployment.priority), len(groups))
                    targets[deployment.upstream, sent] = self._target(step_key, step_name, deployment, group)
        return self._route_to(key, self._models[key], tuple(targets.values()))

    def _route_to(self, alias: str, rules: Rules, targets: tuple[Target, ...]) -> Route:
        budget, hedge = self.pool.budget(alias, rules.retry.budget), rules.hedge
        hedging = Hedging(hedge, self.pool.hedge_budget(alias, hedge)) if hedge is not None else None
        lasting = RouteRules(rules.cache, rules.dead_letter, rules.deferred, rules.degraded)
        takes_prefill = any(target.prefill != "none" for target in targets)
        recover = effective_recover(rules.stream.recover, takes_prefill=takes_prefill)
        stream = replace(rules.stream, recover=recover)
        down, translate = self.pool.down, rules.translate
        return Route(alias, rules.timeout, targets, budget, rules.balance, hedging, stream, lasting, down, translate)

    def _target(self, key: str, name: str, config: DeploymentConfig, group: int) -> Target:
        model = self._models[key]
        return Target(
            self._deployment(key, name, config),
            key,
            config.model or name,
            model.timeout,
            model.retry,
            model.capacity.queue_timeout,
            config.weight,
            group,
            config.prefill or self.upstreams[config.upstream].prefill,
            model.max_buffered_answer,
            config.max_tokens,
        )

    def _deployment(self, key: str, name: str, config: DeploymentConfig) -> Deployment:
        upstream = self.upstreams[config.upstream]
        label = f"{upstream.name}/{config.model or key}"
        is_fixed = config.model is not None or name in self._keys
        return self.pool.obtain(label, upstream, config.model or name, self._models[key], is_fixed=is_fixed)

    def _make_fixed(self, pattern: str) -> None:
        """Creates the deployments of a pattern that have a model of their own, and so do not depend on the name."""
        for deployment in self._models[pattern].deployments:
            if deployment.model is not None:
                self._deployment(pattern, pattern, deployment)

    def _route_through(self, name: str, rules: Rules) -> Route:
        deployment = self.pool.obtain(name, self.upstreams[name], None, rules, is_fixed=True)
        target = Target(
            deployment,
            NO_ALIAS,
            None,
            rules.timeout,
            rules.retry,
            rules.capacity.queue_timeout,
            prefill=self.upstreams[name].prefill,
            max_buffered_answer=rules.max_buffered_answer,
        )
        return replace(self._route_to(f"{NO_ALIAS}/{name}", rules, (target,)), alias=NO_ALIAS, translate=None)


def _keys_by_name(config: Config) -> dict[str, str]:
    """Returns the names that the config contains, exact models and fallbacks, each with its key in `models`."""
    fallbacks = chain.from_iterable(model.fallbacks for model in config.models.values())
    names = dict.fromkeys(chain((key for key in config.models if not is_pattern(key)), fallbacks))
    return {name: key for name in names if (key := matching_key(config.models, name)) is not None}
