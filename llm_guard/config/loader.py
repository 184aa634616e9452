"""Reads a file into a Config, or reports every problem in it.

Reads part by part, merges defaults and words the errors. YAML is parsed in `config.yaml_source`; ranges are in
`config.models`, constraints between parts in `config.checks`.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from llm_guard.config.checks import (
    check_alerts,
    check_completion_webhooks,
    check_engines,
    check_fleet,
    check_listeners,
    check_names,
    check_probes,
    check_store,
    check_ways,
)
from llm_guard.config.dialects import check_dialects
from llm_guard.config.engines import EngineConfig
from llm_guard.config.fields import Strict, key_of
from llm_guard.config.fleet import FleetConfig
from llm_guard.config.models import Config, ModelConfig, ModelRouting, ProbesConfig, Rules, Server
from llm_guard.config.operator import Ops
from llm_guard.config.renamed_keys import unknown_key
from llm_guard.config.storage import StoreConfig
from llm_guard.config.upstreams import UpstreamConfig
from llm_guard.config.workers import check_workers
from llm_guard.config.yaml_source import (
    ConfigError,
    ConfigProblem,
    Document,
    Interpolated,
    KeyPath,
    dotted,
    plain_scalar,
    read_document,
)

_Part = TypeVar("_Part", bound=Strict)
_Loc = tuple[int | str, ...]

_ACCESS = {"server": ("host", "port", "tls"), "ops": ("host", "port", "token", "tokens", "store")}
_MAX_BYTES = 1 << 20
"""Limit for a config file. It is also read in a running gateway: an endless file would fill the memory, and PyYAML's
own parser takes 12 s a MiB.
"""


def load_config(path: str | os.PathLike[str], env: Mapping[str, str] = os.environ) -> Config:
    """Reads a file of at most 1 MiB; raises ConfigError with every problem in it."""
    return parse_config(text_in(path), os.fspath(path), env)


def load_access(path: str | os.PathLike[str], env: Mapping[str, str] = os.environ) -> tuple[Server, Ops]:
    """Reads only where this file's gateway listens and which tokens it accepts; everything else has its default. For
    commands, which need not have the providers' keys in their environment. Raises ConfigError."""
    file = os.fspath(path)
    document = read_document(text_in(path), file, env)
    top = _top(document)
    server = _read(document, Server, ("server",), _only(top.get("server", {}), _ACCESS["server"]))
    ops = _read(document, Ops, ("ops",), _only(top.get("ops", {}), _ACCESS["ops"]))
    wanted = tuple(f"{section}.{key}" for section, keys in _ACCESS.items() for key in keys)
    problems = [problem for problem in document.problems if problem.key.startswith(wanted)]
    if problems or server is None or ops is None:
        raise ConfigError(problems or document.problems)
    return server, ops


def _only(data: object, keys: tuple[str, ...]) -> object:
    return {key: data[key] for key in keys if key in data} if isinstance(data, dict) else data


def text_in(path: str | os.PathLike[str]) -> str:
    """Text of a config file. Raises ConfigError if it cannot be read, is too large or is not UTF-8."""
    file = os.fspath(path)
    try:
        with pathlib.Path(path).open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([ConfigProblem(file, 0, "", f"cannot be read: {error.strerror}")]) from None
    if len(content) > _MAX_BYTES:
        raise ConfigError([ConfigProblem(file, 0, "", "is larger than 1 MiB")])
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([ConfigProblem(file, line, "", "not valid UTF-8 text")]) from None


def problem_at(
    path: pathlib.Path | None, key: KeyPath, reason: str, env: Mapping[str, str] = os.environ
) -> ConfigProblem:
    """A problem with a key of a config that was valid when it was read; `path` is its file, None if it came from
    elsewhere."""
    if path is None:
        return ConfigProblem("config", 0, dotted(key), reason)
    try:
        line = read_document(text_in(path), os.fspath(path), env).line(key)
    except ConfigError:  # the file has changed since
        line = 0
    return ConfigProblem(os.fspath(path), line, dotted(key), reason)


def parse_config(text: str, name: str = "config", env: Mapping[str, str] = os.environ) -> Config:
    """Like `load_config`, from text; `name` stands for the file in messages."""
    return config_in(read_document(text, name, env))


