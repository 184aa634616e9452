"""The gateway's own client keys, and what each may call.

Defines these keys, their ranges and their defaults. Requests are checked against them in
`resilience.client_keys.scope`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from llm_guard.config.fields import NonEmptyText, Secret, Strict, wrong
from llm_guard.resilience.client_keys.scope import ALL, INFERENCE
from llm_guard.resilience.client_keys.settings import ClientLimitSettings
from llm_guard.resilience.routing.candidates import Weight


class Allow(Strict):
    """Calls that a client key permits; anything else is refused with 403."""

    models: tuple[NonEmptyText, ...] | None = None
    """Model names as requested by clients, or prefixes followed by `*`. None: every model of the config; `*` also
    includes models that only an upstream knows, through `/upstreams/NAME`."""
    paths: tuple[NonEmptyText, ...] = (INFERENCE,)
    """Paths below /v1/, or prefixes followed by `*`, for every upstream; `inference`: model calls, token counts and the
    list of models."""

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in models or ():
            if "*" in name[:-1]:
                raise wrong(f"{name}: * is only allowed at the end, for all names with this prefix")
        return models

    @field_validator("paths")
    @classmethod
    def _check_paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if path not in (INFERENCE, ALL) and (not path.startswith("/v1/") or "*" in path[:-1]):
                raise wrong(
                    f"{path}: write `inference`, `*`, or a path below /v1/ (without /upstreams/NAME), with * at its "
                    "end for all below it"
                )
        return paths


class ClientKey(Strict):
    name: NonEmptyText
    """Name in logs, metrics and the admin API."""
    key: Secret = Field(repr=False)
    """The key that the client sends."""
    priority: Literal["high", "normal", "low"] = "normal"
    """The highest priority that its calls may request."""
    weight: Weight = 1.0
    """Its share where calls of one priority wait, relative to other callers."""
    limits: ClientLimitSettings = ClientLimitSettings()
    """Limits of the key's calls. A call above one is refused with 429."""
    allow: Allow = Allow()
    """Which models and paths the key may use."""
