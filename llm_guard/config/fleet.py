"""The `fleet` section: several gateways that share what they know of their deployments."""

from __future__ import annotations

import urllib.parse
from importlib.util import find_spec
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from llm_guard.config.fields import NonEmptyText, Strict, wrong

_SCHEMES = ("redis", "rediss", "unix")
_PATTERN = {"type": "string", "pattern": r"^(rediss?://[^/?#\s]|unix://|\$\{)"}


def _check_url(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        is_whole = parts.scheme in _SCHEMES and bool(parts.path if parts.scheme == "unix" else parts.hostname)
        is_whole = is_whole and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise wrong("must be a URL such as redis://HOST:6379/0, rediss://HOST:6380/0 or unix:///PATH?db=0")
    if find_spec("redis") is None:
        raise wrong("needs redis, which is not installed: pip install 'llm-guard-proxy[redis]'")
    return url


StoreUrl = Annotated[str, AfterValidator(_check_url), WithJsonSchema(_PATTERN)]


class FleetConfig(Strict):
    """A fleet: the gateways with one store and one name. Without the store each of them works alone."""

    store: StoreUrl = Field(repr=False)
    """Redis (6.2 or newer) or Valkey: `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` with TLS, or
    `unix:///PATH?db=0`. Nothing is kept there for longer than a minute, and no call waits for it."""
    name: NonEmptyText = "default"
    """Gateways with other names may use the same store."""
