"""Constraints between keys. The range of a single value is in `config.models`."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Collection, Mapping

from llm_guard.config.engines import EngineConfig
from llm_guard.config.fleet import FleetConfig
from llm_guard.config.models import ModelConfig, ModelRouting, Server
from llm_guard.config.names import UPSTREAM_NAME, did_you_mean, is_name, is_pattern, matching_key
from llm_guard.config.operator import Ops
from llm_guard.config.storage import StoreConfig
from llm_guard.config.upstreams import UpstreamConfig
from llm_guard.config.yaml_source import Document, KeyPath
from llm_guard.resilience.health.probe_policy import CompletionProbeSettings

_KEY_REMEDY = "set store.encryption_key to the output of `openssl rand -base64 32`, through a variable"
_REMEDY = "set it to the output of `openssl rand -base64 32`, through a variable"
_SHORT_TOKEN = 16


def check_listeners(document: Document, server: Server | None, ops: Ops | None) -> None:
    """Checks that the second listener has a port of its own and that client keys are distinct."""
    if server is None:
        return
    if ops is not None and ops.port == server.port != 0:
        document.report(("ops", "port"), "is the server's port; leave it out to serve both on one port")
    if server.isolate_objects and not server.client_keys:
        remedy = "add client_keys: without them objects belong to the callers' own accounts at the provider"
        document.report(("server", "isolate_objects"), remedy)
    owners: dict[str, str] = {}
    for index, client in enumerate(server.client_keys):
        path: KeyPath = ("server", "client_keys", index)
        if client.name in owners.values():
            document.report((*path, "name"), f"another client is named {client.name}")
        if client.key in owners:
            document.report((*path, "key"), f"is the key of {owners[client.key]} as well")
        owners.setdefault(client.key, client.name)
    if ops is not None:
        _check_tokens(document, ops, owners)


def _check_tokens(document: Document, ops: Ops, clients: Mapping[str, str]) -> None:
    """Checks that names and tokens are distinct, and that no token is also a client key."""
    owners = {key: f"the key of the client {name}" for key, name in clients.items()}
    if ops.token in owners:
        document.report(("ops", "token"), f"is {owners[ops.token]} as well")
    if ops.token is not None:
        owners.setdefault(ops.token, "ops.token")
    for index, token in enumerate(ops.tokens):
        path: KeyPath = ("ops", "tokens", index)
        if token.name in [other.name for other in ops.tokens[:index]]:
            document.report((*path, "name"), f"another token is named {token.name}")
        if token.token in owners:
            document.report((*path, "token"), f"is {owners[token.token]} as well")
        owners.setdefault(token.token, f"the token of {token.name}")


def check_names(document: Document, upstreams: Collection[str], models: Collection[str]) -> None:
    """Checks that names can be used in a URL path, a metric label and a request."""
    for name in upstreams:
        _check_name(document, ("upstreams", name), name)
    for name in models:
        if not is_name(name):
            document.report(("models", name), "a name has 1 to 256 printable characters")
        elif re.search(r"[?\[\]]", name):
            document.report(("models", name), "the only wildcard is *, for any text; ? and [ ] are not supported")


def _check_name(document: Document, path: KeyPath, name: str) -> None:
    if not re.fullmatch(UPSTREAM_NAME, name):
        document.report(path, "a name has 1 to 64 letters, digits, dots and dashes")


def check_engines(
    document: Document, engines: Mapping[str, EngineConfig | None], upstreams: Mapping[str, UpstreamConfig | None]
) -> None:
    """Checks that each engine serves existing upstreams that no other engine serves and that are probed."""
    owners: dict[str, str] = {}
    for name, engine in engines.items():
        _check_name(document, ("engines", name), name)
        for index, served in enumerate(engine.upstreams if engine is not None else ()):
            path: KeyPath = ("engines", name, "upstreams", index)
            owner = owners.setdefault(served, name)
            if served not in upstreams:
                document.report(path, f"no upstream has this name{did_you_mean(served, upstreams)}")
            elif owner != name:
                document.report(path, f"is served by the engine {owner}; define a separate upstream for this engine")
            elif (upstream := upstreams[served]) is not None and upstream.probe is None:
                reason = f"must not be null: the engine {name}, which serves it, is restarted when its probes fail"
                document.report(("upstreams", served, "probe"), reason)


def check_alerts(document: Document, ops: Ops | None, models: Collection[str]) -> None:
    """Checks that a rule's per-model settings are for existing models."""
    if ops is None:
        return
    success, latency = ops.alerts.success_rate, ops.alerts.latency
    exceptions = {"success_rate": success.models if success else {}, "latency": latency.models if latency else {}}
    for rule, named in exceptions.items():
        for name in named:
            if name not in models:
                place: KeyPath = ("ops", "alerts", rule, "models", name)
                document.report(place, f"no model has this name{did_you_mean(name, models)}")


def check_fleet(document: Document, fleet: FleetConfig | None, ops: Ops | None) -> None:
    """Checks that the gateways of a fleet have a token that they can have in common."""
    if fleet is None or ops is None:
        return
    place: KeyPath = ("ops", "token")
    if (token := ops.fleet_token) is None:
        document.report(("fleet",), f"needs ops.token, the same at all of its gateways: {_REMEDY}")
    elif len(token) < _SHORT_TOKEN:
        reason = f"needs at least {_SHORT_TOKEN} characters with `fleet`, since names in the store are protected by it"
        document.report(place, f"{reason}: {_REMEDY}")


