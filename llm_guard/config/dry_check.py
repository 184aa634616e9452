"""Checks whether a text is a valid config, without the environment's values, so that a check cannot reveal them.

A check with the real values would be an oracle even if it only returned yes or no: `fallbacks: ["${KEY}"]` beside a
model `sk-a*` is accepted or not depending on the key's fourth letter. The rules are in `config.loader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from llm_guard.config.loader import parse_config
from llm_guard.config.yaml_source import ConfigError, ConfigProblem, Interpolated, KeyPath, dotted, read_document


@dataclass(frozen=True, slots=True)
class DryCheckResult:
    """Result of a check. `problems` is empty for a valid config, as far as can be determined."""

    problems: tuple[ConfigProblem, ...]
    unchecked: tuple[str, ...]
    """Keys with a value from a variable."""


def try_text(text: str, name: str, env: Mapping[str, str]) -> DryCheckResult:
    """Checks a text. Of `env` only the names matter: whether a variable is set. `name` stands for the file in the
    problems."""
    stand_ins = {variable: variable.lower().replace("_", "-") for variable in env}
    try:
        document = read_document(text, name, stand_ins)
    except ConfigError as error:
        return DryCheckResult(error.problems, ())
    unchecked = tuple(dotted(path) for path in _variables(document.data, ()))
    try:
        parse_config(text, name, stand_ins)
    except ConfigError as error:
        return DryCheckResult(
            tuple(problem for problem in error.problems if not _hangs_on(problem.key, unchecked)), unchecked
        )
    return DryCheckResult((), unchecked)


def _hangs_on(key: str, unchecked: Iterable[str]) -> bool:
    """True if a problem with this key may be caused by an unknown value."""
    return key != "" and any(path == key or path.startswith((f"{key}.", f"{key}[")) for path in unchecked)


def _variables(data: object, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(data, Interpolated):
        yield path
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in children:
        yield from _variables(value, (*path, key))
