"""Names on which users and their tools depend: the command line, metrics, response headers, config keys.

public_surface.txt lists them. A change there is a change of the product and belongs in the changelog: a removed name
breaks scripts, dashboards and configs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import types
import typing
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
import msgspec
import pytest
import yaml
from pydantic import BaseModel

import llm_guard
from llm_guard.cli.main import main
from llm_guard.config.alerts import WebhookConfig
from llm_guard.config.clouds import SETTINGS
from llm_guard.config.fields import key_of
from llm_guard.config.fleet import FleetConfig
from llm_guard.config.models import Config, Rules
from llm_guard.config.operator import OperatorTokenConfig
from llm_guard.config.storage import CompletionWebhook
from llm_guard.config.tls import ServerTls, UpstreamTls
from llm_guard.resilience.caching.freshness import CacheSettings
from llm_guard.resilience.degradation.degraded_mode import DegradedSettings
from llm_guard.resilience.health.probe_policy import CompletionProbeSettings
from llm_guard.workers.worker_metrics import WORKER_METRICS
from tests.chaos.stand import Stand, facing

ROOT = Path(__file__).parents[2]
SNAPSHOT = Path(__file__).with_name("public_surface.txt")
UPDATE = "UPDATE_PUBLIC_SURFACE"

# metrics


def metrics(stand: Stand) -> Iterator[str]:
    """Yields `name{labels} kind` for every metric except the process's own."""
    for metric in (*stand.app.ops.metrics.all, *WORKER_METRICS):
        total = "_total" if metric.kind == "counter" else ""
        yield f"{metric.name}{total}{{{','.join(metric.labels)}}} {metric.kind}".replace("{}", "")


# command line


def commands(group: click.Group) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"llm-guard {name}{options(command)}"


def options(command: click.Command) -> str:
    return "".join(f" {'/'.join(parameter.opts)}" for parameter in command.params)


# response headers

_WRITTEN = re.compile(r'"(x-llm-guard-[a-z-]+|x-should-retry|retry-after(?:-ms)?)"')
_SENDERS = ("proxy", "deferred", "webhooks")


def response_headers() -> Iterator[str]:
    """Yields the headers that the gateway writes, those of webhooks included: literal names in its sources."""
    for path in chain.from_iterable((ROOT / "llm_guard" / each).rglob("*.py") for each in _SENDERS):
        yield from (found for found in _WRITTEN.findall(path.read_text()) if not found.endswith("-"))


# config


def config_keys(kind: object, prefix: str = "") -> Iterator[str]:
    """Yields every key that the config models define, with `*` for names that users choose."""
    if typing.get_origin(kind) is dict:
        yield from config_keys(typing.get_args(kind)[1], f"{prefix}*.")
    elif typing.get_origin(kind) in (tuple, types.UnionType, typing.Union, typing.Annotated):
        for inner in typing.get_args(kind):
            yield from config_keys(inner, prefix)
    elif isinstance(kind, type) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)):
        for name, inner in typing.get_type_hints(kind).items():
            if typing.get_origin(inner) is not typing.ClassVar:
                nested = list(config_keys(inner, f"{prefix}{name}."))
                yield from nested or [prefix + key_of(name)]


