"""The config as frozen models: every key of the file, with its range and its default.

The settings of a policy are defined in its module, constraints between keys in `config.checks`.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from llm_guard.config.api_keys import ApiKeys
from llm_guard.config.clients import ClientKey
from llm_guard.config.clouds import (
    CLOUDS,
    AwsSettings,
    CloudAuth,
    CloudSettings,
    EntraSettings,
    GoogleSettings,
    Query,
    check_cloud,
    resolved,
)
from llm_guard.config.engines import EngineConfig
from llm_guard.config.errors import ErrorRule
from llm_guard.config.fields import AlsoWritten, NonEmptyText, OptionalSecret, Port, Strict, wrong
from llm_guard.config.fleet import FleetConfig
from llm_guard.config.names import MODEL_NAME, UPSTREAM_NAME, is_name, is_pattern
from llm_guard.config.operator import Ops
from llm_guard.config.schema_rules import (
    BASE_URL,
    BASE_URL_OF_DIALECT,
    CLIENT_KEYS_FOR_ISOLATION,
    CLOUD_AUTH,
    FORM_BASE_URLS,
    FORMS_OF_DIALECTS,
    ONE_KEY_SOURCE,
    named,
)
from llm_guard.config.storage import StoreConfig
from llm_guard.config.tls import ServerTls, UpstreamTls
from llm_guard.config.workers import WorkerCount
from llm_guard.dialects import DIALECTS, FORM_DIALECTS, DialectName, FormName
from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.resilience.caching.freshness import CacheSettings
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.resilience.degradation.deferred import DeadLetterMode, DeferredSettings
from llm_guard.resilience.degradation.degraded_mode import DegradedSettings
from llm_guard.resilience.health.probe_policy import CompletionProbeSettings, ProbeSettings
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.deadline import TimeoutSettings
from llm_guard.resilience.retry.hedging import HedgeSettings
from llm_guard.resilience.routing.load_balancing import Balance, Priority, Weight
from llm_guard.resilience.streams.settings import StreamEnd, StreamSettings
from llm_guard.resilience.translation.settings import TranslateSettings
from llm_guard.resilience.units import Count, OptionalCount, OptionalSize, Pause, Seconds, Size


def _off_is_none(value: object) -> object:
    return None if value is False or value == "off" else value  # YAML parses a bare `off` as False


Translation = Annotated[TranslateSettings | None, BeforeValidator(_off_is_none), AlsoWritten({"const": "off"})]
ConnectionCount = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Auth = Literal["bearer", "x-api-key", "api-key", "none", CloudAuth]


class Server(Strict):
    """Where clients reach the gateway. Durations in seconds, sizes in bytes."""

    model_config = ConfigDict(json_schema_extra=CLIENT_KEYS_FOR_ISOLATION)

    host: NonEmptyText = "127.0.0.1"
    """Address to listen on for clients; `0.0.0.0` for every interface."""
    port: Port = 8080
    """0 takes any free port."""
    tls: ServerTls | None = None
    """None: plain HTTP. Applies to the server's port; the port of `ops` is always plain."""
    workers: WorkerCount = 1
    """Processes that serve calls, or `auto`: one for each processor. With several, `ops.port` must be set, and limits
    of memory, disk space and connections hold for each of them."""
    max_body: Size = 64 * 1024**2
    """A larger request is refused with 413. A body of more than 1 MiB is stored in a file under TMPDIR."""
    max_buffered: Size = 256 * 1024**2
    """Memory for unary responses, all together; beyond it they are relayed as they arrive, without validation."""
    max_upload: Size = 512 * 1024**2
    """The largest body of `/v1/files` and `/v1/uploads`, for callers with one of `client_keys` or from this machine.
    For all others, and where it is smaller, `max_body` applies."""
    max_spool: OptionalSize = None
    """Disk space of all request bodies that wait in files, together. None: 4 GiB, or half of the disk that is free
    under TMPDIR when the gateway starts, whichever is smaller."""
    max_connections: ConnectionCount | None = None
    """Maximum number of open connections; None: half of the process's file descriptors. A new one replaces the one that
    has been idle for longest. Never more than the descriptors less 64."""
    head_timeout: Seconds = 15.0
    """How long the request line and the headers may take to arrive."""
    body_timeout: Seconds = 60.0
    """How long the body may take to arrive, plus a second for every 16 KiB of it."""
    keep_alive: Seconds = 75.0
    """How long an idle connection is kept. Must be longer than in the load balancer in front, or calls are lost."""
    drain: Seconds = 30.0
    """How long open calls may take to finish after SIGTERM."""
    drain_delay: Pause = 0.0
    """How long new connections are still accepted after SIGTERM; /readyz is 503 meanwhile."""
    client_keys: tuple[ClientKey, ...] = ()
    """Empty: any caller may call, and its own provider key is passed on."""
    isolate_objects: bool = False
    """True: objects that a provider keeps (files, batches, responses, ...) belong to the client key that created them.
    """
    idempotency: dict[str, bool] = Field(default_factory=dict)
    """By path: whether a call that may have been executed may be sent again. Overrides the built-in rules."""

    @field_validator("idempotency")
    @classmethod
    def _check_idempotency(cls, idempotency: dict[str, bool]) -> dict[str, bool]:
        for path in idempotency:
            if not path.startswith("/v1/") or "*" in path[:-1]:
                raise wrong(f"{path}: write a path below /v1/, with * at its end for all below it")
        return idempotency


