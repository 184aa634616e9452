"""/admin/chaos: faults for a share of the attempts on a model or deployment, for a limited time.

`admin.overrides.injected_faults` keeps them, `proxy.attempts.fault_injection` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from llm_guard.admin.api.deployments import Label
from llm_guard.admin.api.parameters import check_known, labels_of, seconds_of
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.context import AdminContext
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused, answer
from llm_guard.admin.overrides.injected_faults import FaultOverride, FaultOverrides
from llm_guard.clock import iso
from llm_guard.config import Config
from llm_guard.proxy.attempts.fault_injection import FaultEffect, InjectedFault, InjectedKind

_PATH = "/admin/chaos"
_MOST_FAULTS = 20

_TO_AN_HOUR = r"([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|3600)s|([1-9]|[1-5][0-9]|60)m|1h"
_HourAtMost = Annotated[str, Meta(pattern=f"^({_TO_AN_HOUR})$", description="A duration from 1s to 1h.")]
_MinuteAtMost = Annotated[
    str, Meta(pattern=r"^([1-9][0-9]{0,3}ms|([1-9]|[1-5][0-9]|60)s|1m)$", description="A duration from 1ms to 1m.")
]
_TEXT, _NULL = {"type": "string"}, {"type": "null"}


class StatusFault(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="status"):
    """An error response, without a request to the upstream."""

    status: Literal[408, 429, 500, 502, 503, 504, 529] = 503
    """No status that would put a key aside, such as 401."""
    retry_after: _HourAtMost | None = None
    """Its Retry-After, shortened to what is left of the fault; null: none."""


class HangFault(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="hang"):
    """No response, without a request to the upstream, until the attempt's limit or the end of the fault."""


class DelayFault(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="delay"):
    """The upstream's response, later."""

    delay: _MinuteAtMost


