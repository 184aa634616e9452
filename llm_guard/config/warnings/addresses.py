"""Warns of base URLs that calls cannot work with, and of listeners at which strangers can use the provider keys."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Iterator

from llm_guard.config.models import Config
from llm_guard.config.schema_rules import ENDPOINTS
from llm_guard.config.upstreams import UpstreamConfig
from llm_guard.config.yaml_source import Finding
from llm_guard.dialects import DIALECTS

_WITHOUT_VERSION = frozenset({"api.deepseek.com", "api.perplexity.ai"})
"""Providers that document a base URL without a path."""


def open_to_all(config: Config) -> Iterator[Finding]:
    """Yields a warning if strangers can make calls with the gateway's own provider keys."""
    paid = [name for name, upstream in config.upstreams.items() if upstream.has_own_key]
    if paid and not config.server.client_keys and not _is_loopback(config.server.host):
        reason = (
            f"{config.server.host} is reachable from other machines and there are no server.client_keys: any client "
            f"can use the API key of {', '.join(paid)}; add server.client_keys, or set host to 127.0.0.1"
        )
        yield ("server", "host"), reason


def wrong_base_urls(config: Config) -> Iterator[Finding]:
    """Yields a warning for each base URL that ends in an endpoint, or that lacks the dialect's `/v1`."""
    for name, upstream in config.upstreams.items():
        if reason := _wrong(upstream):
            yield ("upstreams", name, "base_url"), reason


def _wrong(upstream: UpstreamConfig) -> str | None:
    parts = urllib.parse.urlsplit(upstream.base_url)
    inside = DIALECTS[upstream.dialect].PATH_IN_BASE_URL
    for endpoint in ENDPOINTS:
        for ending in (endpoint, endpoint.removeprefix("/v1")):
            if parts.path.endswith(ending):
                superfluous = ending.removeprefix(inside)
                return f"ends in {superfluous}: remove it, because the gateway appends the path of each call"
    if inside and not parts.path and parts.hostname not in _WITHOUT_VERSION:
        return f"has no path: add {inside} to its end, as servers with dialect {upstream.dialect} expect it"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