def _default_auth(data: dict[str, Any]) -> Auth:
    return "bearer" if data.get("form") is not None else DIALECTS[data["dialect"]].DEFAULT_AUTH


class UpstreamConfig(Strict):
    """One upstream. `base_url` has no slash at its end. Without any of `api_key`, `api_key_file` and `api_keys` the
    caller's key is passed on."""

    model_config = ConfigDict(
        json_schema_extra={"allOf": [*ONE_KEY_SOURCE, *CLOUD_AUTH, *BASE_URL_OF_DIALECT, *FORMS_OF_DIALECTS]}
    )

    dialect: DialectName
    """Wire format of the provider."""
    base_url: str = Field(json_schema_extra=BASE_URL)
    """Address of the provider's API, with `/v1` for openai and without it for anthropic."""
    query: Query = Field(default_factory=dict, repr=False)
    """Parameters that are appended to the URL of every request; they replace a caller's of the same name."""
    form: FormName | None = None
    """The form of a cloud in which it takes requests: vertex for Claude on Vertex AI, bedrock-invoke for InvokeModel of
    Amazon Bedrock, both of dialect anthropic. None: the dialect's own."""
    api_key: OptionalSecret = Field(default=None, repr=False)
    """None: the caller's key is passed on, unless there is an `api_key_file` or there are `api_keys`."""
    api_key_file: NonEmptyText | None = None
    """A file that contains only the key; it is read again when it changes."""
    api_keys: ApiKeys = ()
    """Several keys: each call is sent with the one that has the fewest calls of those that are not in a cooldown."""
    tls: UpstreamTls | None = None
    """None: trusts the certificates of the system, or of SSL_CERT_FILE, and shows no client certificate."""
    aws: AwsSettings | None = None
    """None: the defaults, with `auth: aws`."""
    google: GoogleSettings | None = None
    """None: the defaults, with `auth: google`."""
    entra: EntraSettings | None = None
    """None: the defaults, with `auth: entra`."""
    auth: Auth = Field(default_factory=_default_auth)
    """How the key is sent, by default `bearer` for openai and with a `form`, `x-api-key` for anthropic. `aws`, `google`
    and `entra`: with credentials of the cloud instead, which are renewed before they expire."""
    errors: tuple[ErrorRule, ...] = ()
    """Matched in this order, before the built-in tables."""
    answers: Literal["strict", "off"] = "strict"
    """strict: a 200 that is not what the endpoint returns is a failed attempt; off: responses are not validated."""
    prefill: Prefill | None = None
    """How its models accept the beginning of a response; None: as known for the provider."""
    stream_end: StreamEnd = "strict"
    """lenient: a chat or completion that ends with `[DONE]` and no finish_reason is complete, unless it continues
    another stream that died."""
    responses: Literal["native", "chat"] = "native"
    """chat: it has no Responses API: calls of /v1/responses become chats. For dialect openai."""
    probe: ProbeSettings | None = None
    """None: not probed. An upstream that an engine serves is probed unless the file says otherwise."""

    @property
    def has_own_key(self) -> bool:
        """True if calls are sent with the gateway's key or credentials, not with the caller's key."""
        return bool(self.api_key or self.api_key_file or self.api_keys or self.cloud)

    @property
    def cloud(self) -> CloudSettings | None:
        """Where the credentials of a cloud come from; None: calls are sent with a key."""
        for auth in CLOUDS:
            if auth == self.auth:
                return resolved(auth, getattr(self, auth), self.base_url)
        return None

    @field_validator("auth")
    @classmethod
    def _check_auth(cls, auth: Auth, info: ValidationInfo) -> Auth:
        if (form := info.data.get("form")) is not None and auth in ("x-api-key", "api-key"):
            raise wrong(f"must be bearer, none or a cloud's with form {form}: it takes no key in {auth}")
        for cloud in CLOUDS:
            if auth == cloud:
                check_cloud(cloud, info.data)
        return auth

    @model_validator(mode="after")
    def _check_unused_settings(self) -> UpstreamConfig:
        for cloud in CLOUDS:
            if getattr(self, cloud) is not None and self.auth != cloud:
                raise wrong(f"has settings in `{cloud}`, which need `auth: {cloud}`")
        return self

    @field_validator("form")
    @classmethod
    def _check_form(cls, form: FormName | None, info: ValidationInfo) -> FormName | None:
        if form is None or "dialect" not in info.data or "base_url" not in info.data:
            return form
        if info.data["dialect"] != FORM_DIALECTS[form]:
            raise wrong(
                f"{form} is for dialect {FORM_DIALECTS[form]}; leave it out with dialect {info.data['dialect']}"
            )
        if form in FORM_BASE_URLS and not re.search(FORM_BASE_URLS[form], info.data["base_url"]):
            raise wrong(f"{form} needs a base_url that ends with /v1/projects/PROJECT/locations/LOCATION")
        return form

    @field_validator("probe")
    @classmethod
    def _check_probe(cls, probe: ProbeSettings | None, info: ValidationInfo) -> ProbeSettings | None:
        if (form := info.data.get("form")) is not None and probe is not None and probe.kind == "models":
            raise wrong(f"kind must be health with form {form}, which has no list of models: give deployments a probe")
        return probe

    @field_validator("api_key_file", "api_keys")
    @classmethod
    def _check_one_source(cls, value: Any, info: ValidationInfo) -> Any:
        others = [name for name in ("api_key", "api_key_file") if info.data.get(name) is not None]
        if value and others:
            raise wrong(f"conflicts with {others[0]}: set only one of api_key, api_key_file and api_keys")
        return value

    @field_validator("tls")
    @classmethod
    def _check_tls(cls, tls: UpstreamTls | None, info: ValidationInfo) -> UpstreamTls | None:
        if tls is not None and str(info.data.get("base_url", "https:")).startswith("http:"):
            raise wrong("requires a base_url that begins with https")
        return tls

    @field_validator("stream_end")
    @classmethod
    def _check_stream_end(cls, stream_end: StreamEnd, info: ValidationInfo) -> StreamEnd:
        dialect = DIALECTS.get(info.data.get("dialect", ""))
        if stream_end == "lenient" and dialect is not None and dialect.END_EVENT is not None:
            name, end = info.data["dialect"], dialect.END_EVENT
            raise wrong(f"must be strict with dialect {name}: its streams always end with {end}")
        return stream_end

    @field_validator("responses")
    @classmethod
    def _check_responses(cls, responses: str, info: ValidationInfo) -> str:
        dialect = DIALECTS.get(info.data.get("dialect", ""))
        if responses == "chat" and dialect is not None and dialect.RESPONSES_PATH is None:
            raise wrong(f"must be native: the dialect {info.data['dialect']} has no Responses API")
        return responses

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, url: str, info: ValidationInfo) -> str:
        url = _http_url(url)
        dialect = DIALECTS.get(info.data.get("dialect", ""))
        if dialect is not None and not dialect.PATH_IN_BASE_URL and url.endswith("/v1"):
            raise wrong(f"remove /v1: with dialect {info.data['dialect']} it is part of each call's path")
        return url