def keys_of(value: object, prefix: str = "") -> Iterator[str]:
    """Yields every key in a config file, with `*` for names that it has chosen."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            is_chosen = prefix in ("upstreams.", "models.")
            yield from keys_of(inner, f"{prefix}{'*' if is_chosen else name}.")
    elif isinstance(value, list) and value:
        for inner in value:
            yield from keys_of(inner, prefix)
    else:
        yield prefix.removesuffix(".")


# the admin API


def operators_pages(stand: Stand) -> Iterator[str]:
    """Yields pages as `POST /admin/limits: deployment, reason, ...`, with the fields of body or query; `?` marks
    optional ones."""
    for page in stand.app.ops._site.pages:
        yield f"{page.method} {page.path}{fields(page.takes or page.query)}"


def fields(kind: type[msgspec.Struct] | None) -> str:
    named = msgspec.structs.fields(kind) if kind is not None else ()
    said = sorted(f"{each.encode_name}{'' if each.required else '?'}" for each in named)
    return f": {', '.join(said)}" if said else ""


# the snapshot


async def operators() -> tuple[list[str], list[str]]:
    """Returns the metrics and pages of a running gateway."""
    async with facing() as (stand, _):
        return sorted(metrics(stand)), sorted(operators_pages(stand))


def surface() -> str:
    metrics_of, pages_of = asyncio.run(operators())
    sections = {
        "Python": sorted(llm_guard.__all__),
        "command line": list(commands(main)),
        "metrics": metrics_of,
        "response headers": sorted(set(response_headers())),
        "operator's pages": pages_of,
        "config keys": sorted(set(config_keys(Config))),
    }
    return "\n".join(f"# {title}\n" + "".join(f"{entry}\n" for entry in lines) for title, lines in sections.items())


def test_public_names_match_the_published_list() -> None:
    now = surface()
    if os.environ.get(UPDATE):
        SNAPSHOT.write_text(now)
    promised, present = SNAPSHOT.read_text().splitlines(), now.splitlines()
    gone = [name for name in promised if name not in present]
    new = [name for name in present if name not in promised]
    assert promised == present, (
        f"the public surface has changed. Gone: {gone}. New: {new}. "
        f"If that is meant, run this test once with {UPDATE}=1, and say it in the changelog."
    )


@pytest.mark.parametrize("name", ["llm_guard.yaml", "minimal.yaml", "docker.yaml", "recommended.yaml"])
def test_bundled_config_uses_only_keys_that_exist(name: str) -> None:
    written = set(keys_of(yaml.safe_load((ROOT / "config" / name).read_text())))
    known = set(config_keys(Config))
    off = {key for key in written - known if any(each.startswith(f"{key}.") for each in known)}
    assert written - off <= known, "a section may be null, where that is a value"


def test_annotated_config_shows_every_key() -> None:
    written = set(keys_of(yaml.safe_load((ROOT / "config" / "llm_guard.yaml").read_text())))
    rules = "|".join(Rules.model_fields)
    shown_once = {re.sub(rf"^models\.\*\.(?={rules})", "defaults.", key) for key in config_keys(Config)}
    in_comments = {
        *(key for key in shown_once if key.startswith("server.client_keys.")), "defaults.hedge.after",
        "defaults.hedge.max_extra", "defaults.timeout.learned.factor", "defaults.timeout.learned.min",
        "defaults.stream.prebuffer.tokens", "defaults.stream.prebuffer.time", "models.*.deployments.prefill",
        "models.*.deployments.max_tokens",
        *(f"server.tls.{key}" for key in ServerTls.model_fields),
        *(f"fleet.{key}" for key in FleetConfig.model_fields),
        *(f"upstreams.*.tls.{key}" for key in UpstreamTls.model_fields),
        *(f"upstreams.*.{auth}.{key}" for auth, settings in SETTINGS.items() for key in settings.model_fields),
        *(f"upstreams.*.{key}" for key in ("api_key_file", "api_keys", "api_keys.name", "api_keys.key")),
        *(f"ops.tokens.{key}" for key in OperatorTokenConfig.model_fields),
        *(f"ops.webhooks.{key}" for key in WebhookConfig.model_fields),
        *(f"store.webhooks.{key}" for key in CompletionWebhook.model_fields),
        *(f"defaults.degraded.{field.name}" for field in dataclasses.fields(DegradedSettings)),
        *(key for key in shown_once if key.startswith("engines.")),
        *(f"defaults.cache.{field.name}" for field in dataclasses.fields(CacheSettings)),
        *(f"models.*.deployments.probe.{field.name}" for field in dataclasses.fields(CompletionProbeSettings)),
    }  # fmt: skip
    assert shown_once - written - in_comments == set()
