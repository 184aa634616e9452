"""Retry budgets and capacity, changed while the gateway runs: until the next reload, or until they are reset.

Owns which settings stand in for the config's. Does not own what they mean (`policy.retry_budget`, `policy.gate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.deployment import Deployment
from llm_guard.gateway.server import Gateway
from llm_guard.ops.changes import Changed, Changes, Done
from llm_guard.ops.controls import Label
from llm_guard.ops.labels import check_known, labels_of
from llm_guard.ops.pages import Answer, Asked, Change, Page, Refused, answer
from llm_guard.policy.gate import CapacitySettings
from llm_guard.policy.retry_budget import BudgetSettings
from llm_guard.policy.units import at_least, parse_concurrency, parse_count, parse_ratio

_Said = dict[str, Any]
"""By the fields of `SetLimits`."""
_Number = Annotated[float, Meta(ge=0)]
_Count = Annotated[float, Meta(ge=1, le=1_000_000, multiple_of=1)]
"""To JSON Schema 2.0 is as whole as 2; to msgspec's `int` it is not."""


class LimitsOf(Change):
    """Whose."""

    deployment: Label


class SetLimits(LimitsOf):
    """What is left out stays as it is."""

    between_fields: ClassVar[Mapping[str, object]] = {"minProperties": 3}
    """`reason`, `deployment`, and something that is to change."""

    retry_ratio: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    min_per_second: _Number | UnsetType = UNSET
    max_ratio: _Number | UnsetType = UNSET
    concurrency: _Count | Literal["adaptive"] | UnsetType | None = UNSET
    """null: no limit."""
    queue: _Count | UnsetType = UNSET


class Limits(Struct, frozen=True):
    """As they are now."""

    deployment: str
    retry_ratio: float
    """Retries per call."""
    min_per_second: float
    max_ratio: float
    """Where half of the attempts or more succeed, and the budget is adaptive."""
    is_adaptive: bool
    tokens: float
    """Retries that could be made at once."""
    concurrency: int | Literal["adaptive"] | None
    queue: int
    in_flight: int
    waiting: int
    is_changed: bool
    """By an operator: not what the config says."""


@dataclass(frozen=True, slots=True)
class _Way:
    """From a field of `SetLimits` to the setting."""

    name: str
    parse: Callable[[object], Any]


_BUDGET = {
    "retry_ratio": _Way("ratio", parse_ratio),
    "min_per_second": _Way("min_per_second", at_least(0)),
    "max_ratio": _Way("max_ratio", at_least(0)),
}
_CAPACITY = {"concurrency": _Way("concurrency", parse_concurrency), "queue": _Way("queue", parse_count)}