def _http_url(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise wrong("must be a URL such as https://api.example.com/v1") from None
    if not is_whole or not url.isprintable() or " " in url:
        raise wrong("must be a URL such as https://api.example.com/v1")
    if "@" in parts.netloc:
        raise wrong("must not contain a user or password; put the key in api_key")
    if "?" in url or "#" in url:
        raise wrong("must not contain a query or a fragment; put parameters such as api-version in `query`")
    return url.rstrip("/")


class Rules(Strict):
    """Settings that `defaults` makes for all models, and a model for itself."""

    timeout: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    capacity: CapacitySettings = CapacitySettings()
    balance: Balance = "order"
    """Order among deployments of one priority."""
    hedge: HedgeSettings | None = None
    """None: never two attempts at once."""
    stream: StreamSettings = StreamSettings()
    max_buffered_answer: Size = 16 * 1024**2
    """A unary JSON response up to this size is read completely and validated before anything is sent; a larger one is
    relayed."""
    cache: CacheSettings | None = None
    """None: every call goes to a provider."""
    dead_letter: DeadLetterMode = "on_request"
    """Which failed calls are stored: those with the header `x-llm-guard-dead-letter: true`, all, or none."""
    deferred: DeferredSettings = DeferredSettings()
    degraded: DegradedSettings | None = None
    """None: no fallback responses."""
    translate: Translation = TranslateSettings()
    """How calls are translated for deployments of another dialect; off: they are not."""


class DeploymentConfig(Strict):
    upstream: NonEmptyText
    """Name of an upstream."""
    model: NonEmptyText | None = None
    """Model name to send to the upstream; None: the name that the client sent."""
    weight: Weight = 1.0
    """Its share of the calls, relative to the other deployments, with `balance: weighted`."""
    priority: Priority = 0
    """Deployments with a lower number are tried first."""
    prefill: Prefill | None = None
    """None: the upstream's."""
    max_tokens: OptionalCount = None
    """Output limit for calls that are translated for it and have none; None: `translate.max_tokens`."""
    probe: CompletionProbeSettings | None = None
    """None: no calls for one token as probes."""

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str | None) -> str | None:
        if model is not None and (is_pattern(model) or not is_name(model)):
            raise wrong("must be the name of one model; leave it out to send the requested name")
        return model


