"""The `fleet` section: several gateways that share evidence, limits, overrides and notices."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from llm_guard.config.fields import NonEmptyText, Strict, wrong

_KINDS: Mapping[str, Literal["server", "sentinel", "cluster"]] = {
    "redis": "server", "rediss": "server", "unix": "server",
    "redis+sentinel": "sentinel", "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster", "rediss+cluster": "cluster",
}  # fmt: skip
_PORTS = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_OPTIONS = frozenset({"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_PATTERN = {"type": "string", "pattern": r"^(rediss?(\+sentinel|\+cluster)?://[^/?#\s]|unix://|\$\{)"}
_EXAMPLES = (
    "redis://HOST:6379/0, rediss://HOST:6380/0, unix:///PATH?db=0, redis+sentinel://HOST:26379,HOST:26379/SERVICE or "
    "redis+cluster://HOST:6379,HOST:6379"
)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The parts of a store's URL."""

    kind: Literal["server", "sentinel", "cluster"]
    hosts: tuple[tuple[str, int], ...]
    """Host and port of the server, of each Sentinel, or of some nodes of the cluster; empty for a UNIX socket."""
    path: str
    """The UNIX socket."""
    service: str
    """Name under which Sentinels know the master."""
    database: int
    username: str | None
    password: str | None
    is_tls: bool
    options: Mapping[str, str]
    """Options after `?`, beside `db`."""


def store_address(url: str) -> StoreAddress:
    """Returns the parts of a store's URL. Raises ValueError."""
    parts = urllib.parse.urlsplit(url)
    kind = _KINDS[parts.scheme] if parts.scheme in _KINDS else _refuse("an unknown scheme")
    options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    login, _, places = parts.netloc.rpartition("@")
    username, _, password = (urllib.parse.unquote(text) for text in login.partition(":"))
    is_unix = parts.scheme == "unix"
    hosts = () if is_unix else tuple(_host(place, _PORTS[kind]) for place in places.split(","))
    if kind == "server" and len(hosts) > 1:
        _refuse("several hosts")
    segments = [] if is_unix else [urllib.parse.unquote(part) for part in parts.path.strip("/").split("/") if part]
    service = segments.pop(0) if kind == "sentinel" and segments else ""
    database = segments.pop(0) if segments else options.get("db", "0")
    if segments or not (database.isascii() and database.isdigit()) or (kind == "cluster" and int(database)):
        _refuse("no such database")
    if (kind == "sentinel" and not service) or (is_unix and not parts.path):
        _refuse("no service, or no path")
    return StoreAddress(
        kind, hosts, parts.path if is_unix else "", service, int(database), username or None, password or None,
        parts.scheme.startswith("rediss"), {name: value for name, value in options.items() if name != "db"},
    )  # fmt: skip


def _host(place: str, default: int) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(f"//{place}")
    if not parts.hostname or parts.port == 0:
        _refuse("no host")
    return parts.hostname or "", parts.port or default


def _refuse(why: str) -> Literal["server"]:
    raise ValueError(why)


def _check_url(url: str) -> str:
    try:
        address = store_address(url)
    except ValueError:
        raise wrong(f"must be a URL such as {_EXAMPLES}") from None
    if unknown := sorted(address.options.keys() - _OPTIONS):
        raise wrong(f"has an unknown option after `?`: {unknown[0]}; known are {', '.join(sorted(_OPTIONS))}")
    if find_spec("redis") is None:
        raise wrong("needs redis, which is not installed: pip install 'llm-guard-proxy[redis]'")
    return url


StoreUrl = Annotated[str, AfterValidator(_check_url), WithJsonSchema(_PATTERN)]


class FleetConfig(Strict):
    """A fleet: the gateways with one store and one name. Without the store each of them works alone."""

    store: StoreUrl = Field(repr=False)
    """Redis (6.2 or newer) or Valkey: `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`, `unix:///PATH?db=0`,
    `redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT],HOST[:PORT]/SERVICE[/DB]` for the master that Sentinels name, or
    `redis+cluster://[[USER]:PASSWORD@]HOST[:PORT],HOST[:PORT]` for a cluster; `rediss` for TLS. Options after `?`: db,
    ssl_ca_certs, ssl_certfile, ssl_keyfile. Overrides by operators are kept there for 30 days, all else for a minute,
    besides calls and responses that `store` puts there. No call waits for it."""
    name: NonEmptyText = "default"
    """Gateways with other names may use the same store."""
