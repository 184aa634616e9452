"""Warns of fallbacks with a smaller context than the model's own, where the commands of engines give both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_guard.config.models import Config
from llm_guard.config.names import matching_key
from llm_guard.config.yaml_source import Finding

_OPTIONS = ("--max-model-len", "--context-length", "--ctx-size", "-c")
"""Options for the context length of vLLM, SGLang and llama.cpp."""


def smaller_contexts(config: Config) -> Iterator[Finding]:
    """Yields a warning for each model with fallbacks for too long prompts of which none takes longer ones."""
    for name, model in config.models.items():
        own = _context(config, name)
        theirs = [_context(config, fallback) for fallback in model.fallbacks]
        known = [tokens for tokens in theirs if tokens is not None]
        if own is None or not known or len(known) < len(theirs) or "context_length" not in model.retry.fallback_on:
            continue
        if max(known) <= own:
            reason = (
                f"cannot serve a prompt that is too long for {name}: its context has {own} tokens and theirs at most "
                f"{max(known)}; add a model with a larger one, or set retry.fallback_on to []"
            )
            yield ("models", name, "fallbacks"), reason


def _context(config: Config, name: str) -> int | None:
    """Smallest context of a model's deployments in tokens; None unless it is known of all of them."""
    key = matching_key(config.models, name)
    deployments = config.models[key].deployments if key is not None else ()
    served = {
        upstream: _tokens(engine.command.argv)
        for engine in config.engines.values()
        if engine.command is not None
        for upstream in engine.upstreams
    }
    found = [served.get(deployment.upstream) for deployment in deployments]
    known = [tokens for tokens in found if tokens is not None]
    return min(known) if known and len(known) == len(found) else None


def _tokens(argv: Sequence[str]) -> int | None:
    for at, argument in enumerate(argv):
        option, is_joined, value = argument.partition("=")
        if option in _OPTIONS:
            value = value if is_joined else "".join(argv[at + 1 : at + 2])
            return int(value) if value.isascii() and value.isdigit() else None
    return None
