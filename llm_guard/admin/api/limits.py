"""/admin/limits: retry budgets and capacity, changed until the next reload or reset.

`resilience.retry.limits` and `resilience.capacity.gate` define the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from llm_guard.admin.api.deployments import Label
from llm_guard.admin.api.parameters import check_known, labels_of
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused, answer
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.retry.limits import BudgetSettings
from llm_guard.resilience.units import at_least, parse_concurrency, parse_count, parse_ratio
from llm_guard.routing.deployment import Deployment

_Said = dict[str, Any]
"""Changed values, by the fields of `SetLimits`."""
_Number = Annotated[float, Meta(ge=0)]
_Count = Annotated[float, Meta(ge=1, le=1_000_000, multiple_of=1)]
"""A whole number; JSON Schema accepts 2.0 as one, msgspec's `int` does not."""


class LimitsOf(Change):
    """The deployment to change."""

    deployment: Label


class SetLimits(LimitsOf):
    """New limits; those that are left out stay as they are."""

    between_fields: ClassVar[Mapping[str, object]] = {"minProperties": 3}
    """At least three properties: `reason`, `deployment`, and one that changes."""

    retry_ratio: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    min_per_second: _Number | UnsetType = UNSET
    max_ratio: _Number | UnsetType = UNSET
    concurrency: _Count | Literal["adaptive"] | UnsetType | None = UNSET
    """Most concurrent attempts; null: no limit."""
    max_queue: _Count | UnsetType = UNSET
    """Most calls in the wait queue."""


class LimitsView(Struct, frozen=True):
    """Current limits of a deployment."""

    deployment: str
    retry_ratio: float
    """Retries per call."""
    min_per_second: float
    max_ratio: float
    """Upper bound of the ratio, reached where retries succeed at least half as often as first attempts, if the budget
    is adaptive."""
    is_adaptive: bool
    tokens: float
    """Retries available now."""
    concurrency: int | Literal["adaptive"] | None
    max_queue: int
    """Most calls in the wait queue."""
    in_flight: int
    waiting: int
    is_changed: bool
    """An operator has changed them: they differ from the config."""


@dataclass(frozen=True, slots=True)
class _Way:
    """Maps a field of `SetLimits` to a setting."""

    name: str
    parse: Callable[[object], Any]


_BUDGET = {
    "retry_ratio": _Way("ratio", parse_ratio),
    "min_per_second": _Way("min_per_second", at_least(0)),
    "max_ratio": _Way("max_ratio", at_least(0)),
}
_CAPACITY = {"concurrency": _Way("concurrency", parse_concurrency), "max_queue": _Way("max_queue", parse_count)}


