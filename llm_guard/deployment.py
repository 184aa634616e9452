"""Upstream and Deployment: whom a call can be sent to, and what is known of each.

Owns what is kept of a deployment between calls, all of it in memory. Does not own which calls go there (`routes`), nor
what is concluded (`policy`).
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections import OrderedDict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from llm_guard.api_keys import POOLED, KeyFilePools, KeyPool, pool_of
from llm_guard.config import Auth, UpstreamConfig
from llm_guard.dialect import DialectName
from llm_guard.dialect.continuation import Prefill
from llm_guard.dialect.prefill import prefill_of
from llm_guard.policy.bench import Key
from llm_guard.policy.breaker import Breaker, BreakerSettings
from llm_guard.policy.callers import Callers, Suspect
from llm_guard.policy.error_rules import UserRule
from llm_guard.policy.gate import CapacitySettings, Gate
from llm_guard.policy.latency import Latency, PeakEwma
from llm_guard.policy.retry_budget import BudgetSettings, RetryBudget
from llm_guard.policy.returns import Returns
from llm_guard.policy.stream import StreamEnd
from llm_guard.policy.vocabulary.families import family_of_url

_CALLERS = 1024
_NO_FILES: KeyFilePools = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Upstream:
    """A provider endpoint; `base_url` has no slash at its end. Without `api_key` and `keys` the caller's key is passed
    on."""

    name: str
    dialect: DialectName
    base_url: str
    api_key: str | None = field(repr=False)
    auth: Auth
    family: str = ""
    """Whose error words it speaks (`policy.vocabulary.families`)."""
    errors: tuple[UserRule, ...] = ()
    """The config's own rules for its errors."""
    stream_end: StreamEnd = "strict"
    prefill: Prefill = "none"
    """How its models take the beginning of an answer, unless a deployment says otherwise."""
    judges_answers: bool = True
    """An answer without its endpoint's shape is a failure."""
    keys: KeyPool | None = field(default=None, repr=False)
    """None: there is one key, `api_key`, or none."""
    has_own_tls: bool = False
    """It has certificates of its own, and shares no connection with other upstreams of its origin."""
    key_digest: str = field(init=False, repr=False)
    """Tells a key from the one that a reload puts in its place, without being one."""
    origin: str = field(init=False, repr=False)
    """Where its connections go: `https://host[:port]`."""
    link: str = field(init=False, repr=False)
    """Which connections are its: the origin, and its name where they are for it alone."""
    has_own_key: bool = field(init=False, repr=False)
    """Calls are sent with the gateway's key, not with the caller's."""
    base_path: str = field(init=False, repr=False)
    """What stands before the path of each call; no slash at its end."""

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.base_url)
        object.__setattr__(self, "has_own_key", self.api_key is not None or self.keys is not None)
        object.__setattr__(self, "origin", f"{parts.scheme}://{parts.netloc}")
        object.__setattr__(self, "link", link_of(self.origin, self.name if self.has_own_tls else None))
        object.__setattr__(self, "base_path", urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~"))
        object.__setattr__(self, "key_digest", hashlib.sha256((self.api_key or "").encode()).hexdigest())

    @property
    def secret(self) -> str | None:
        """The key of requests beside calls; None: it has none of its own."""
        return self.api_key if self.keys is None else self.keys.first.secret

    def credential(self, digest: str, account: str = "") -> Key:
        """The key, on an account, as cooldowns know it."""
        return ("credential", self.name, self.base_url, digest, account)

    def may_use(self, digest: str) -> bool:
        """Whether calls may be sent with the key of this digest: one of its own, or any caller's."""
        if self.keys is not None:
            return self.keys.named(digest) is not None
        return self.api_key is None or self.key_digest == digest

    def own_credentials(self) -> dict[Key, str]:
        """The upstream's own keys as cooldowns know them, each with its name; "" where there is only one."""
        if self.keys is not None:
            return {self.credential(key.digest): key.name for key in self.keys.keys}
        return {self.credential(self.key_digest): ""} if self.api_key is not None else {}


def link_of(origin: str, name: str | None) -> str:
    """Names connections to an origin; `name` is the upstream's that they are for, None: they may be for several."""
    return origin if name is None else f"{origin} {name}"


def upstream_of(name: str, config: UpstreamConfig, key_files: KeyFilePools = _NO_FILES) -> Upstream:
    """As the config has it; `key_files` has the keys of every `api_key_file`."""
    rules = tuple(rule.compiled() for rule in config.errors)
    family = family_of_url(config.base_url)
    prefill = config.prefill or prefill_of(family, config.base_url)
    judges_answers = config.answers == "strict"
    return Upstream(
        name,
        config.dialect,
        config.base_url,
        config.api_key,
        config.auth,
        family,
        rules,
        config.stream_end,
        prefill,
        judges_answers,
        pool_of(config, key_files),
        config.tls is not None,
    )


class Gates:
    """The gates before one deployment.

    A limit of calls at once is the deployment's, and has one gate for everybody. Without one a gate does nothing but
    keep to the rate of the account that it is asked on, and each account has its own. Each key of a pool has a gate of
    its own, limit included: providers limit accounts.
    """

    __slots__ = ("_by_account", "_settings", "in_flight", "shared")

    def __init__(self, settings: CapacitySettings) -> None:
        self.in_flight = 0
        """Attempts running now, on all accounts."""
        self._settings = settings
        self._by_account: OrderedDict[str, Gate] = OrderedDict()
        self.shared: Gate | None = None
        """The gate for all calls but those with a key of a pool. None: each account has its own, or none has called."""

    def of(self, account: str, now: float) -> Gate:
        """The gate for calls on an account: `account` tells one from the other, and may be anything."""
        account = self._shared(account)
        gate = self._by_account.get(account)
        if gate is None:
            gate = self._by_account[account] = Gate(self._settings, now)
            self._find_shared()
            # Callers choose their keys: whoever has not been seen for longest begins anew.
            if len(self._by_account) > _CALLERS:
                self._by_account.popitem(last=False)
        else:
            self._by_account.move_to_end(account)
        return gate

    def find(self, account: str) -> Gate | None:
        """As `of`, for whoever only looks; None: it would be a new one."""
        return self._by_account.get(self._shared(account))

    def _shared(self, account: str) -> str:
        """The account whose gate counts calls at once."""
        if self._settings.concurrency is None:
            return account
        return account.partition("\n")[0] if account.startswith(POOLED) else ""

    def _find_shared(self) -> None:
        self.shared = None if self._settings.concurrency is None else self._by_account.get("")

    @property
    def settings(self) -> CapacitySettings:
        return self._settings

    def adopt(self, settings: CapacitySettings) -> None:
        """From now on these settings hold, also for who is waiting."""
        self._settings = settings
        self._find_shared()
        for gate in self._by_account.values():
            gate.settings = settings

    def ramp(self, now: float, seconds: float) -> None:
        """The deployment is back: calls return by and by."""
        for gate in self._by_account.values():
            gate.ramp(now, seconds)

    def end_ramp(self, now: float) -> None:
        for gate in self._by_account.values():
            gate.end_ramp(now)

    def all(self) -> tuple[Gate, ...]:
        return tuple(self._by_account.values())


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's word that a deployment is not to be asked; what runs goes on."""

    kind: Literal["drained", "benched"]
    reason: str
    who: str
    since: float
    """Seconds since the epoch."""
    until: float | None
    """The monotonic instant at which it is returned; None: somebody has to."""


class Down:
    """Who does not serve, as looks beside the calls have found (`health.prober`): asked after all others, and never
    left out, for the looks may be wrong."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: frozenset[tuple[str, str | None]] = frozenset()
        """Names of upstreams, each with a model, or with None for all of it. Empty but for an outage."""

    def has(self, deployment: Deployment) -> bool:
        name = deployment.upstream.name
        return (name, None) in self.keys or (name, deployment.model) in self.keys


@dataclass(slots=True, eq=False)
class Deployment:
    """One callable target: an upstream and a model, with what is known of its health."""

    label: str
    """`openai/gpt-4-turbo`; of a pattern `openai/gpt-*`, of pass-through `openai`. No client chooses it."""
    upstream: Upstream
    model: str | None
    """As the upstream is asked for it; None: whatever the body says."""
    breaker: Breaker
    budget: RetryBudget
    """Its `recent` is how many of the last attempts failed."""
    host: Breaker
    """The upstream's own, one for all its deployments: it hears of connections, not of answers."""
    gates: Gates
    callers: Callers = field(default_factory=Callers)
    returns: Returns = field(default_factory=Returns)
    latency: Latency = field(default_factory=Latency)
    """Of whole answers."""
    first_tokens: Latency = field(default_factory=Latency)
    """Of streams, to their first token."""
    cost: PeakEwma = field(default_factory=PeakEwma)
    last_success_wall: float | None = None
    """Seconds since the epoch."""
    refuses_prefill: bool = False
    """It was asked to go on from the beginning of an answer, and would not."""
    hold: Hold | None = None
    credential: Key | None = field(init=False, repr=False)
    """Names the upstream's one key, on its own account, to `Bench`; None: it has several, or each caller brings one."""

    def __post_init__(self) -> None:
        upstream = self.upstream
        self.credential = upstream.credential(upstream.key_digest) if upstream.api_key is not None else None

    def breaker_of(self) -> dict[str, str]:
        """Whose its breaker is: its label, and under a pattern the name too, for each name there has one of its own."""
        is_named = self.model is None or self.label == f"{self.upstream.name}/{self.model}"
        return {"deployment": self.label} if is_named else {"deployment": self.label, "model": str(self.model)}

    def adopt(self, breaker: BreakerSettings, budget: BudgetSettings) -> None:
        """From now on these settings hold, also for callers that are judged by themselves."""
        self.breaker.settings, self.budget.settings = breaker, budget
        for _, suspect in self.callers.suspects():
            suspect.breaker.settings, suspect.budget.settings = breaker, budget

    def judge_of(self, suspect: Suspect | None) -> Breaker:
        """The breaker that decides about a call. That of all callers goes first unless it is closed."""
        return self.breaker if suspect is None or self.breaker.state != "closed" else suspect.breaker

    def note_failure(self, caller: str, now: float) -> bool:
        """A call of that caller has failed in a way that tells of a deployment. True: from now on the caller is judged
        by itself."""
        is_alone = self.callers.note_failure(caller, now)
        if is_alone:
            self.callers.begin(caller, Suspect(Breaker(self.breaker.settings), RetryBudget(self.budget.settings, now)))
        return is_alone

    def latency_of(self, is_stream: bool) -> Latency:
        return self.first_tokens if is_stream else self.latency
