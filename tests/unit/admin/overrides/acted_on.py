"""A stand-in for what operator actions need: deployments, and a list of the recorded changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from llm_guard.config import Config, parse_config
from llm_guard.deployment import Deployment
from llm_guard.gateway.server import Gateway
from llm_guard.ops.changes import Changes
from llm_guard.policy.breaker import BreakerSettings
from tests.fakes.script import new_target


class ActedOn:
    """A stand-in for `Gateway` and `Changes`, with what operator actions use of them."""

    def __init__(self, *deployments: Deployment) -> None:
        self.all = list(deployments)
        self.let_in_count = 0
        self.notes: list[tuple[str, str, str, str]] = []
        """Tuples of operator, action, target and reason."""

    def deployments(self) -> tuple[Deployment, ...]:
        return tuple(self.all)

    def let_in(self) -> None:
        self.let_in_count += 1

    def note(self, who: str, what: str, target: str, why: str, _detail: Mapping[str, object]) -> None:
        self.notes.append((who, what, target, why))

    @property
    def gateway(self) -> Gateway:
        return cast("Gateway", self)

    @property
    def changes(self) -> Changes:
        return cast("Changes", self)


def deployment(label: str, model: str | None = None, **settings: Any) -> Deployment:
    return new_target(label, model=model, breaker=BreakerSettings(early_probes=False, **settings)).deployment


def config(**models: Any) -> Config:
    """Returns a config with the upstreams `a` and `b`; each model is given by its deployments or its whole entry."""
    upstreams = {name: {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1"} for name in "ab"}
    entries = {name: each if isinstance(each, dict) else {"deployments": each} for name, each in models.items()}
    return parse_config(json.dumps({"upstreams": upstreams, "models": entries}), "test.yaml", {})
