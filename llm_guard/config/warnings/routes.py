"""Warns of deployments and fallbacks that cannot help, and of models of client keys that no entry serves."""

from __future__ import annotations

from collections.abc import Iterator

from llm_guard.config.models import Config, ModelConfig
from llm_guard.config.names import did_you_mean, is_pattern, matching_key
from llm_guard.config.yaml_source import Finding

_Target = tuple[object, ...]


def repeated_deployments(config: Config) -> Iterator[Finding]:
    """Yields a warning for each deployment that is another one of the same model under another upstream's name."""
    for name, model in config.models.items():
        first: dict[_Target, int] = {}
        for index, target in enumerate(_targets(config, name, model)):
            at = first.setdefault(target, index)
            if at != index:
                upstream, other = model.deployments[index].upstream, model.deployments[at].upstream
                reason = (
                    f"is the same deployment as the one of {other}: {upstream} has the same address and key; "
                    f"remove it, because it fails whenever {other} fails"
                )
                yield ("models", name, "deployments", index), reason


def useless_fallbacks(config: Config) -> Iterator[Finding]:
    """Yields a warning for each fallback with no deployment but those of the model."""
    for name, model in config.models.items():
        own = set(_targets(config, name, model))
        for index, fallback in enumerate(model.fallbacks):
            key = matching_key(config.models, fallback)
            if key is not None and own.issuperset(_targets(config, fallback, config.models[key])):
                reason = (
                    f"can never help: {fallback} has no deployment that {name} does not have; choose a model with "
                    "another upstream or another model name"
                )
                yield ("models", name, "fallbacks", index), reason


def _targets(config: Config, requested: str, model: ModelConfig) -> list[_Target]:
    """Identity of each deployment: address, key and the name that is sent. A pattern sends the requested name."""
    found: list[_Target] = []
    for deployment in model.deployments:
        upstream = config.upstreams[deployment.upstream]
        account = (upstream.api_key, upstream.api_key_file, upstream.api_keys, upstream.auth, upstream.cloud)
        found.append((upstream.dialect, upstream.base_url, account, deployment.model or requested))
    return found


def unrouted_models(config: Config) -> Iterator[Finding]:
    """Yields a warning for each model that a client key may use and that no entry of `models` serves."""
    for index, key in enumerate(config.server.client_keys):
        for at, name in enumerate(key.allow.models or ()):
            if not is_pattern(name) and matching_key(config.models, name) is None:
                reason = (
                    f"no entry of models is for {name}: only /upstreams/NAME can serve it"
                    f"{did_you_mean(name, config.models)}"
                )
                yield ("server", "client_keys", index, "allow", "models", at), reason
