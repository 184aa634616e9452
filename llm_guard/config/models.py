"""The config as frozen models.

Owns every key of the file, its range and its default. Does not own a policy's settings (they stand beside the
policy), nor what holds between keys (`config.checks`).
"""

from __future__ import annotations

import urllib.parse
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from llm_guard.config.engines import EngineConfig
from llm_guard.config.errors import ErrorRule
from llm_guard.config.fields import OptionalSecret, Port, Secret, Text, wrong
from llm_guard.config.lasting import StoreConfig
from llm_guard.config.names import is_name, is_pattern
from llm_guard.config.operator import Ops
from llm_guard.config.strict import Strict
from llm_guard.dialect import DialectName
from llm_guard.dialect.continuation import Prefill
from llm_guard.policy.backoff import RetrySettings
from llm_guard.policy.balance import Balance, Priority, Weight
from llm_guard.policy.breaker import BreakerSettings
from llm_guard.policy.client_limits import ClientLimitSettings
from llm_guard.policy.deadline import TimeoutSettings
from llm_guard.policy.degraded import DegradedSettings
from llm_guard.policy.freshness import CacheSettings
from llm_guard.policy.gate import CapacitySettings
from llm_guard.policy.hedge import HedgeSettings
from llm_guard.policy.later import LaterSettings, Letters
from llm_guard.policy.probing import CompletionProbeSettings, ProbeSettings
from llm_guard.policy.stream import StreamEnd, StreamSettings
from llm_guard.policy.units import Count, OptionalSize, Pause, Seconds, Size

Connections = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Auth = Literal["bearer", "x-api-key", "api-key", "none"]


class ClientKey(Strict):
    name: Text
    key: Secret = Field(repr=False)
    priority: Literal["high", "normal", "low"] = "normal"
    """The highest that its calls may ask for."""
    weight: Weight = 1.0
    """Its share of the turns where calls of one priority wait, relative to other callers'."""
    limits: ClientLimitSettings = ClientLimitSettings()


class Server(Strict):
    """Where clients reach the gateway. Durations in seconds, sizes in bytes."""

    host: Text = "127.0.0.1"
    port: Port = 8080
    max_body: Size = 64 * 1024**2
    max_buffered: Size = 256 * 1024**2
    """Of unary answers in memory, all together; beyond it they are relayed as they come, unjudged."""
    max_upload: Size = 512 * 1024**2
    """The largest body of `/v1/files` and `/v1/uploads`, from callers with one of `client_keys` or from this machine
    itself; for all others, and where it is smaller, `max_body` holds."""
    max_spool: OptionalSize = None
    """Disk space of all bodies that wait in files, together. None: 4 GiB, or half of the disk that is free under TMPDIR
    when the gateway starts, whichever is smaller."""
    max_connections: Connections | None = None
    """At once; None: half of the descriptors that the process may have. A new one takes the place of the one that has
    been idle for longest. Never more than the descriptors less 64."""
    head_timeout: Seconds = 15.0
    """For the request line and the headers to arrive."""
    body_timeout: Seconds = 60.0
    """For the body to arrive, and a second more for every 16 KiB of it."""
    keep_alive: Seconds = 75.0
    """An idle connection is kept this long. Longer than the load balancer in front keeps it, else calls are lost."""
    drain: Seconds = 30.0
    """SIGTERM leaves open calls this long to end."""
    drain_delay: Pause = 0.0
    """SIGTERM turns /readyz to 503; new connections are accepted for this long after."""
    client_keys: tuple[ClientKey, ...] = ()
    repeat: dict[str, bool] = Field(default_factory=dict)
    """Whether a call may be sent again once it may have been executed, by path; over the built-in rules."""

    @field_validator("repeat")
    @classmethod
    def _check_repeat(cls, repeat: dict[str, bool]) -> dict[str, bool]:
        for path in repeat:
            if not path.startswith("/v1/") or "*" in path[:-1]:
                raise wrong(f"{path}: write a path below /v1/, with * at its end for all below it")
        return repeat


