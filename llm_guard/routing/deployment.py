"""Deployments: the targets of calls, with the state that is kept of each between calls, in memory. Each is a model at
an upstream: a provider's endpoint, as the config describes it.

`routing.route_table` decides which calls go where; `resilience` draws the conclusions from the state.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from llm_guard.config import Auth, AwsSettings, CloudSettings, UpstreamConfig
from llm_guard.dialects import DIALECTS, FORM_FAMILIES, DialectName, FormName
from llm_guard.dialects.prefill import prefill_of
from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.capacity.gate import CapacitySettings, Gate
from llm_guard.resilience.causes.provider_errors import ErrorLog, ProviderError, call_ids_of
from llm_guard.resilience.causes.refusal_series import RefusalSeries
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.callers import Callers, Suspect
from llm_guard.resilience.circuit_breaker.cooldown import CooldownKey
from llm_guard.resilience.classification.rules import UserRule
from llm_guard.resilience.classification.vocabulary.families import family_of_url
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget
from llm_guard.resilience.routing.candidates import Latency, PeakEwma
from llm_guard.resilience.streams.settings import StreamEnd
from llm_guard.resilience.throttling.release_spreading import ReturnSchedule
from llm_guard.routing.api_keys import POOLED, KeyFilePools, KeyPool, pool_of
from llm_guard.routing.authorization import key_digest, key_header, link_of, mark_of

_NO_FILES: KeyFilePools = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Upstream:
    """A provider endpoint; `base_url` has no trailing slash. Without `api_key`, `keys` and `cloud` the caller's key is
    passed on."""

    name: str
    dialect: DialectName
    base_url: str
    api_key: str | None = field(repr=False)
    auth: Auth
    family: str = ""
    """Provider family, which determines the wording of its errors (`resilience.classification.vocabulary.families`)."""
    errors: tuple[UserRule, ...] = ()
    """The config's rules for its errors."""
    stream_end: StreamEnd = "strict"
    prefill: Prefill = "none"
    """How its models accept the beginning of an answer, unless a deployment overrides it."""
    judges_answers: bool = True
    """True if a response that lacks its endpoint's shape is a failure."""
    keys: KeyPool | None = field(default=None, repr=False)
    """Pool of API keys; None if there is one key, `api_key`, or none."""
    has_own_tls: bool = False
    """True if it has its own certificates, and shares no connection with other upstreams of its origin."""
    lacks_responses: bool = False
    """True if calls of the Responses API must be translated into chats for it."""
    cloud: CloudSettings | None = None
    """Where the credentials of a cloud come from; None: calls are sent with a key."""
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Parameters that are appended to the URL of every request."""
    form: FormName | None = None
    """The form of a cloud in which it takes requests; None: that of the dialect."""
    key_header: tuple[str, str] | None = field(init=False, repr=False)
    """The header with `api_key`; None without one, or if the upstream takes none."""
    key_digest: str = field(init=False, repr=False)
    """Digest of the API key, or of where the credentials come from: detects a changed key on reload without storing
    the key."""
    has_one_credential: bool = field(init=False, repr=False)
    """True if all calls are sent with one key or one cloud's credentials of the gateway."""
    origin: str = field(init=False, repr=False)
    """`https://host[:port]` to connect to."""
    connections: str = field(init=False, repr=False)
    """Name of its connection pool: the origin, plus its own name if no other upstream may share the connections."""
    link: str = field(init=False, repr=False)
    """Name by which its requests find these connections. It has a mark if requests are authorised on their way there
    (`proxy.http_client.authorized_origin`)."""
    has_own_key: bool = field(init=False, repr=False)
    """True if calls are sent with the gateway's key instead of the caller's."""
    base_path: str = field(init=False, repr=False)
    """Prefix of each call's path; no trailing slash."""
    path_in_base_url: str = field(init=False, repr=False)
    """Beginning of each call's path that `base_path` contains already; "" if it contains none."""

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.base_url)
        object.__setattr__(self, "has_one_credential", self.api_key is not None or self.cloud is not None)
        object.__setattr__(self, "has_own_key", self.has_one_credential or self.keys is not None)
        object.__setattr__(self, "origin", f"{parts.scheme}://{parts.netloc}")
        object.__setattr__(self, "connections", link_of(self.origin, self.name if self.has_own_tls else None))
        object.__setattr__(self, "link", self.connections + mark_of(self.cloud, self.query))
        object.__setattr__(self, "base_path", urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~"))
        object.__setattr__(self, "path_in_base_url", DIALECTS[self.dialect].PATH_IN_BASE_URL)
        object.__setattr__(self, "key_header", key_header(self.auth, self.api_key))
        object.__setattr__(self, "key_digest", key_digest(self.api_key, self.cloud))

    def speaks(self, dialect: DialectName, path: str) -> bool:
        """Returns whether calls of a dialect at a path need no translation for it."""
        return self.dialect == dialect and not (self.lacks_responses and path == DIALECTS[dialect].RESPONSES_PATH)

    def serves(self, dialect: DialectName, path: str) -> bool:
        """Returns whether calls of a dialect at a path are sent to it as they are."""
        return self.form is None and self.speaks(dialect, path)

    @property
    def secret(self) -> str | None:
        """The key for requests that are not calls, such as probes; None if the upstream has none, or a cloud's
        credentials, which are added on the way to its connections."""
        return self.api_key if self.keys is None else self.keys.first.secret

    @property
    def signs_bodies(self) -> bool:
        """True if a request can only be sent once its whole body is known."""
        return isinstance(self.cloud, AwsSettings)

    def credential(self, digest: str, account: str = "") -> CooldownKey:
        """Returns the cooldown key of an API key on an account."""
        return ("credential", self.name, self.base_url, digest, account)

    def may_use(self, digest: str) -> bool:
        """Returns True if calls may be sent with the key of this digest: its own, or any caller's if it has none."""
        if self.keys is not None:
            return self.keys.named(digest) is not None
        return not self.has_one_credential or self.key_digest == digest

    def gate_names(self) -> dict[str, str]:
        """Returns the accounts with a concurrency limit of their own (`Gates`), each with the name of its key; "" for
        the one that all other calls share."""
        keys = () if self.keys is None else self.keys.keys
        return {"": ""} | {key.account: key.name for key in keys if key.account}

    def own_credentials(self) -> dict[CooldownKey, str]:
        """Returns the cooldown keys of the upstream's own API keys, each with its name; "" if there is only one."""
        if self.keys is not None:
            return {self.credential(key.digest): key.name for key in self.keys.keys}
        return {self.credential(self.key_digest): ""} if self.has_one_credential else {}


def upstream_of(name: str, config: UpstreamConfig, key_files: KeyFilePools = _NO_FILES) -> Upstream:
    """Builds an upstream from its config; `key_files` has the keys of every `api_key_file`."""
    rules = tuple(rule.compiled() for rule in config.errors)
    family = family_of_url(config.base_url) if config.form is None else FORM_FAMILIES[config.form]
    models = family if config.form is None else config.dialect  # a form has models of the dialect's provider alone
    prefill = config.prefill or prefill_of(models, config.base_url)
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
        config.answers == "strict",
        pool_of(config, key_files),
        config.tls is not None,
        config.responses == "chat",
        config.cloud,
        tuple(config.query.items()),
        config.form,
    )


