"""Collects the warnings of a config, and finds the line of each in the config file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from llm_guard.config.loader import text_in
from llm_guard.config.models import Config
from llm_guard.config.warnings.addresses import open_to_all, wrong_base_urls
from llm_guard.config.warnings.context import smaller_contexts
from llm_guard.config.warnings.durations import contradicting_durations
from llm_guard.config.warnings.routes import repeated_deployments, unrouted_models, useless_fallbacks
from llm_guard.config.warnings.secrets import readable_secrets, short_tokens
from llm_guard.config.warnings.state import shared_state, unshared_calls, unshared_index, unwritable_state
from llm_guard.config.warnings.workers import unshared_by_workers
from llm_guard.config.yaml_source import ConfigProblem, Finding, dotted, read_document

_OF_CONFIG = (
    open_to_all, wrong_base_urls, contradicting_durations, repeated_deployments, useless_fallbacks, smaller_contexts,
    unrouted_models, unshared_index, unshared_calls, short_tokens,
    unshared_by_workers,
)  # fmt: skip


def warnings_of(config: Config, path: Path, state: Path | None) -> Iterator[Finding]:
    """Yields all warnings. Inspects the config file `path` and the state folder, which is None if there is none, so it
    must run on the gateway's machine."""
    for find in _OF_CONFIG:
        yield from find(config)
    yield from readable_secrets(path)
    if state is not None:
        yield from unwritable_state(state)
        yield from shared_state(state)


def located(findings: Iterable[Finding], path: Path) -> list[ConfigProblem]:
    """Returns the findings with their lines in the config file, in the order of the lines. Raises ConfigError if the
    file cannot be read."""
    document = read_document(text_in(path), str(path), os.environ)
    found = [ConfigProblem(str(path), document.line(key), dotted(key), reason) for key, reason in findings]
    return sorted(found, key=lambda problem: problem.line)