def config_in(document: Document) -> Config:
    """Reads a parsed file; raises ConfigError with every problem in it."""
    top = _top(document)
    server = _read(document, Server, ("server",), top.get("server", {}))
    ops = _read(document, Ops, ("ops",), top.get("ops", {}))
    store = _read(document, StoreConfig, ("store",), top.get("store", {}))
    shared = top.get("fleet")
    fleet = None if shared is None else _read(document, FleetConfig, ("fleet",), shared)
    probes = _read(document, ProbesConfig, ("probes",), top.get("probes", {}))
    defaults = _read(document, Rules, ("defaults",), top.get("defaults", {}))
    engines = {
        key: _read(document, EngineConfig, ("engines", key), data)
        for key, data in (_entries(document, top, "engines") if top.get("engines") else {}).items()
    }
    served = {name for engine in engines.values() if engine is not None for name in engine.upstreams}
    upstreams = {
        key: _read(document, UpstreamConfig, ("upstreams", key), _looked_at(data) if key in served else data)
        for key, data in _entries(document, top, "upstreams").items()
    }
    entries = _entries(document, top, "models")
    models = {key: _read_model(document, key, data, top.get("defaults")) for key, data in entries.items()}
    check_listeners(document, server, ops)
    check_names(document, upstreams, models)
    check_alerts(document, ops, models)
    check_store(document, store, fleet)
    check_fleet(document, fleet, ops)
    check_completion_webhooks(document, store, models)
    ways = {key: _way(data) for key, data in entries.items()}
    check_ways(document, ways, upstreams)
    check_dialects(document, ways, upstreams, models)
    check_probes(document, ways)
    check_engines(document, engines, upstreams)
    if server is not None:
        check_workers(document, server.workers, ops, engines)
    document.raise_problems()
    parts = {
        "server": server, "ops": ops, "store": store, "fleet": fleet, "probes": probes, "upstreams": upstreams,
        "engines": engines, "defaults": defaults, "models": models,
    }  # fmt: skip
    return Config.model_validate(parts)


