"""A stand-in for what operator actions need: deployments, and a list of the recorded changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from llm_guard.admin.audit.changes import Changes
from llm_guard.config import Config, parse_config
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.routing.deployment import Deployment
from tests.fakes.script import new_target


class ActedOn:
    """A stand-in for `Handler` and `Changes`, with what operator actions use of them."""

    def __init__(self, *deployments: Deployment) -> None:
        self.all = list(deployments)
        self.let_in_count = 0
        self.notes: list[tuple[str, str, str, str]] = []
        """Tuples of operator, action, target and reason."""

    def deployments(self) -> tuple[Deployment, ...]:
        return tuple(self.all)

    def wake_waiters(self) -> None:
        self.let_in_count += 1

    def note(self, who: str, what: str, target: str, why: str, _detail: Mapping[str, object]) -> None:
        self.notes.append((who, what, target, why))

    @property
    def gateway(self) -> Handler:
        return cast("Handler", self)

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