def check_store(document: Document, store: StoreConfig | None, fleet: FleetConfig | None) -> None:
    """Checks that there is a key if something is to be encrypted, and a server if something is to be stored there."""
    if store is None:
        return
    if store.dead_letters.bodies == "encrypted" and store.encryption_key is None:
        document.report(("store", "dead_letters", "bodies"), f"cannot be encrypted: {_KEY_REMEDY}")
    for section, kind in (("cache", store.cache.kind), ("calls", store.calls.kind), ("objects", store.objects.kind)):
        path: KeyPath = ("store", section, "kind")
        if kind == "redis" and fleet is None:
            document.report(path, "needs a server: set fleet.store to redis://HOST:6379/0")
        if kind == "redis" and store.encryption_key is None and section != "objects":
            document.report(path, f"needs a key, since others may read the server: {_KEY_REMEDY}")
    if store.calls.kind == "redis" and store.dead_letters.bodies == "plain":
        reason = "must be encrypted or none with store.calls.kind: redis, since others may read the server"
        place: KeyPath = ("store", "dead_letters", "bodies")
        document.report(place, reason)


def check_completion_webhooks(
    document: Document, store: StoreConfig | None, models: Mapping[str, ModelConfig | None]
) -> None:
    """Checks that the completion webhook of each model exists."""
    known = [completion_webhook.name for completion_webhook in store.webhooks] if store is not None else []
    for name, model in models.items():
        webhook = model.deferred.webhook if model is not None else None
        if store is not None and webhook is not None and webhook not in known:
            place: KeyPath = ("models", name, "deferred", "webhook")
            place = place if place in document.lines else ("defaults", *place[2:])
            reason = f"no webhook in store.webhooks is named {webhook}{did_you_mean(webhook, known)}"
            document.report(place, reason)


def check_ways(
    document: Document,
    ways: Mapping[str, ModelRouting | None],
    upstreams: Mapping[str, UpstreamConfig | None],
) -> None:
    """Checks that every deployment and fallback exists, without cycles.

    None stands for an entry that is invalid in itself, which has been reported already."""
    for name, way in ways.items():
        if way is not None:
            _check_deployments(document, name, way, upstreams)
            _check_fallbacks(document, name, way, ways)
    _check_cycles(document, ways)


def _check_deployments(document: Document, name: str, way: ModelRouting, upstreams: Collection[str]) -> None:
    seen = set()
    for index, deployment in enumerate(way.deployments):
        path: KeyPath = ("models", name, "deployments", index)
        if deployment.upstream not in upstreams:
            hint = did_you_mean(deployment.upstream, upstreams)
            document.report((*path, "upstream"), f"no upstream has this name{hint}")
        target = (deployment.upstream, deployment.model or name)
        if target in seen:
            document.report(path, "the same deployment is listed twice")
        seen.add(target)


def _check_fallbacks(
    document: Document,
    name: str,
    way: ModelRouting,
    models: Collection[str],
) -> None:
    for index, fallback in enumerate(way.fallbacks):
        path: KeyPath = ("models", name, "fallbacks", index)
        key = matching_key(models, fallback)
        if is_pattern(fallback):
            document.report(path, "must be one model's name, not a pattern")
        elif key is None:
            document.report(path, f"no model has this name{did_you_mean(fallback, models)}")
        elif key == name:
            remedy = f"; give {fallback} an entry of its own" if is_pattern(name) else ""
            document.report(path, f"falls back to itself{remedy}")
        elif fallback in way.fallbacks[:index]:
            document.report(path, "the same fallback is listed twice")


def check_probes(document: Document, ways: Mapping[str, ModelRouting | None]) -> None:
    """Checks that a completion probe has a model name, and the same settings wherever the deployment is listed."""
    owners: dict[tuple[str, str], tuple[str, CompletionProbeSettings]] = {}
    for name, way in ways.items():
        for index, deployment in enumerate(way.deployments if way is not None else ()):
            if deployment.probe is None:
                continue
            path: KeyPath = ("models", name, "deployments", index, "probe")
            if deployment.model is None and is_pattern(name):
                document.report(path, "needs `model` as well: a pattern is not a model that can be requested")
                continue
            owner, theirs = owners.setdefault((deployment.upstream, deployment.model or name), (name, deployment.probe))
            if theirs != deployment.probe:
                document.report(path, f"differs from the setting for the same deployment in {owner}; set it only there")


def _check_cycles(document: Document, ways: Mapping[str, ModelRouting | None]) -> None:
    """Reports each cycle of two models or more once, at the first of them."""
    order = list(ways)
    edges = {
        name: [
            key
            for fallback in (way.fallbacks if way else ())
            if (key := matching_key(ways, fallback)) not in (None, name)
        ]
        for name, way in ways.items()
    }
    while True:
        try:
            graphlib.TopologicalSorter(edges).prepare()
            return
        except graphlib.CycleError as error:
            circle = _from_first(list(reversed(error.args[1])), order)
        path = " -> ".join(circle)
        document.report(("models", circle[0], "fallbacks"), f"form a loop: {path}")
        edges[circle[0]].remove(circle[1])


def _from_first(circle: list[str], order: list[str]) -> list[str]:
    """The same cycle, `a -> b -> a`, starting with the model that comes first in the file."""
    start = min(range(len(circle) - 1), key=lambda at: order.index(circle[at]))
    once = circle[:-1]
    return [*once[start:], *once[:start], once[start]]
