"""State of a model for its clients: ok, degraded or down, by what keeps calls from its deployments.

Says nothing about providers, upstreams or other clients. `proxy.model_status` finds the obstacles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ModelState = Literal["ok", "degraded", "down"]
ObstacleKind = Literal["capacity", "failures", "maintenance", "paused", "recovering"]

REASONS: Mapping[ObstacleKind, str] = MappingProxyType({
    "capacity": "there are more calls than can be answered at once",
    "failures": "calls fail",
    "maintenance": "maintenance",
    "paused": "calls are paused for some time",
    "recovering": "calls have failed, and the next ones show whether it has recovered",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps calls from one deployment. Instants are monotonic."""

    kind: ObstacleKind
    refuses: bool = True
    """False: a call may still be tried there."""
    since: float | None = None
    """None: unknown."""
    until: float | None = None
    """When the next call is let through; None: unknown."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """State of a model at one moment. Instants are monotonic; None: unknown, or the model is ok."""

    state: ModelState = "ok"
    kind: ObstacleKind | None = None
    since: float | None = None
    expected_end: float | None = None


def status_of(
    own: Sequence[Obstacle | None], fallbacks: Sequence[Obstacle | None], *, is_degraded: bool
) -> ModelStatus:
    """Returns the state by the obstacles of the model's own deployments and of its fallbacks; None: a deployment has
    none. `is_degraded`: the gateway's degraded mode applies to the model.

    A model is down once no deployment takes a call, fallbacks included; a fallback's obstacles alone leave it ok.
    """
    found = [obstacle for obstacle in own if obstacle is not None]
    refusing = [obstacle for obstacle in (*own, *fallbacks) if obstacle is not None and obstacle.refuses]
    if refusing and len(refusing) == len(own) + len(fallbacks):
        since = _latest([obstacle.since for obstacle in refusing])
        return ModelStatus("down", refusing[0].kind, since, _earliest([obstacle.until for obstacle in refusing]))
    if found:
        since = _earliest([obstacle.since for obstacle in found])
        return ModelStatus("degraded", found[0].kind, since, _latest([obstacle.until for obstacle in found]))
    return ModelStatus("degraded", "failures") if is_degraded else ModelStatus()


def _earliest(instants: Sequence[float | None]) -> float | None:
    """Returns the earliest of the known instants."""
    return min((instant for instant in instants if instant is not None), default=None)


def _latest(instants: Sequence[float | None]) -> float | None:
    """Returns the latest instant; None if one is unknown."""
    known = [instant for instant in instants if instant is not None]
    return max(known) if len(known) == len(instants) else None