class ModelRouting(Strict):
    """Deployments and fallbacks of a model. Separate, because they are checked even if the model's other settings are
    invalid."""

    deployments: tuple[DeploymentConfig, ...] = Field(min_length=1, json_schema_extra={"uniqueItems": True})
    """Tried in this order, unless `balance` or `priority` says otherwise."""
    fallbacks: tuple[NonEmptyText, ...] = Field(default=(), json_schema_extra={"uniqueItems": True})
    """Models that are tried when this one cannot serve a call, in this order. Calls are translated for those of another
    dialect."""


class ModelConfig(ModelRouting, Rules):
    """One entry of `models`, merged with the defaults."""


class ProbesConfig(Strict):
    """Settings of all probes together."""

    concurrency: Count = 50
    """Maximum number of probes at once."""


class Config(Strict):
    server: Server
    ops: Ops
    store: StoreConfig
    fleet: FleetConfig | None = None
    """None: this gateway is alone."""
    probes: ProbesConfig
    upstreams: dict[str, UpstreamConfig] = Field(json_schema_extra=named(UPSTREAM_NAME))
    """Provider endpoints, by a name of your choice."""
    engines: dict[str, EngineConfig] = Field(default_factory=dict)
    """Servers that the gateway starts and restarts, by a name of your choice."""
    defaults: Rules
    """Settings of all models. A model's own settings override them key by key."""
    models: dict[str, ModelConfig] = Field(json_schema_extra=named(MODEL_NAME))
    """The names that clients request. A key with `*` is a pattern; an exact name is preferred to a pattern."""
