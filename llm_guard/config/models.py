"""The config as frozen models: every key of the file, with its range and its default.

The settings of a policy are defined in its module, constraints between keys in `config.checks`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from llm_guard.config.clients import ClientKey
from llm_guard.config.engines import EngineConfig
from llm_guard.config.fields import AlsoWritten, NonEmptyText, Port, Strict, wrong
from llm_guard.config.fleet import FleetConfig
from llm_guard.config.names import MODEL_NAME, UPSTREAM_NAME, is_name, is_pattern
from llm_guard.config.operator import Ops
from llm_guard.config.schema_rules import (
    CLIENT_KEYS_FOR_ISOLATION,
    named,
)
from llm_guard.config.storage import StoreConfig
from llm_guard.config.tls import ServerTls
from llm_guard.config.upstreams import UpstreamConfig
from llm_guard.config.workers import WorkerCount
from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.resilience.caching.freshness import CacheSettings
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.resilience.degradation.deferred import DeadLetterMode, DeferredSettings
from llm_guard.resilience.degradation.degraded_mode import DegradedSettings
from llm_guard.resilience.health.probe_policy import CompletionProbeSettings
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.hedging import HedgeSettings
from llm_guard.resilience.routing.candidates import Balance, Priority, TimeoutSettings, Weight
from llm_guard.resilience.streams.settings import StreamSettings
from llm_guard.resilience.translation.settings import TranslateSettings
from llm_guard.resilience.units import Count, OptionalCount, OptionalSize, Pause, Seconds, Size


def _off_is_none(value: object) -> object:
    return None if value is False or value == "off" else value  # YAML parses a bare `off` as False


Translation = Annotated[TranslateSettings | None, BeforeValidator(_off_is_none), AlsoWritten({"const": "off"})]
ConnectionCount = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


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
