"""Upstreams: the endpoints of providers, as the config describes them."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass, field
from types import MappingProxyType

from llm_guard.config import Auth, AwsSettings, CloudSettings, UpstreamConfig
from llm_guard.dialects import DIALECTS, FORM_FAMILIES, DialectName, FormName
from llm_guard.dialects.prefill import prefill_of
from llm_guard.dialects.resume.transcript import Prefill
from llm_guard.resilience.circuit_breaker.cooldown import CooldownKey
from llm_guard.resilience.classification.rules import UserRule
from llm_guard.resilience.classification.vocabulary.families import family_of_url
from llm_guard.resilience.streams.settings import StreamEnd
from llm_guard.routing.api_keys import KeyFilePools, KeyPool, pool_of
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
