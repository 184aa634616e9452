"""Upstreams in the config: their address, credentials and form."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from llm_guard.config.api_keys import ApiKeys
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
from llm_guard.config.errors import ErrorRule
from llm_guard.config.fields import NonEmptyText, OptionalSecret, Strict, wrong
from llm_guard.config.schema_rules import (
    BASE_URL,
    BASE_URL_OF_DIALECT,
    CLOUD_AUTH,
    FORM_BASE_URLS,
    FORMS_OF_DIALECTS,
    ONE_KEY_SOURCE,
)
from llm_guard.config.tls import UpstreamTls
from llm_guard.dialects import DIALECTS, FORM_DIALECTS, DialectName, FormName
from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.resilience.health.probe_policy import ProbeSettings
from llm_guard.resilience.streams.settings import StreamEnd

Auth = Literal["bearer", "x-api-key", "api-key", "none", CloudAuth]


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