NewGate = Callable[[CapacitySettings, float], Gate]

_CALLERS = 1024
_NO_SHARES: Mapping[str, int] = MappingProxyType({})


class Gates:
    """The gates of one deployment, which limit concurrency and request rate.

    A concurrency limit belongs to the deployment: one gate serves all callers. Without a limit, a gate only paces the
    requests of one account, and each account has its own. Each key of a pool has its own gate, with its own concurrency
    limit, because providers limit accounts.
    """

    __slots__ = (
        "_by_account", "_expected_share", "_new_gate", "_newest", "_settings", "_shares", "in_flight", "shared",
    )  # fmt: skip

    def __init__(self, settings: CapacitySettings, new_gate: NewGate = Gate) -> None:
        self._new_gate = new_gate
        self.in_flight = 0
        """Number of running attempts, on all accounts."""
        self._settings = settings
        self._by_account = BoundedMap[str, Gate](_CALLERS)
        """Least recently used first: callers choose their keys."""
        self._newest: Gate | None = None
        """The gate used last."""
        self.shared: Gate | None = None
        """Gate for all calls without a pool key; None if each account has its own, or there was no call yet."""
        self._shares: Mapping[str, int] = _NO_SHARES
        self._expected_share = 1.0

    def of(self, account: str, now: float) -> Gate:
        """Returns the gate for calls on an account; `account` may be any string that identifies it."""
        account = self._shared(account)
        gate = self._by_account.get(account)
        if gate is None:
            gate = self._by_account[account] = self._new_gate(self._settings, now)
            gate.share(self._shares.get(account), self._expected_share)
            self._find_shared()
        elif gate is not self._newest:
            self._by_account.move_to_end(account)
        self._newest = gate
        return gate

    def find(self, account: str) -> Gate | None:
        """Returns the account's gate without creating one; None if there is none."""
        return self._by_account.get(self._shared(account))

    def _shared(self, account: str) -> str:
        """Returns the account with the gate that limits concurrency for this account."""
        if self._settings.concurrency is None:
            return account
        return account.partition("\n")[0] if account.startswith(POOLED) else ""

    def _find_shared(self) -> None:
        self.shared = None if self._settings.concurrency is None else self._by_account.get("")

    @property
    def settings(self) -> CapacitySettings:
        return self._settings

    def adopt(self, settings: CapacitySettings) -> None:
        """Applies new settings, to calls that wait as well."""
        self._settings = settings
        self._find_shared()
        for gate in self._by_account.values():
            gate.settings = settings

    def share(self, shares: Mapping[str, int], expected: float) -> None:
        """Sets this gateway's share of the concurrency limit on each account, and the least that it may expect; on
        accounts that are missing it has all of it. They have the form of `Upstream.gate_names`."""
        self._shares, self._expected_share = shares, expected
        for account, gate in self._by_account.items():
            gate.share(shares.get(account), expected)

    def ramp(self, now: float, seconds: float) -> None:
        """Begins the slow start of a deployment that has recovered."""
        for gate in self._by_account.values():
            gate.ramp(now, seconds)

    def end_ramp(self, now: float) -> None:
        for gate in self._by_account.values():
            gate.end_ramp(now)

    def all(self) -> tuple[Gate, ...]:
        return tuple(self._by_account.values())