class LimitApi(EndpointGroup):
    """Limits by label. Each name under a pattern has limits of its own; they are changed together."""

    def __init__(self, config: Config, gateway: Handler, changes: Changes, clock: Clock) -> None:
        self._gateway = gateway
        self._changes = changes
        self._clock = clock
        self._labels = labels_of(config).keys()
        self._wanted: dict[str, _Said] = {}
        """All values that operators have set for a label, the latest of each."""
        self._before: dict[Deployment, tuple[BudgetSettings, CapacitySettings]] = {}
        """The config's settings."""

    def pages(self) -> list[Endpoint]:
        gives, path = Changed[list[LimitsView]], "/admin/limits"
        back = "Resets retry budget and capacity to the config."
        return [
            Endpoint("GET", path, "Lists retry budgets and capacity.", self._list, gives=list[LimitsView]),
            Endpoint(
                "POST",
                path,
                "Sets retry budget and capacity until the next reload or reset.",
                self._set,
                takes=SetLimits,
                gives=gives,
            ),
            Endpoint("POST", f"{path}/reset", back, self._reset, takes=LimitsOf, gives=gives),
        ]

    def put(self, label: str, said: Mapping[str, Any]) -> None:
        """Sets limits of a label, on top of those set before."""
        self._wanted[label] = {**self._wanted.get(label, {}), **said}
        for deployment in self._gateway.deployments():
            if deployment.label == label:
                self._apply(deployment, self._wanted[label])
        self._gateway.wake_waiters()

    def overrides(self) -> Mapping[str, _Said]:
        """Returns the values that operators have set, by label."""
        return dict(self._wanted)

    def look(self, _now: float) -> None:
        """Forgets deployments of names that a pattern has dropped."""
        if self._before:
            live = set(self._gateway.deployments())
            self._before = {deployment: settings for deployment, settings in self._before.items() if deployment in live}

    def apply_overrides(self, deployment: Deployment) -> None:
        """Applies changed limits to a new deployment."""
        if deployment.label in self._wanted:
            self._apply(deployment, self._wanted[deployment.label])

    def adopt(self, config: Config) -> None:
        """Ends all changes: the new config's settings apply. Must be called before the gateway adopts it."""
        for label in list(self._wanted):
            said = self._end(label)
            self._changes.note("reload", "limits.reset", label, "the config was reloaded", {"was": said})
        self._labels = labels_of(config).keys()

    async def _list(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self._now())

    async def _set(self, asked: AdminRequest) -> AdminResponse:
        wanted: SetLimits = asked.body
        check_known(wanted.deployment, self._labels, "deployment")
        said = _said(wanted)

        def do() -> ChangeResult:
            self.put(wanted.deployment, said)
            return ChangeResult(self._now(wanted.deployment), said)

        return await self._changes.make(asked, "limits.set", wanted.deployment, do)

    async def _reset(self, asked: AdminRequest) -> AdminResponse:
        label = asked.body.deployment
        check_known(label, self._labels, "deployment")

        def do() -> ChangeResult:
            was = self._end(label)
            return ChangeResult(
                self._now(label), {"was": was}, [] if was else [f"the limits of {label} were those of the config"]
            )

        return await self._changes.make(asked, "limits.reset", label, do)

    def _apply(self, deployment: Deployment, said: _Said) -> None:
        gates = deployment.gates
        budget, capacity = self._before.setdefault(deployment, (deployment.budget.settings, gates.settings))
        deployment.budget.settings = replace(budget, **_settings(said, _BUDGET))
        gates.adopt(replace(capacity, **_settings(said, _CAPACITY)))

    def _end(self, label: str) -> _Said:
        """Ends the changes of a label, and returns them."""
        said = self._wanted.pop(label, {})
        for deployment in [deployment for deployment in self._before if deployment.label == label]:
            budget, capacity = self._before.pop(deployment)
            deployment.budget.settings = budget
            deployment.gates.adopt(capacity)
        self._gateway.wake_waiters()
        return said

    def _now(self, label: str | None = None) -> list[LimitsView]:
        """Returns the current limits. Where several deployments share a label, the settings of the first and the sums
        of all."""
        groups: dict[str, list[Deployment]] = {}
        for deployment in self._gateway.deployments():
            if label in (None, deployment.label):
                groups.setdefault(deployment.label, []).append(deployment)
        return [self._limits(name, group) for name, group in groups.items()]

    def _limits(self, label: str, group: list[Deployment]) -> LimitsView:
        budget, capacity, now = group[0].budget.settings, group[0].gates.settings, self._clock.now()
        return LimitsView(
            label,
            budget.ratio,
            budget.min_per_second,
            budget.max_ratio,
            budget.adaptive,
            round(sum(deployment.budget.snapshot(now).tokens for deployment in group), 3),
            capacity.concurrency,
            capacity.max_queue,
            sum(deployment.gates.in_flight for deployment in group),
            sum(gate.waiting for deployment in group for gate in deployment.gates.all()),
            label in self._wanted,
        )


def _said(wanted: SetLimits) -> _Said:
    """Returns the values to set. Raises Refused if one is outside the range that the config allows."""
    ways = _BUDGET | _CAPACITY
    said = {name: value for name in ways if (value := getattr(wanted, name)) is not UNSET}
    said |= {name: int(said[name]) for name in _CAPACITY if isinstance(said.get(name), float)}
    if not said:
        raise Refused(422, "invalid_body", f"send at least one of {', '.join(ways)}")
    for name, value in said.items():
        try:
            ways[name].parse(value)
        except ValueError as error:
            raise Refused(422, "invalid_body", f"`{name}`: {error}") from None
    return said


def _settings(said: _Said, ways: dict[str, _Way]) -> _Said:
    return {way.name: way.parse(said[name]) for name, way in ways.items() if name in said}
