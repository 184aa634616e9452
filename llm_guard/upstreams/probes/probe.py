"""One probe of an upstream, over the same connections as calls.

What the responses mean is decided in `resilience.health.probe_policy`; when and how long to probe, in
`upstreams.probes.prober`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Protocol

from llm_guard.outcome import Source
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError
from llm_guard.resilience.health.probe_policy import (
    ProbeResult,
    ProbeSettings,
    evaluate_completion,
    evaluate_health,
    evaluate_models,
)
from llm_guard.upstreams.probes.requests import MOST_LIST_BYTES, ModelList, UpstreamRequests, decoded
from llm_guard.upstreams.probes.targets import ProbeTarget, health_path


class Probe(Protocol):
    """Probes one subject repeatedly."""

    async def look(self) -> ProbeResult:
        """Runs one probe. Has no timeout of its own; closes the exchange at once if cancelled."""


def new_probe(subject: ProbeTarget, connections: ConnectionPool) -> Probe:
    """Creates the kind of probe that the subject's settings name."""
    asker = UpstreamRequests(subject.upstream, connections)
    if not isinstance(subject.settings, ProbeSettings):
        return _CompletionLook(asker, subject.model or "")
    if subject.settings.kind == "models":
        return _ModelsLook(asker, subject.wanted)
    return _HealthLook(asker, health_path(subject))


class _HealthLook:
    """Sends HEAD, and GET if HEAD is refused or the response is JSON that must be read. Once GET has succeeded, later
    probes send GET only."""

    def __init__(self, asker: UpstreamRequests, path: str) -> None:
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
        said = decoded(heard.body, dict)
        return evaluate_health(heard.status, None if said is None else said.get("status"))


class _ModelsLook:
    """Gets the list of models with the upstream's own key."""

    def __init__(self, asker: UpstreamRequests, wanted: Collection[str]) -> None:
        self._asker = asker
        self._wanted = wanted

    async def look(self) -> ProbeResult:
        heard = await self._asker.ask("GET", self._asker.target(self._asker.dialect.MODELS_PATH), most=MOST_LIST_BYTES)
        found = decoded(heard.body, ModelList)
        return evaluate_models(
            heard.status, None if found is None else {model.id for model in found.data}, self._wanted
        )


class _CompletionLook:
    """Sends a call for one token."""

    def __init__(self, asker: UpstreamRequests, model: str) -> None:
        self._asker = asker
        self._path = asker.target(asker.dialect.DEFAULT_PATH)
        self._body = json.dumps(asker.dialect.probe_body(model, asker.upstream.family)).encode()

    async def look(self) -> ProbeResult:
        heard = await self._asker.ask("POST", self._path, self._body)
        said = decoded(heard.body, dict)
        return evaluate_completion(heard.status, bool(said) and not said.get("error") and said.get("type") != "error")


def result_of_error(error: UpstreamError) -> ProbeResult:
    """Result of a probe after its exchange failed: `failed` if the upstream caused it, else `unclear`."""
    is_theirs = error.kind.source is Source.UPSTREAM
    return ProbeResult("failed" if is_theirs else "unclear", error.detail)
