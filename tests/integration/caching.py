"""A gateway with a response cache for its models."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from llm_guard.config import Config, parse_config
from tests.chaos.stand import Section, Stand, config_text, standing
from tests.fakes.provider import ScriptedProvider, Step

CACHE: Section = {"ttl": "1m"}


@asynccontextmanager
async def cached(
    *scripts: Sequence[Step],
    cache: Section = CACHE,
    kind: str = "memory",
    models: Section | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Stand, ScriptedProvider]]:
    """Runs a gateway with a response cache, in front of a provider that plays these scripts; `models` are added."""
    async with (
        ScriptedProvider(*scripts) as provider,
        standing(cached_config(provider, cache, kind, models, more)) as stand,
    ):
        yield stand, provider


def cached_config(
    provider: ScriptedProvider, cache: Section, kind: str, models: Section | None, more: Mapping[str, Any]
) -> Config:
    """Builds a config with these cache settings for all models."""
    text = json.loads(config_text(provider.url, models=models, **more))
    text["defaults"]["cache"] = dict(cache)
    return parse_config(json.dumps({**text, "store": {"cache": {"kind": kind}}}), "test.yaml", {})