@dataclass(frozen=True, slots=True)
class MaintenanceHold:
    """An operator's maintenance hold: the deployment gets no new attempts; running ones continue."""

    kind: Literal["drained", "cordoned"]
    reason: str
    who: str
    since: float
    """Seconds since the epoch."""
    until: float | None
    """Monotonic instant at which the hold ends; None if an operator has to end it."""


class FailingDeployments:
    """Deployments that fail their probes (`upstreams.probes.prober`). Tried last, never skipped: probes can be
    wrong."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: frozenset[tuple[str, str | None]] = frozenset()
        """Pairs of upstream name and model; the model is None if all of the upstream is down."""

    def has(self, deployment: Deployment) -> bool:
        name = deployment.upstream.name
        return (name, None) in self.keys or (name, deployment.model) in self.keys


@dataclass(slots=True, eq=False)
class Deployment:
    """One callable target: an upstream and a model, with what is known of its health."""

    label: str
    """`openai/gpt-4-turbo`; for a pattern `openai/gpt-*`, for pass-through `openai`. Clients cannot choose it."""
    upstream: Upstream
    model: str | None
    """Model name sent to the upstream; None to leave the body's model as it is."""
    breaker: Breaker
    budget: RetryBudget
    """Retry budget; its `recent` counts the failures among the last attempts."""
    host: Breaker
    """The upstream's breaker, shared by its deployments: it counts connection failures, not responses."""
    gates: Gates
    callers: Callers = field(default_factory=Callers)
    returns: ReturnSchedule = field(default_factory=ReturnSchedule)
    latency: Latency = field(default_factory=Latency)
    """Latency of whole responses."""
    first_tokens: Latency = field(default_factory=Latency)
    """Latency of streams, to their first token."""
    cost: PeakEwma = field(default_factory=PeakEwma)
    last_success_wall: float | None = None
    """Seconds since the epoch."""
    refuses_prefill: bool = False
    """True if it has refused to continue from the beginning of an answer."""
    most_tokens: int | None = None
    """The largest output limit that its model accepts, as learned from a refusal of a translated request."""
    hold: MaintenanceHold | None = None
    held: int = 0
    """Calls that were not sent because of the hold."""
    full: RefusalSeries = field(default_factory=RefusalSeries)
    """Calls that were not sent because it had no room."""
    errors: ErrorLog = field(default_factory=ErrorLog)
    """The last errors of its attempts."""
    upstream_errors: ErrorLog = field(default_factory=ErrorLog)
    """The last errors of all deployments of its upstream, which share it."""
    credential: CooldownKey | None = field(init=False, repr=False)
    """Cooldown key of the upstream's only API key on its default account; None if it has several, or callers send
    theirs."""

    def __post_init__(self) -> None:
        upstream = self.upstream
        self.credential = upstream.credential(upstream.key_digest) if upstream.has_one_credential else None

    def breaker_of(self) -> dict[str, str]:
        """Returns log fields that identify the breaker: the label, and the model under a pattern, where each model has
        its own breaker."""
        is_named = self.model is None or self.label == f"{self.upstream.name}/{self.model}"
        return {"deployment": self.label} if is_named else {"deployment": self.label, "model": str(self.model)}

    def adopt(self, breaker: BreakerSettings, budget: BudgetSettings) -> None:
        """Applies new settings, also to callers that are judged separately."""
        self.breaker.settings, self.budget.settings = breaker, budget
        for _, suspect in self.callers.suspects():
            suspect.breaker.settings, suspect.budget.settings = breaker, budget

    def share_budget(self, gateways: int) -> None:
        """Divides the floors of the retry budgets among so many gateways, also of callers that are judged
        separately."""
        self.budget.share(gateways)
        for _, suspect in self.callers.suspects():
            suspect.budget.share(gateways)

    def judge_of(self, suspect: Suspect | None) -> Breaker:
        """Returns the breaker that decides about a call: that of all callers, unless it is closed."""
        return self.breaker if suspect is None or self.breaker.state != "closed" else suspect.breaker

    def note_failure(self, caller: str, now: float) -> bool:
        """Records a failure of a caller's call that is evidence against the deployment. Returns True if the caller is
        judged separately from now on."""
        is_alone = self.callers.note_failure(caller, now)
        if is_alone:
            budget = RetryBudget(self.budget.settings, now)
            budget.share(self.budget.gateways)
            self.callers.begin(caller, Suspect(Breaker(self.breaker.settings), budget))
        return is_alone

    def note_error(self, error: ProviderError) -> None:
        """Keeps an error, as evidence of what may refuse calls from now on."""
        self.errors.note(error)
        self.upstream_errors.note(error)

    def failed_calls(self) -> tuple[str, ...]:
        """Returns the ids of the last calls that failed here, or elsewhere at its upstream if none did here."""
        return call_ids_of(self.errors.latest() or self.upstream_errors.latest())

    def latency_of(self, is_stream: bool) -> Latency:
        return self.first_tokens if is_stream else self.latency
