"""Operator actions on breakers and deployments: force and reset, drain, cordon and uncordon.

`admin.overrides.breaker_overrides` and `admin.overrides.maintenance_holds` apply them and keep their ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, ClassVar

from msgspec import Meta, field

from llm_guard.admin.api.parameters import Duration, check_known, labels_of, left_alone, optional_seconds_of
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused
from llm_guard.admin.overrides.breaker_overrides import BreakerOverride, BreakerOverrides, BreakerSelector, ForcedState
from llm_guard.admin.overrides.maintenance_holds import MaintenanceHolds
from llm_guard.admin.schemas.models import DeploymentView
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.proxy.handler import Handler
from llm_guard.routing.deployment import Deployment, MaintenanceHold

Label = Annotated[str, Meta(min_length=1, max_length=600, description="Label, as in /admin/deployments.")]

_TEXT, _NULL = {"type": "string"}, {"type": "null"}


class Breakers(Change):
    """Breakers of a deployment, of one model name under its pattern, or the one of an upstream's host."""

    between_fields: ClassVar[Mapping[str, object]] = {
        "oneOf": [
            {"required": ["deployment"], "properties": {"deployment": _TEXT, "upstream": _NULL}},
            {"required": ["upstream"], "properties": {"deployment": _NULL, "model": _NULL, "upstream": _TEXT}},
        ]
    }

    deployment: Label | None = None
    model: Label | None = None
    """One name under the deployment's pattern; null: all of them."""
    upstream: Label | None = None
    """Instead of a deployment: the breaker of this upstream's host."""


class ForceBreakers(Breakers):
    """Breakers to force, and for how long."""

    for_: Duration | None = field(name="for", default=None)
    """Duration; null: until it is reset."""


class UncordonDeployment(Change):
    """The deployment to put back into service."""

    deployment: Label


class DrainDeployment(UncordonDeployment):
    """The deployment to drain, and for how long."""

    for_: Duration | None = field(name="for", default=None)
    """Duration; null: until it is uncordoned."""


class CordonDeployment(UncordonDeployment):
    """The deployment to take out of service, and for how long."""

    for_: Duration = field(name="for")


