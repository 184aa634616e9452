"""Makes the text of a new config, with comments. Asks no questions and writes no file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_guard.dialects import DEFAULT_DIALECT, DIALECTS, DialectName

SCHEMA_FILE = "llm_guard.schema.json"


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider to write. `key_variable` None: the callers' own keys are passed on."""

    name: str
    dialect: DialectName
    base_url: str
    key_variable: str | None

    @classmethod
    def of(cls, text: str) -> Provider:
        """Reads the name of a dialect for the provider that defines it, or NAME=URL for any other one. Raises
        ValueError."""
        name, has_url, url = text.partition("=")
        for known, dialect in DIALECTS.items():
            if name == known:
                return cls(name, known, url or dialect.BASE_URL, dialect.KEY_VARIABLE)
        if not has_url or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise ValueError(f"{text}: write {', '.join(DIALECTS)}, or NAME=URL for another provider")
        return cls(name, DEFAULT_DIALECT, url, re.sub("[^A-Z0-9]", "_", name.upper()) + "_API_KEY")

    @property
    def model_pattern(self) -> str:
        """The models that it serves unless others are given."""
        return DIALECTS[self.dialect].MODEL_PATTERN if self.name in DIALECTS else "*"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is written. `models`: by name or pattern, the names of their providers, in the order of their use."""

    providers: Sequence[Provider]
    models: Mapping[str, Sequence[str]]
    port: int
    store: str | None


def config_text(plan: Plan) -> str:
    """Returns the config as YAML."""
    return "\n".join([*_head(), *_server(plan), *_upstreams(plan.providers), *_models(plan)]) + "\n"


def _head() -> Iterable[str]:
    yield f"# yaml-language-server: $schema={SCHEMA_FILE}"
    yield "# Check changes with `llm-guard check`. A running gateway reads the file again when it changes."
    yield "# The key reference of the documentation lists all settings; what is missing here has its default."


def _server(plan: Plan) -> Iterable[str]:
    yield ""
    yield "server:"
    yield "  host: 127.0.0.1   # this machine only; 0.0.0.0: every interface, then add client_keys"
    yield f"  port: {plan.port}"
    yield ""
    yield "ops:                # /dashboard, /admin, /metrics"
    if plan.store is None:
        yield "  store: null       # folder of what survives a restart; null: ~/.local/state/llm-guard"
    else:
        yield f"  store: {_quoted(plan.store)}   # folder of what survives a restart"


def _upstreams(providers: Iterable[Provider]) -> Iterable[str]:
    yield ""
    yield "upstreams:          # where calls are sent"
    for provider in providers:
        yield f"  {provider.name}:"
        yield f"    dialect: {provider.dialect}"
        yield f"    base_url: {_quoted(provider.base_url)}"
        if provider.key_variable is None:
            yield "    # no api_key: the callers' own keys are passed on"
        else:
            yield f'    api_key: "${{{provider.key_variable}}}"   # from the environment'


def _models(plan: Plan) -> Iterable[str]:
    yield ""
    yield "defaults:           # for all models; each model may set its own"
    yield "  timeout: {total: 10m}       # the whole call, with all retries"
    yield "  retry: {max_attempts: 4}    # on each deployment"
    yield ""
    yield "models:             # the names that clients request; * is any text"
    for name, providers in plan.models.items():
        yield f"  {_quoted(name)}:"
        yield "    deployments:    # tried in this order"
        for provider in providers:
            yield f"      - {{upstream: {provider}}}"
        yield "    # fallbacks: [another-model]"


def _quoted(text: str) -> str:
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)
