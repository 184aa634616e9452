"""Warns of what several workers do each for itself (`server.workers`)."""

from __future__ import annotations

from collections.abc import Iterator

from llm_guard.config.models import Config
from llm_guard.config.yaml_source import Finding


def unshared_by_workers(config: Config) -> Iterator[Finding]:
    """Warns of caches in memory, and of probes that cost money."""
    if config.server.workers == 1:
        return
    if config.store.cache.kind == "memory" and any(model.cache is not None for model in config.models.values()):
        reason = "each of the workers (server.workers) has a cache of its own in memory: set it to sqlite to share one"
        yield ("store", "cache", "kind"), reason
    for name, model in config.models.items():
        for index, deployment in enumerate(model.deployments):
            if deployment.probe is not None:
                reason = "each of the workers (server.workers) sends these probes, and completions cost money"
                yield ("models", name, "deployments", index, "probe"), reason
