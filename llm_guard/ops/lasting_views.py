"""What an operator sees of what outlives a call, as it is sent: probes, engines, degraded modes, the cache, kept calls.

Owns the shapes. Does not own how they come about (`ops.probe_pages` and its like), nor those of models and deployments
(`ops.views`). Seconds, instants in ISO 8601; null where something is not known, or not so.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from llm_guard.policy.engine import EngineState, Order
from llm_guard.policy.probing import Finding, ProbeKind, ProbeState


class ProbedView(Struct, frozen=True):
    """An upstream, or one deployment of it, that is looked at beside its calls: one of `GET /admin/probes`."""

    upstream: str
    deployment: str | None
    """null: the upstream as a whole."""
    kind: ProbeKind
    state: ProbeState
    """down: it is asked after all others."""
    last: Finding | None
    """What the last look found; null: there was none yet."""
    why: str | None
    """Where it did not find all well."""
    failures: int
    """In a row."""
    last_ok: str | None
    looked: str | None
    took_s: float | None
    """The last look that was answered."""
    interval_s: float
    timeout_s: float
    max_failures: int
    engine_given_up: str | None
    """Why its engine was given up; null: it was not."""


class EngineView(Struct, frozen=True):
    """One of `GET /admin/engines`."""

    engine: str
    kind: Literal["command", "docker", "podman", "systemd"]
    place: str
    """What is started."""
    upstreams: list[str]
    """Which it serves."""
    state: EngineState
    since: str
    why: str | None
    """What went wrong last, until it is well again."""
    doing: Order | None
    """null: nothing is being done to it."""
    attempts: int
    """Automatic restarts in a row."""
    max_attempts: int
    next_attempt_s: float | None
    """null: none is planned."""
    boot_left_s: float | None
    """So long it may still take to come up; null: it is not coming up."""
    restarts_ok: int
    restarts_failed: int
    """Both since the start of the gateway."""
    is_spare: bool
    auto_provision: Literal["never", "on_post", "on_get"]
    """Whether /admin/admit starts it."""
    output: list[str]
    """The last lines that it has printed; of a command only."""


class ModeView(Struct, frozen=True):
    """Whether lesser answers are given soon."""

    is_degraded: bool
    by: Literal["rule", "operator", "gateway"] | None
    """gateway: it is the whole gateway's mode; null: well, and nobody says otherwise."""
    why: str | None
    since: str | None
    until: str | None
    """When an operator's word ends by itself."""
    who: str | None
    """The operator."""


class RouteModeView(ModeView, frozen=True):
    """Of the calls with one `model` label; of those in use that have `degraded` in their rules."""

    model: str
    calls: int
    """Within the rule's window, since the mode has last turned, as far as they tell anything."""
    without_answer: int
    """Of those."""
    lesser_answers: dict[str, int]
    """Since the start, by kind: static, stale, promise."""


class DegradedView(Struct, frozen=True):
    """`GET /admin/degraded`."""

    gateway: ModeView
    models: list[RouteModeView]


class RouteCache(Struct, frozen=True):
    """One route: a key of `models`, or `none` for calls that name no model."""

    route: str
    is_on: bool
    """It has `cache` in its rules."""
    entries: int
    bytes: int
    hit: int
    """Calls since the start, as are those that follow."""
    stale: int
    stale_if_error: int
    miss: int
    coalesced: int
    """They got what another call was asking for already."""


class CacheView(Struct, frozen=True):
    """`GET /admin/cache`."""

    kind: Literal["memory", "sqlite"]
    entries: int
    bytes: int
    max_bytes: int
    evictions: int
    """Answers that made room for others, since the start."""
    failures: dict[str, int]
    """What its file could not do, or not in time, since the start."""
    flights: int
    """Requests under way for calls of such routes, each for one or several."""
    routes: list[RouteCache]


class KeptView(Struct, frozen=True):
    """Calls kept beyond their clients: dead letters, and those that are answered later."""

    count: dict[str, int]
    """By purpose and state: `letter/dead`, ...; as it was some seconds ago, as are those that follow."""
    bytes: int
    oldest: str | None
    """When the call that has been kept for longest was received."""
    lost: dict[str, int]
    """Calls that should have been kept as letters, and were not, since the start: by why."""
