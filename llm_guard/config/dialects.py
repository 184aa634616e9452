"""Checks routes whose deployments have different dialects, and finds those whose calls are translated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llm_guard.config.models import Config, ModelConfig, ModelRouting
from llm_guard.config.names import matching_key
from llm_guard.config.upstreams import UpstreamConfig
from llm_guard.config.yaml_source import Document, KeyPath
from llm_guard.dialects import DialectName

_Place = tuple[KeyPath, str]
"""A key of the file, and the name of an upstream that it leads to."""


def check_dialects(
    document: Document,
    ways: Mapping[str, ModelRouting | None],
    upstreams: Mapping[str, UpstreamConfig | None],
    models: Mapping[str, ModelConfig | None],
) -> None:
    """Checks that calls may be translated where a model's deployments or fallbacks have another dialect than its first,
    and that these have an API key of their own: a caller's key must never reach them."""
    for name, way in ways.items():
        if way is None:
            continue
        own = upstreams.get(way.deployments[0].upstream)
        model = models.get(name)
        is_off = model is not None and model.translate is None
        reported = set[KeyPath]()
        for path, upstream_name in _places(name, way, ways):
            upstream = upstreams.get(upstream_name)
            if own is None or upstream is None or upstream.dialect == own.dialect or path in reported:
                continue
            if is_off:
                reported.add(path)
                document.report(path, "has another dialect; calls are not translated: `translate` is off")
            elif not _has_key(upstream):
                reported.add(path)
                document.report(path, _without_key(upstream_name))


def mixed_routes(config: Config) -> Iterator[tuple[str, str, DialectName, DialectName]]:
    """Yields each deployment for which calls are translated: the model, its label, the dialect of the calls and its
    own."""
    for name, model in config.models.items():
        own = config.upstreams[model.deployments[0].upstream].dialect
        for path, upstream_name in _places(name, model, config.models):
            dialect = config.upstreams[upstream_name].dialect
            if dialect == own:
                continue
            yield name, _label(name, model, path, upstream_name), own, dialect


def chat_routes(config: Config) -> Iterator[tuple[str, str]]:
    """Yields each deployment for which calls of the Responses API become chats: the model, and its label."""
    for name, model in config.models.items():
        for path, upstream_name in _places(name, model, config.models):
            if config.upstreams[upstream_name].responses == "chat":
                yield name, _label(name, model, path, upstream_name)


def _label(name: str, model: ModelConfig, path: KeyPath, upstream: str) -> str:
    """Returns the label of the deployment, or of the fallback, at a path of the file."""
    _, _, section, index, *_ = path
    at = int(index)
    label = model.fallbacks[at] if section == "fallbacks" else model.deployments[at].model or name
    return f"{upstream}/{label}"


def _places(name: str, way: ModelRouting, ways: Mapping[str, ModelRouting | None]) -> Iterator[_Place]:
    """Yields the upstreams of a model's deployments, and of those of its fallbacks."""
    for index, deployment in enumerate(way.deployments):
        yield ("models", name, "deployments", index, "upstream"), deployment.upstream
    for index, fallback in enumerate(way.fallbacks):
        key = matching_key(ways, fallback)
        other = ways[key] if key is not None and key != name else None
        for deployment in other.deployments if other is not None else ():
            yield ("models", name, "fallbacks", index), deployment.upstream


def _has_key(upstream: UpstreamConfig) -> bool:
    return upstream.has_own_key or upstream.auth == "none"


def _without_key(upstream: str) -> str:
    return (
        f"has another dialect and no API key: a caller's key must not be sent to {upstream}; set "
        f"upstreams.{upstream}.api_key, or auth: none if it needs no key"
    )
