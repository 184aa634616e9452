"""`llm-guard init`: writes a first config, from options or from questions.

Exit codes: 0 success, 1 the file exists or cannot be written, 2 wrong arguments or answers.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from llm_guard.admin.http.schema_docs import yaml_texts
from llm_guard.cli.config_template import SCHEMA_FILE, Plan, Provider, config_text
from llm_guard.config import ConfigError, config_schema, located, parse_config, warnings_of
from llm_guard.dialects import DIALECTS
from llm_guard.storage.state_dir import state_folder

_PORT = 8080


@click.command()
@click.argument("path", metavar="[FILE]", type=click.Path(path_type=Path), default=Path("llm_guard.yaml"))
@click.option(
    "--provider", "providers", multiple=True, help=f"{', '.join(DIALECTS)}, or NAME=URL for another; repeatable."
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="NAME=VARIABLE",
    help="Variable with a provider's key; NAME= passes the callers' keys on. [default: as its SDK, or NAME_API_KEY]",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL[=NAME,...]",
    help="Model or pattern, and its providers in order; repeatable. [default: the providers' own]",
)
@click.option("--port", type=click.IntRange(1, 65535), help=f"Port for clients. [default: {_PORT}]")
@click.option("--store", help="Folder of what survives a restart. [default: ~/.local/state/llm-guard]")
def init(
    path: Path,
    providers: tuple[str, ...],
    keys: tuple[str, ...],
    models: tuple[str, ...],
    port: int | None,
    store: str | None,
) -> None:
    """Write a commented config. Asks on a terminal what the options do not say; never overwrites a file.

    \b
      llm-guard init --provider openai --provider backup=https://llm.example.com/v1 --model gpt-4o=openai,backup
    """
    if os.path.lexists(path):
        click.echo(f"{path} exists already: remove it, or name another file", err=True)
        sys.exit(1)
    if not providers and not _is_terminal():
        raise click.UsageError("give --provider, or run this on a terminal, where it asks")
    if providers:
        chosen = _with_keys(_providers(providers), keys)
        plan = Plan(chosen, _models(models, chosen), port or _PORT, store)
    else:
        plan = _asked(keys, models, port, store)
    _write(path, plan)


def _asked(keys: Sequence[str], models: Sequence[str], port: int | None, store: str | None) -> Plan:
    """Asks for what the options do not say."""
    names = click.prompt(f"Providers ({', '.join(DIALECTS)}, or NAME=URL), separated by commas", next(iter(DIALECTS)))
    chosen = _with_keys(_providers(_split(names)), keys)
    given = {text.partition("=")[0] for text in keys}
    chosen = [provider if provider.name in given else _ask_key(provider) for provider in chosen]
    if not models:
        usual = ", ".join(dict.fromkeys(provider.model_pattern for provider in chosen))
        asked = click.prompt("Models (MODEL or MODEL=PROVIDER), separated by commas; * is any text", usual)
        models = () if asked == usual else _split(asked)
    port = port or click.prompt("Port for clients", _PORT, type=click.IntRange(1, 65535))
    store = store or click.prompt("Folder of what survives a restart (empty: ~/.local/state/llm-guard)", "") or None
    return Plan(chosen, _models(models, chosen), port, store)


def _ask_key(provider: Provider) -> Provider:
    question = f"Variable with the key of {provider.name} (- passes the callers' keys on)"
    variable = click.prompt(question, provider.key_variable)
    return _with_key(provider, "" if variable == "-" else variable)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _providers(texts: Iterable[str]) -> list[Provider]:
    try:
        found = [Provider.of(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--provider") from None
    names = [provider.name for provider in found]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise click.BadParameter(f"{repeated} is given twice", param_hint="--provider")
    return found


def _with_keys(providers: Sequence[Provider], keys: Iterable[str]) -> list[Provider]:
    variables = dict(text.partition("=")[::2] for text in keys)
    if unknown := [name for name in variables if name not in [provider.name for provider in providers]]:
        raise click.BadParameter(f"{unknown[0]} is not one of the providers", param_hint="--key")
    return [
        _with_key(provider, variables[provider.name]) if provider.name in variables else provider
        for provider in providers
    ]


def _with_key(provider: Provider, variable: str) -> Provider:
    if not re.fullmatch("(?:[A-Za-z_][A-Za-z0-9_]*)?", variable):
        # Does not repeat the text: it may be the key itself.
        raise click.BadParameter("must be the name of a variable, not the key", param_hint="--key")
    return replace(provider, key_variable=variable or None)


def _models(texts: Sequence[str], providers: Sequence[Provider]) -> dict[str, list[str]]:
    """Returns the providers of each model. One without providers has all of the first provider's dialect."""
    found: dict[str, list[str]] = {}
    if not texts:
        for provider in providers:
            found.setdefault(provider.model_pattern, []).append(provider.name)
        return found
    usual = [provider.name for provider in providers if provider.dialect == providers[0].dialect]
    for text in texts:
        name, _, own = text.partition("=")
        found[name] = _split(own) or usual
    return found


def _write(path: Path, plan: Plan) -> None:
    """Writes the file, and the schema for editors beside it. A config that `check --strict` refuses is not kept."""
    text = config_text(plan)
    variables = {provider.key_variable: "not-a-key" for provider in plan.providers if provider.key_variable is not None}
    try:
        config = parse_config(text, str(path), variables)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        problems = located(warnings_of(config, path, state_folder(plan.store, os.environ)), path)
    except ConfigError as error:
        click.echo(f"{error}\nnothing was written", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"{path} cannot be written: {error.strerror}", err=True)
        sys.exit(1)
    if problems:
        path.unlink()
        click.echo("\n".join([*map(str, problems), "nothing was written"]), err=True)
        sys.exit(2)
    _write_schema(path.parent / SCHEMA_FILE)
    _explain(path, variables)


def _write_schema(path: Path) -> None:
    if not path.exists():
        path.write_text(json.dumps(config_schema(yaml_texts), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _explain(path: Path, variables: Iterable[str]) -> None:
    given = "" if path == Path("llm_guard.yaml") else f" -c {path}"
    click.echo(f"{path} is written, with {SCHEMA_FILE} for editors. Next:")
    for variable in variables:
        if not os.environ.get(variable):
            click.echo(f"  export {variable}=...")
    click.echo(f"  llm-guard check{given}")
    click.echo(f"  llm-guard serve{given}")


def _is_terminal() -> bool:
    return sys.stdin.isatty()
