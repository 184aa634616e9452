"""The `fleet` section: several gateways that share evidence for their breakers, overrides by operators, and notices."""

from __future__ import annotations

import urllib.parse
from importlib.util import find_spec
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from llm_guard.config.fields import NonEmptyText, Strict, wrong

_SCHEMES = ("redis", "rediss", "unix")
_OPTIONS = frozenset({"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_PATTERN = {"type": "string", "pattern": r"^(rediss?://[^/?#\s]|unix://|\$\{)"}


def _check_url(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        is_unix = parts.scheme == "unix"
        is_whole = parts.scheme in _SCHEMES and bool(parts.path if is_unix else parts.hostname) and parts.port != 0
        database = options.get("db", "0") if is_unix else parts.path.strip("/") or options.get("db", "0")
    except ValueError:
        is_whole, options, database = False, {}, ""
    if not is_whole or not (database.isascii() and database.isdigit()):
        raise wrong("must be a URL such as redis://HOST:6379/0, rediss://HOST:6380/0 or unix:///PATH?db=0")
    if unknown := sorted(options.keys() - _OPTIONS):
        raise wrong(f"has an unknown option after `?`: {unknown[0]}; known are {', '.join(sorted(_OPTIONS))}")
    if find_spec("redis") is None:
        raise wrong("needs redis, which is not installed: pip install 'llm-guard-proxy[redis]'")
    return url


StoreUrl = Annotated[str, AfterValidator(_check_url), WithJsonSchema(_PATTERN)]


class FleetConfig(Strict):
    """A fleet: the gateways with one store and one name. Without the store each of them works alone."""

    store: StoreUrl = Field(repr=False)
    """Redis (6.2 or newer) or Valkey: `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` with TLS, or
    `unix:///PATH?db=0`. Options after `?`: db, ssl_ca_certs, ssl_certfile, ssl_keyfile. A cluster is not supported.
    Overrides by operators are kept there for 30 days, all else for a minute. No call waits for it."""
    name: NonEmptyText = "default"
    """Gateways with other names may use the same store."""