class CutFault(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cut"):
    """The upstream's response, which breaks off. Its tokens are paid for."""

    after_bytes: Annotated[int, Meta(ge=0, le=1 << 20)] = 2000
    """How much of its body passes; a shorter body passes whole."""


FaultToInject = StatusFault | HangFault | DelayFault | CutFault


class InjectFault(Change):
    """The fault, the attempts that it strikes, and for how long."""

    between_fields: ClassVar[Mapping[str, object]] = {
        "oneOf": [
            {"required": ["deployment"], "properties": {"deployment": _TEXT, "model": _NULL}},
            {"required": ["model"], "properties": {"deployment": _NULL, "model": _TEXT}},
        ]
    }

    fault: FaultToInject
    share: Annotated[float, Meta(gt=0, le=1)]
    """Share of the attempts; each is drawn by itself, so that a retry may pass."""
    model: Annotated[str, Meta(min_length=1, max_length=600)] | None = None
    """A key of `models`: all its deployments are struck, but not its fallbacks."""
    deployment: Label | None = None
    """Instead of a model: one deployment."""
    for_: _HourAtMost = field(name="for", default="5m")


class EndFault(Change):
    """The fault to end."""

    id: Annotated[str, Meta(min_length=1, max_length=100)]


class InjectedFaultView(Struct, frozen=True):
    """A fault in effect."""

    id: str
    model: str | None
    deployment: str | None
    kind: InjectedKind
    share: float
    reason: str
    operator: str
    since: str
    until: str
    struck: int
    """Attempts that it has struck so far."""


class ChaosApi(EndpointGroup):
    """Endpoints of injected faults, under the current config; a reload replaces it."""

    def __init__(self, config: Config, running: AdminContext, changes: Changes) -> None:
        self.overrides = FaultOverrides(running.faults, changes)
        self._changes = changes
        self._clock = running.clock
        self._is_in_fleet = running.fleet is not None
        self._config = config
        self._count = 0

    def pages(self) -> list[Endpoint]:
        gives = Changed[list[InjectedFaultView]]
        return [
            Endpoint("GET", _PATH, "Lists the injected faults.", self._list, gives=list[InjectedFaultView]),
            Endpoint(
                "POST", _PATH, "Injects a fault into a share of the attempts, for an hour at most (ops.chaos).",
                self._inject, takes=InjectFault, gives=gives,
            ),
            Endpoint("POST", f"{_PATH}/end", "Ends an injected fault.", self._end, takes=EndFault, gives=gives),
        ]  # fmt: skip

    def look(self, now: float) -> None:
        self.overrides.look(now)

    def adopt(self, config: Config) -> None:
        self._config = config
        self.overrides.adopt(config.models.keys(), labels_of(config).keys(), is_allowed=config.ops.chaos)

    def close(self) -> None:
        self.overrides.close()

    async def _list(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self._views())

    async def _inject(self, asked: AdminRequest) -> AdminResponse:
        body: InjectFault = asked.body
        self._check(body)

        def do() -> ChangeResult:
            self._count += 1
            until = self._clock.now() + seconds_of(body.for_)
            fault = InjectedFault(
                f"chaos-{self._count}", _effect_of(body.fault), body.share, until, body.model, body.deployment
            )
            self.overrides.put(FaultOverride(fault, body.reason, asked.who, self._clock.wall()))
            detail = {"id": fault.id, "kind": fault.effect.kind, "share": body.share, "for": body.for_}
            return ChangeResult(self._views(), detail, self._warnings())

        return await self._changes.make(asked, "chaos.inject", str(body.model or body.deployment), do)

    async def _end(self, asked: AdminRequest) -> AdminResponse:
        fault_id = asked.body.id
        found = next((override for override in self.overrides.all() if override.fault.id == fault_id), None)
        if found is None:
            raise Refused(404, "unknown_fault", f"no fault has this id: GET {_PATH} lists them")

        def do() -> ChangeResult:
            self.overrides.end(fault_id)
            return ChangeResult(self._views(), {"id": fault_id, "struck": found.fault.struck})

        return await self._changes.make(asked, "chaos.end", found.target, do)

    def _check(self, body: InjectFault) -> None:
        """Raises Refused if the config does not allow faults, or has no such model or deployment."""
        if not self._config.ops.chaos:
            raise Refused(403, "chaos_is_off", "faults are off here: set ops.chaos: true in the config, and reload it")
        if (body.model is None) == (body.deployment is None):
            raise Refused(422, "invalid_body", "send either `model` or `deployment`")
        if body.model is not None:
            check_known(body.model, self._config.models.keys(), "model")
        else:
            check_known(str(body.deployment), labels_of(self._config).keys(), "deployment")
        if len(self.overrides.all()) >= _MOST_FAULTS:
            raise Refused(409, "too_many_faults", f"there are already {_MOST_FAULTS} faults: end some of them")

    def _warnings(self) -> list[str]:
        if not self._is_in_fleet:
            return []
        return ["only this gateway has the fault, but breakers of the whole fleet count the failures"]

    def _views(self) -> list[InjectedFaultView]:
        return [self._view(override) for override in self.overrides.all()]

    def _view(self, override: FaultOverride) -> InjectedFaultView:
        fault = override.fault
        until = iso(self._clock.wall() + fault.until - self._clock.now())
        return InjectedFaultView(
            fault.id, fault.model, fault.deployment, fault.effect.kind, fault.share, override.reason, override.who,
            iso(override.since), until, fault.struck,
        )  # fmt: skip


def _effect_of(fault: FaultToInject) -> FaultEffect:
    match fault:
        case StatusFault():
            wait_s = None if fault.retry_after is None else seconds_of(fault.retry_after)
            return FaultEffect("status", fault.status, wait_s)
        case HangFault():
            return FaultEffect("hang")
        case DelayFault():
            return FaultEffect("delay", delay_s=seconds_of(fault.delay))
        case CutFault():
            return FaultEffect("cut", after_bytes=fault.after_bytes)
