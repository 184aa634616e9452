"""The model names that a config sends to each upstream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from llm_guard.config import Config, DeploymentConfig, is_pattern, matching_key
from llm_guard.dialects.resume.transcript import Prefill


@dataclass(slots=True)
class WantedModels:
    """The names that one upstream gets."""

    models: dict[str, Prefill | None] = field(default_factory=dict)
    """Names that the config itself determines, each with its own `prefill`; None: the upstream's."""
    patterns: list[str] = field(default_factory=list)
    """Patterns of which the upstream gets the name that the client has sent."""

    def add(self, model: str, prefill: Prefill | None) -> None:
        self.models[model] = self.models.get(model) or prefill


def wanted_by_upstream(config: Config) -> Mapping[str, WantedModels]:
    """Returns the names of each upstream of the config."""
    found = {name: WantedModels() for name in config.upstreams}
    for key, deployment in _deployments(config):
        wanted = found[deployment.upstream]
        if deployment.model is not None or not is_pattern(key):
            wanted.add(deployment.model or key, deployment.prefill)
        elif key not in wanted.patterns:
            wanted.patterns.append(key)
    for name, deployment in _of_fallbacks(config):
        found[deployment.upstream].add(deployment.model or name, deployment.prefill)
    return found


def _deployments(config: Config) -> Iterable[tuple[str, DeploymentConfig]]:
    return ((key, deployment) for key, model in config.models.items() for deployment in model.deployments)


def _of_fallbacks(config: Config) -> Iterator[tuple[str, DeploymentConfig]]:
    """Yields fallbacks that only a pattern matches: the config determines their names as well."""
    for name in dict.fromkeys(name for model in config.models.values() for name in model.fallbacks):
        key = matching_key(config.models, name)
        if key is not None and is_pattern(key):
            yield from ((name, deployment) for deployment in config.models[key].deployments)
