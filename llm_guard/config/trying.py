"""Would this text do as a config? Without the environment: nobody can learn a variable's value by asking.

Owns what can be said without the variables' values. Does not own the rules (`config.reading`).

A check with the real values is an oracle, whatever it says of them: `fallbacks: ["${KEY}"]` beside a model `sk-a*` is
accepted or not by the key's fourth letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from llm_guard.config.reading import parse_config
from llm_guard.config.text import ConfigError, Interpolated, Path, Problem, dotted, read_document


@dataclass(frozen=True, slots=True)
class Tried:
    """`problems` is empty for a config that would do, as far as that can be said."""

    problems: tuple[Problem, ...]
    unchecked: tuple[str, ...]
    """Keys whose value a variable gives."""


def try_text(text: str, name: str, env: Mapping[str, str]) -> Tried:
    """Of `env` only the names count: whether a variable is set. `name` stands for the file in the problems."""
    stand_ins = {variable: variable.lower().replace("_", "-") for variable in env}
    try:
        document = read_document(text, name, stand_ins)
    except ConfigError as error:
        return Tried(error.problems, ())
    unchecked = tuple(dotted(path) for path in _variables(document.data, ()))
    try:
        parse_config(text, name, stand_ins)
    except ConfigError as error:
        return Tried(tuple(each for each in error.problems if not _hangs_on(each.key, unchecked)), unchecked)
    return Tried((), unchecked)


def _hangs_on(key: str, unchecked: Iterable[str]) -> bool:
    """Whether what is wrong with a key may be the doing of a value that is not known."""
    return key != "" and any(each == key or each.startswith((f"{key}.", f"{key}[")) for each in unchecked)


def _variables(data: object, path: Path) -> Iterator[Path]:
    if isinstance(data, Interpolated):
        yield path
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in children:
        yield from _variables(value, (*path, key))