def _usual_auth(data: dict[str, Any]) -> Auth:
    return "x-api-key" if data["dialect"] == "anthropic" else "bearer"


class UpstreamConfig(Strict):
    """`base_url` has no slash at its end; `api_key` None: the caller's is passed on."""

    dialect: DialectName
    base_url: str
    api_key: OptionalSecret = Field(default=None, repr=False)
    auth: Auth = Field(default_factory=_usual_auth)
    errors: tuple[ErrorRule, ...] = ()
    """Asked in this order, before the built-in tables."""
    answers: Literal["strict", "off"] = "strict"
    """strict: a 200 that is not what the endpoint returns is a failed attempt; off: shapes are not judged."""
    prefill: Prefill | None = None
    """How its models take the beginning of an answer; None: as is known of the provider."""
    stream_end: StreamEnd = "strict"
    """lenient: a chat or completion that ends with `[DONE]` and no finish_reason is whole, unless it goes on from
    another stream that died."""
    probe: ProbeSettings | None = None
    """None: it is not looked at beside its calls. One that an engine serves is looked at unless the file says so."""

    @field_validator("stream_end")
    @classmethod
    def _check_stream_end(cls, stream_end: StreamEnd, info: ValidationInfo) -> StreamEnd:
        if stream_end == "lenient" and info.data.get("dialect") == "anthropic":
            raise wrong("is for dialect openai: a message of Anthropic's always ends with message_stop")
        return stream_end

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, url: str, info: ValidationInfo) -> str:
        url = _http_url(url)
        if info.data.get("dialect") == "anthropic" and url.endswith("/v1"):
            raise wrong("leave /v1 off: with dialect anthropic the path of each call brings it")
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
        raise wrong("must not carry a user or a password; a key stands in api_key")
    if "?" in url or "#" in url:
        raise wrong("must not carry a query or a fragment")
    return url.rstrip("/")


class Rules(Strict):
    """What `defaults` sets for all models, and a model for itself."""

    timeout: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    capacity: CapacitySettings = CapacitySettings()
    balance: Balance = "order"
    hedge: HedgeSettings | None = None
    """None: never two attempts at once."""
    stream: StreamSettings = StreamSettings()
    max_buffered_answer: Size = 16 * 1024**2
    """A unary JSON answer up to this size is read whole and judged before anything is sent; a larger one is relayed."""
    cache: CacheSettings | None = None
    """None: every call goes to a provider."""
    dead_letter: Letters = "on_request"
    answer_later: LaterSettings = LaterSettings()
    degraded: DegradedSettings | None = None
    """None: no lesser answers."""


class DeploymentConfig(Strict):
    upstream: Text
    model: Text | None = None
    """The model to ask the upstream for; None: the name that the client asked for."""
    weight: Weight = 1.0
    priority: Priority = 0
    prefill: Prefill | None = None
    """None: the upstream's."""
    probe: CompletionProbeSettings | None = None
    """None: it is not called for one token now and then."""

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str | None) -> str | None:
        if model is not None and (is_pattern(model) or not is_name(model)):
            raise wrong("must be the name of one model; leave it out to pass on the name that was asked for")
        return model


class Way(Strict):
    """Where a model's calls go. Apart, because it is checked even where the model's rules are wrong."""

    deployments: tuple[DeploymentConfig, ...] = Field(min_length=1)
    fallbacks: tuple[Text, ...] = ()


class ModelConfig(Way, Rules):
    """One entry of `models`, its rules merged with the defaults."""


class Probing(Strict):
    """Looks at upstreams beside their calls, all together."""

    concurrency: Count = 50
    """At once."""


class Config(Strict):
    server: Server
    ops: Ops
    store: StoreConfig
    probing: Probing
    upstreams: dict[str, UpstreamConfig]
    engines: dict[str, EngineConfig] = Field(default_factory=dict)
    defaults: Rules
    models: dict[str, ModelConfig]