class LimitPages:
    """By label; the names under a pattern have theirs each, and are changed together."""

    def __init__(self, config: Config, gateway: Gateway, changes: Changes, clock: Clock) -> None:
        self._gateway = gateway
        self._changes = changes
        self._clock = clock
        self._labels = labels_of(config).keys()
        self._wanted: dict[str, _Said] = {}
        """All that was said of a label, the latest of each."""
        self._before: dict[Deployment, tuple[BudgetSettings, CapacitySettings]] = {}
        """The config's."""

    def pages(self) -> list[Page]:
        gives, path = Changed[list[Limits]], "/admin/limits"
        back = "Retry budget and capacity as the config says."
        return [
            Page("GET", path, "Retry budgets and capacity.", self._list, gives=list[Limits]),
            Page(
                "POST",
                path,
                "Changes them until the next reload; a restart by the same config keeps them.",
                self._set,
                takes=SetLimits,
                gives=gives,
            ),
            Page("POST", f"{path}/reset", back, self._reset, takes=LimitsOf, gives=gives),
        ]

    def put(self, label: str, said: Mapping[str, Any]) -> None:
        """On top of what was said of it before."""
        self._wanted[label] = {**self._wanted.get(label, {}), **said}
        for each in self._gateway.deployments():
            if each.label == label:
                self._apply(each, self._wanted[label])
        self._gateway.let_in()

    def words(self) -> Mapping[str, _Said]:
        """What was said, by label."""
        return dict(self._wanted)

    def look(self, _now: float) -> None:
        """Names that a pattern has let go are forgotten."""
        if self._before:
            live = set(self._gateway.deployments())
            self._before = {each: settings for each, settings in self._before.items() if each in live}

    def dress(self, deployment: Deployment) -> None:
        """It is new."""
        if deployment.label in self._wanted:
            self._apply(deployment, self._wanted[deployment.label])

    def adopt(self, config: Config) -> None:
        """Before the gateway does: its own settings hold again."""
        for label in list(self._wanted):
            said = self._end(label)
            self._changes.note("reload", "limits.reset", label, "the config was read", {"was": said})
        self._labels = labels_of(config).keys()

    async def _list(self, _asked: Asked) -> Answer:
        return answer(self._now())

    async def _set(self, asked: Asked) -> Answer:
        wanted: SetLimits = asked.body
        check_known(wanted.deployment, self._labels, "deployment")
        said = _said(wanted)

        def do() -> Done:
            self.put(wanted.deployment, said)
            return Done(self._now(wanted.deployment), said)

        return await self._changes.make(asked, "limits.set", wanted.deployment, do)

    async def _reset(self, asked: Asked) -> Answer:
        label = asked.body.deployment
        check_known(label, self._labels, "deployment")

        def do() -> Done:
            was = self._end(label)
            return Done(self._now(label), {"was": was}, [] if was else [f"{label} was as the config says"])

        return await self._changes.make(asked, "limits.reset", label, do)

    def _apply(self, deployment: Deployment, said: _Said) -> None:
        gates = deployment.gates
        budget, capacity = self._before.setdefault(deployment, (deployment.budget.settings, gates.settings))
        deployment.budget.settings = replace(budget, **_settings(said, _BUDGET))
        gates.adopt(replace(capacity, **_settings(said, _CAPACITY)))

    def _end(self, label: str) -> _Said:
        """What was said of it."""
        said = self._wanted.pop(label, {})
        for each in [each for each in self._before if each.label == label]:
            budget, capacity = self._before.pop(each)
            each.budget.settings = budget
            each.gates.adopt(capacity)
        self._gateway.let_in()
        return said

    def _now(self, label: str | None = None) -> list[Limits]:
        """Where several have one label, the first of them; their numbers in sum."""
        groups: dict[str, list[Deployment]] = {}
        for each in self._gateway.deployments():
            if label in (None, each.label):
                groups.setdefault(each.label, []).append(each)
        return [self._limits(name, group) for name, group in groups.items()]

    def _limits(self, label: str, group: list[Deployment]) -> Limits:
        budget, capacity, now = group[0].budget.settings, group[0].gates.settings, self._clock.now()
        return Limits(
            label,
            budget.ratio,
            budget.min_per_second,
            budget.max_ratio,
            budget.adaptive,
            round(sum(each.budget.snapshot(now).tokens for each in group), 3),
            capacity.concurrency,
            capacity.queue,
            sum(each.gates.in_flight for each in group),
            sum(gate.waiting for each in group for gate in each.gates.all()),
            label in self._wanted,
        )


def _said(wanted: SetLimits) -> _Said:
    """Raises Refused: the ranges are the config's."""
    ways = _BUDGET | _CAPACITY
    said = {name: value for name in ways if (value := getattr(wanted, name)) is not UNSET}
    said |= {name: int(said[name]) for name in _CAPACITY if isinstance(said.get(name), float)}
    if not said:
        raise Refused(422, "invalid_body", f"say what is to change: {', '.join(ways)}")
    for name, value in said.items():
        try:
            ways[name].parse(value)
        except ValueError as error:
            raise Refused(422, "invalid_body", f"`{name}`: {error}") from None
    return said


def _settings(said: _Said, ways: dict[str, _Way]) -> _Said:
    return {way.name: way.parse(said[name]) for name, way in ways.items() if name in said}