class DeploymentApi(EndpointGroup):
    """Endpoints of the actions, against the current config; a reload replaces it."""

    def __init__(
        self,
        config: Config,
        gateway: Handler,
        changes: Changes,
        clock: Clock,
        view: Callable[[str], DeploymentView | None],
    ) -> None:
        """`view` returns the current view of a deployment."""
        self.forces = BreakerOverrides(gateway, changes, clock)
        self.holds = MaintenanceHolds(gateway, changes, clock)
        self._gateway = gateway
        self._changes = changes
        self._clock = clock
        self._view = view
        self._config = config
        self._labels: Mapping[str, str] = labels_of(config)

    def pages(self) -> list[Endpoint]:
        gives = Changed[list[DeploymentView]]
        return [
            _page(
                "breakers/force-open",
                "Forces breakers open: no calls pass.",
                self._force_open,
                ForceBreakers,
                gives,
            ),
            _page(
                "breakers/force-closed",
                "Forces breakers closed: all calls pass, no matter how many fail.",
                self._force_closed,
                ForceBreakers,
                gives,
            ),
            _page(
                "breakers/reset", "Removes overrides and clears the failure statistics.", self._reset, Breakers, gives
            ),
            _page("deployments/drain", "Drains a deployment: no new calls.", self._drain, DrainDeployment, gives),
            _page(
                "deployments/cordon",
                "Cordons a deployment: no new calls for a time.",
                self._cordon,
                CordonDeployment,
                gives,
            ),
            _page(
                "deployments/uncordon",
                "Ends a drain or cordon; calls return gradually.",
                self._uncordon,
                UncordonDeployment,
                gives,
            ),
        ]

    def look(self, now: float) -> None:
        self.forces.look(now)
        self.holds.look(now)

    def end_overruled(self) -> None:
        """Ends the overrides of breakers for which a new config sets another state."""
        self.look(self._clock.now())

    def apply_overrides(self, deployment: Deployment) -> None:
        """Applies the overrides of its label to a new deployment."""
        self.holds.apply_overrides(deployment)
        self.forces.apply_overrides(deployment)

    def knows(self, aim: BreakerSelector) -> bool:
        """Returns whether the config has the deployment or upstream."""
        return aim.deployment in self._labels or aim.upstream in self._config.upstreams

    def recall(self, forces: Iterable[BreakerOverride], holds: Iterable[tuple[str, MaintenanceHold]]) -> None:
        """Restores the overrides of an earlier process. Those that have ended or no longer apply are noted in the audit
        trail."""
        for force in forces:
            self.forces.put(force)
        for label, hold in holds:
            self.holds.put(label, hold)
        self.adopt(self._config)
        self.look(self._clock.now())

    def adopt(self, config: Config) -> None:
        """Applies a new config. Must be called before the gateway adopts it."""
        self._config = config
        self._labels = labels_of(config)
        self.forces.adopt(self._labels.keys(), config.upstreams.keys())
        self.holds.adopt(self._labels.keys())

    async def _force_open(self, asked: AdminRequest) -> AdminResponse:
        return await self._force(asked, "forced_open")

    async def _force_closed(self, asked: AdminRequest) -> AdminResponse:
        return await self._force(asked, "forced_closed")

    async def _force(self, asked: AdminRequest, state: ForcedState) -> AdminResponse:
        body: ForceBreakers = asked.body
        aim, seconds = self.aim(body), optional_seconds_of(body.for_)
        action = "breakers.force-open" if state == "forced_open" else "breakers.force-closed"

        def do() -> ChangeResult:
            self.forces.put(
                BreakerOverride(aim, state, body.reason, self._until(seconds), asked.who, self._clock.wall())
            )
            return ChangeResult(self._now(aim), {"for": body.for_}, self._warnings() if state == "forced_open" else [])

        return await self._changes.make(asked, action, str(aim), do)

    async def _reset(self, asked: AdminRequest) -> AdminResponse:
        aim = self.aim(asked.body)
        if (force := self.forces.covering(aim)) is not None:
            raise Refused(
                409,
                "forced_as_a_whole",
                f"all breakers of {force.aim} are {force.state}: reset {force.aim} without `model`",
            )

        def do() -> ChangeResult:
            ended = self.forces.reset(aim)
            return ChangeResult(self._now(aim), {"was": [f"{override.aim}: {override.state}" for override in ended]})

        return await self._changes.make(asked, "breakers.reset", str(aim), do)

    def aim(self, body: Breakers) -> BreakerSelector:
        """Returns the breakers that a body names. Raises Refused for an unknown name."""
        if (body.deployment is None) == (body.upstream is None):
            raise Refused(422, "invalid_body", "send either `deployment` or `upstream`")
        if body.upstream is not None:
            if body.model is not None:
                raise Refused(422, "invalid_body", "an upstream has one breaker for its host: omit `model`")
            check_known(body.upstream, self._config.upstreams.keys(), "upstream")
        else:
            check_known(str(body.deployment), self._labels.keys(), "deployment")
        aim = BreakerSelector(body.deployment, body.model, body.upstream)
        if body.model is not None:
            live = {
                deployment.model for deployment in self._gateway.deployments() if deployment.label == body.deployment
            }
            check_known(body.model, {name for name in live if name is not None}, "model")
        return aim

    async def _drain(self, asked: AdminRequest) -> AdminResponse:
        return await self._hold(asked, partial(MaintenanceHold, "drained"), "deployments.drain")

    async def _cordon(self, asked: AdminRequest) -> AdminResponse:
        return await self._hold(asked, partial(MaintenanceHold, "cordoned"), "deployments.cordon")

    async def _hold(
        self, asked: AdminRequest, hold: Callable[[str, str, float, float | None], MaintenanceHold], action: str
    ) -> AdminResponse:
        label, seconds = asked.body.deployment, optional_seconds_of(asked.body.for_)
        check_known(label, self._labels.keys(), "deployment")

        def do() -> ChangeResult:
            self.holds.put(label, hold(asked.body.reason, asked.who, self._clock.wall(), self._until(seconds)))
            return ChangeResult(self._now(BreakerSelector(label)), {"for": asked.body.for_}, self._warnings())

        return await self._changes.make(asked, action, label, do)

    async def _uncordon(self, asked: AdminRequest) -> AdminResponse:
        label = asked.body.deployment
        check_known(label, self._labels.keys(), "deployment")

        def do() -> ChangeResult:
            hold = self.holds.end(label)
            was = hold.kind if hold is not None else None
            warnings = [] if was else [f"{label} was neither drained nor cordoned"]
            return ChangeResult(self._now(BreakerSelector(label)), {"was": was}, warnings)

        return await self._changes.make(asked, "deployments.uncordon", label, do)

    def _until(self, seconds: float | None) -> float | None:
        return None if seconds is None else self._clock.now() + seconds

    def _now(self, aim: BreakerSelector) -> list[DeploymentView]:
        """Returns the views of the deployments; empty for a pattern that no call has used yet."""
        labels = [
            label for label, upstream in self._labels.items() if aim.upstream == upstream or aim.deployment == label
        ]  # fmt: skip
        return [view for label in labels if (view := self._view(label)) is not None]

    def _warnings(self) -> list[str]:
        closed = {*self.holds.labels(), *self.forces.closed_labels()}
        closed |= {label for label, upstream in self._labels.items() if upstream in self.forces.closed_upstreams()}
        return [f"{name}: no deployment is left" for name in left_alone(self._config, closed)]


def _page(
    path: str,
    summary: str,
    give: Callable[[AdminRequest], Awaitable[AdminResponse]],
    takes: type[Change],
    gives: object,
) -> Endpoint:
    return Endpoint("POST", f"/admin/{path}", summary, give, takes=takes, gives=gives)
