"""One probe of an upstream, over the same connections as calls: its request, and how much of the response is read.

What the responses mean is decided in `resilience.health.probe_policy`; when and how long to probe, in
`upstreams.probes.prober`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from llm_guard.dialects import DIALECTS
from llm_guard.outcome import FailureKind, Source
from llm_guard.proxy.call import Exchange
from llm_guard.proxy.headers import lower_names
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError
from llm_guard.resilience.health.probe_policy import (
    ProbeResult,
    ProbeSettings,
    evaluate_completion,
    evaluate_health,
    evaluate_models,
)
from llm_guard.routing.deployment import Upstream, key_header
from llm_guard.upstreams.probes.targets import ProbeTarget, health_path

_MOST_BYTES = 1 << 16
_MOST_LIST_BYTES = 1 << 22
"""Limit for a list of models. OpenRouter's is half a megabyte."""


class Probe(Protocol):
    """Probes one subject repeatedly."""

    async def look(self) -> ProbeResult:
        """Runs one probe. Has no timeout of its own; closes the exchange at once if cancelled."""


def new_probe(subject: ProbeTarget, connections: ConnectionPool) -> Probe:
    """Creates the kind of probe that the subject's settings name."""
    asker = _Asker(subject.upstream, connections)
    if not isinstance(subject.settings, ProbeSettings):
        return _CompletionLook(asker, subject.model or "")
    if subject.settings.kind == "models":
        return _ModelsLook(asker, subject.wanted)
    return _HealthLook(asker, health_path(subject))


@dataclass(frozen=True, slots=True)
class _Heard:
    status: int
    is_json: bool
    body: bytes
    """Empty if the response was longer than the limit."""


class _HealthLook:
    """Sends HEAD, and GET if HEAD is refused or the response is JSON that must be read. Once GET has succeeded, later
    probes send GET only."""

    def __init__(self, asker: _Asker, path: str) -> None:
        self._asker = asker
        self._path = path
        self._is_head_enough = True

    async def look(self) -> ProbeResult:
        if self._is_head_enough:
            heard = await self._asker.ask("HEAD", self._path)
            if 200 <= heard.status < 300 and not heard.is_json:
                return evaluate_health(heard.status, None)
        heard = await self._asker.ask("GET", self._path)
        if 200 <= heard.status < 300:
            self._is_head_enough = False
        said = _decoded(heard.body, dict)
        return evaluate_health(heard.status, None if said is None else said.get("status"))


class _ModelsLook:
    """Gets the list of models with the upstream's own key."""

    def __init__(self, asker: _Asker, wanted: Collection[str]) -> None:
        self._asker = asker
        self._wanted = wanted

    async def look(self) -> ProbeResult:
        heard = await self._asker.ask("GET", self._asker.target(self._asker.dialect.MODELS_PATH), most=_MOST_LIST_BYTES)
        found = _decoded(heard.body, _Listed)
        return evaluate_models(
            heard.status, None if found is None else {model.id for model in found.data}, self._wanted
        )


class _CompletionLook:
    """Sends a call for one token."""

    def __init__(self, asker: _Asker, model: str) -> None:
        self._asker = asker
        self._path = asker.target(asker.dialect.DEFAULT_PATH)
        self._body = json.dumps(asker.dialect.probe_body(model, asker.upstream.family)).encode()

    async def look(self) -> ProbeResult:
        heard = await self._asker.ask("POST", self._path, self._body)
        said = _decoded(heard.body, dict)
        return evaluate_completion(heard.status, bool(said) and not said.get("error") and said.get("type") != "error")


class _Listed(msgspec.Struct):
    data: list[_Model]


class _Model(msgspec.Struct):
    id: str


class _Asker:
    """Sends requests to one upstream."""

    def __init__(self, upstream: Upstream, connections: ConnectionPool) -> None:
        self.upstream = upstream
        self.dialect = DIALECTS[upstream.dialect]
        self._connections = connections

    def target(self, path: str) -> str:
        """Path at this upstream of an endpoint that clients call at `path`."""
        return f"{self.upstream.base_path}{path.removeprefix(self.upstream.path_in_base_url)}"

    async def ask(self, method: str, target: str, body: bytes = b"", most: int = _MOST_BYTES) -> _Heard:
        """Runs one exchange and reads at most `most` bytes of its response. Raises UpstreamError."""
        exchange = await self._send(method, target, body)
        try:
            is_json = "json" in lower_names(exchange.headers).get("content-type", "")
            return _Heard(exchange.status, is_json, await _read(exchange, most))
        finally:
            exchange.abort()

    async def _send(self, method: str, target: str, body: bytes) -> Exchange:
        """Repeats the request on a new connection if the kept-alive one had been closed: that says nothing about the
        upstream. A POST, which costs tokens, uses a new connection from the start."""
        is_repeatable = method != "POST"
        headers = _headers(self.upstream)
        if body:
            headers.append(("Content-Type", "application/json"))
        send = self._connections.origin(self.upstream.link).send
        try:
            return await send(method, target, headers, body, None, is_repeatable=is_repeatable)
        except UpstreamError as error:
            if error.kind is not FailureKind.RETIRED:
                raise
        return await send(method, target, headers, body, None, is_repeatable=False)


def result_of_error(error: UpstreamError) -> ProbeResult:
    """Result of a probe after its exchange failed: `failed` if the upstream caused it, else `unclear`."""
    is_theirs = error.kind.source is Source.UPSTREAM
    return ProbeResult("failed" if is_theirs else "unclear", error.detail)


async def _read(exchange: Exchange, most: int) -> bytes:
    pieces, size = [], 0
    while data := await exchange.read():
        size += len(data)
        if size > most:
            return b""
        pieces.append(data)
    return b"".join(pieces)


def _decoded(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _headers(upstream: Upstream) -> list[tuple[str, str]]:
    headers = [("Accept", "application/json, */*"), ("Accept-Encoding", "identity"), ("User-Agent", "llm-guard")]
    own_key = key_header(upstream.auth, upstream.secret)
    if own_key is not None:
        headers.append(own_key)
    return [*headers, *DIALECTS[upstream.dialect].REQUIRED_HEADERS]