_RULES = frozenset(Rules.model_fields)
_KINDS = {type(None): "nothing", bool: "true or false", int: "a number", float: "a number", dict: "a mapping"}
_WORDS = {
    "missing": "is missing",
    "model_type": "must be a mapping of keys, not {kind}",
    "dataclass_type": "must be a mapping of keys, not {kind}",
    "dict_type": "must be a mapping of keys, not {kind}",
    "tuple_type": "must be a list, not {kind}",
    "string_type": "must be text, not {kind}; put it in quotes",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
    "bool_type": "must be true or false, not {kind}",
    "bool_parsing": "must be true or false, not {kind}",
    "int_type": "must be a whole number, not {kind}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}
"""Type of an error of pydantic -> the reason."""


def _top(document: Document) -> dict[str, Any]:
    """The sections; reports unknown ones."""
    if not isinstance(document.data, dict):
        document.report((), f"the file must be a mapping of keys, not {_kind(document.data)}")
        document.raise_problems()
        return {}
    for key in document.data:
        if key not in Config.model_fields:
            document.report((key,), unknown_key((key,), Config.model_fields))
    return document.data


def _entries(document: Document, top: dict[str, Any], section: str) -> dict[str, Any]:
    """The entries of `engines`, `upstreams` or `models`."""
    entries = top.get(section)
    if isinstance(entries, dict) and entries:
        return entries
    is_empty = entries is None or entries == {}
    document.report(
        (section,), "must have at least one entry" if is_empty else f"must be a mapping, not {_kind(entries)}"
    )
    return {}


def _looked_at(data: object) -> object:
    """Adds default probes to an upstream that an engine serves: an engine is restarted when its probes fail."""
    return {"probe": {}, **data} if isinstance(data, dict) else data


def _read_model(document: Document, name: str, data: object, defaults: object) -> ModelConfig | None:
    shared = defaults if isinstance(defaults, dict) else {}
    rules = {key: value for key, value in shared.items() if key in _RULES}
    return _read(document, ModelConfig, ("models", name), _merged(rules, data), inherited=("defaults",))


def _merged(defaults: object, own: object) -> object:
    """Merges key by key; the model's own values take precedence."""
    if not isinstance(defaults, dict) or not isinstance(own, dict):
        return own
    return {**defaults, **{key: _merged(defaults.get(key), value) for key, value in own.items()}}


def _way(data: object) -> ModelRouting | None:
    """The model's deployments and fallbacks; None if they are invalid, which has been reported with the model."""
    own = data if isinstance(data, dict) else {}
    try:
        return ModelRouting.model_validate({key: _values(own[key]) for key in ModelRouting.model_fields if key in own})
    except ValidationError:
        return None


def _read(
    document: Document, part: type[_Part], path: KeyPath, data: object, inherited: KeyPath | None = None
) -> _Part | None:
    """Reads a part of the config. Returns None after reporting its problems, each where its value comes from."""
    try:
        return part.model_validate(_values(data))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if not _is_echo(detail):
                place = _origin(document, (*path, *detail["loc"]), path, inherited)
                document.report(place, _reason(part, data, detail, place))
    return None


def _is_echo(detail: ErrorDetails) -> bool:
    """True for an error that only follows from another one: no default for `auth` without a dialect, no valid item in a
    list."""
    return detail["type"] == "default_factory_not_called" or (detail["type"] == "too_short" and bool(detail["input"]))


def _origin(document: Document, place: KeyPath, path: KeyPath, inherited: KeyPath | None) -> KeyPath:
    theirs = (*(inherited or ()), *place[len(path) :])
    return theirs if inherited and place not in document.lines and theirs in document.lines else place


def _values(data: object, wants_numbers: bool = False) -> object:
    """The values that pydantic gets. Under timeout, retry and other rules a variable may hold a number; nowhere else,
    because the key 007 must not become 7."""
    if isinstance(data, dict):
        return {key: _values(value, wants_numbers or key in _RULES) for key, value in data.items()}
    if isinstance(data, list):
        return [_values(value, wants_numbers) for value in data]
    if isinstance(data, Interpolated):
        return plain_scalar(data) if wants_numbers else str(data)
    return data


def _raw(data: object) -> object:
    if isinstance(data, dict):
        return {key: _raw(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_raw(value) for value in data]
    return data.raw if isinstance(data, Interpolated) else data


def _reason(part: type[Strict], data: object, detail: ErrorDetails, place: KeyPath) -> str:
    """The reason in this project's wording; quotes only values that the file itself shows."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return unknown_key(place, _keys_beside(part, detail["loc"]))
        case "value_error":
            return _quoting_reason(part, data, detail)
        case kind if kind in _WORDS:
            return _WORDS[kind].format_map({**context, "kind": _kind(detail["input"])})
        case _:
            return detail["msg"][0].lower() + detail["msg"][1:]


def _quoting_reason(part: type[Strict], data: object, detail: ErrorDetails) -> str:
    """The reason of a parser that quotes its input; quotes the text of the file instead of a variable's value."""
    value = data
    for step in detail["loc"]:
        value = value[step]  # type: ignore[index]  # the error is at a value of these data
    if not isinstance(value, Interpolated):
        return str(detail["ctx"]["error"])
    try:
        part.model_validate(_raw(data))
    except ValidationError as error:
        for again in error.errors(include_url=False):
            if again["loc"] == detail["loc"] and again["type"] == "value_error":
                return str(again["ctx"]["error"])
    return f"the value of {value.raw} is invalid here"


def _keys_beside(part: type, loc: _Loc) -> list[str]:
    """The known keys at the place where `loc` has an unknown one."""
    for step in loc[:-1]:
        if isinstance(step, str):
            kind = _fields(part)[step]
            part = kind if isinstance(kind, type) else get_args(kind)[0]
    return list(_fields(part))


def _fields(part: type) -> dict[str, Any]:
    if issubclass(part, BaseModel):
        return {name: field.annotation for name, field in part.model_fields.items()}
    return {key_of(name): kind for name, kind in get_type_hints(part).items() if dataclasses.is_dataclass(part)}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a list" if isinstance(value, list) else "text")
