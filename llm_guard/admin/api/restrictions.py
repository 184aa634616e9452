"""/admin/restrictions, and the reset of what the gateway restricts by itself.

`admin.restrictions.restrictions` builds the list. Operators' overrides end where they were made
(`admin.api.deployments`, `admin.api.limits`, `admin.api.degraded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, get_args

from msgspec import Meta

from llm_guard.admin.api.deployments import Breakers, DeploymentApi
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, Refused, answer
from llm_guard.admin.overrides.breaker_overrides import BreakerSelector
from llm_guard.admin.restrictions.cooldowns import concerned_by
from llm_guard.admin.restrictions.deployments import RESET, is_ramping
from llm_guard.admin.restrictions.restrictions import Restrictions
from llm_guard.admin.schemas.restrictions import Resettable, Restriction
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.cooldown import CooldownKey
from llm_guard.routing.deployment import Deployment

_ALL: tuple[Resettable, ...] = get_args(Resettable)
_OF_AN_UPSTREAM: tuple[Resettable, ...] = ("host_breaker", "credential_cooldown")
_REASON = "reset by an operator"


class ResetDeployment(Breakers):
    """Restrictions to reset: of a deployment, of one model name under its pattern, or those that an upstream's
    deployments share."""

    kinds: Annotated[list[Resettable], Meta(min_length=1, max_length=len(_ALL))] | None = None
    """Kinds to reset; null: all. An upstream has host_breaker and credential_cooldown."""


class RestrictionApi(EndpointGroup):
    """Endpoints that list and reset restrictions."""

    def __init__(
        self, restrictions: Restrictions, controls: DeploymentApi, gateway: Handler, changes: Changes, clock: Clock
    ) -> None:
        self._restrictions = restrictions
        self._controls = controls
        self._gateway = gateway
        self._changes = changes
        self._clock = clock

    def adopt(self, config: Config) -> None:
        self._restrictions.adopt(config)

    def look(self, now: float) -> None:
        self._restrictions.look(now)

    def pages(self) -> list[Endpoint]:
        summary = "Lists what refuses or delays calls now: cause, start, end, and the request that lifts it."
        reset = "Ends what the gateway restricts by itself, such as breakers and cooldowns. Operator overrides stay."
        return [
            Endpoint("GET", "/admin/restrictions", summary, self._list, gives=list[Restriction]),
            Endpoint("POST", RESET, reset, self._reset, takes=ResetDeployment, gives=Changed[list[Restriction]]),
        ]

    async def _list(self, asked: AdminRequest) -> AdminResponse:
        return answer(await self._restrictions.all(shows_messages=asked.is_operators))

    async def _reset(self, asked: AdminRequest) -> AdminResponse:
        body: ResetDeployment = asked.body
        aim = self._controls.aim(body)
        kinds = _wanted(body)

        def do() -> ChangeResult:
            lifted, warnings = self._lift(aim, kinds)
            left = self._restrictions.of(aim)
            if not lifted:
                warnings.append(f"{aim}: no such restriction was in force")
            warnings += [
                f"still restricted by {restriction.kind}: {restriction.cause}"
                for restriction in left
                if restriction.kind not in kinds
            ]
            return ChangeResult(left, {"kinds": list(kinds), "lifted": lifted}, warnings)

        return await self._changes.make(asked, "deployments.reset", str(aim), do)

    def _lift(self, aim: BreakerSelector, kinds: Iterable[Resettable]) -> tuple[list[str], list[str]]:
        """Returns what was lifted, and warnings about effects on other deployments."""
        meant = [deployment for deployment in self._gateway.deployments() if aim.breaker(deployment) is not None]
        lifts: dict[Resettable, Callable[[list[Deployment]], list[str]]] = {
            "slow_start": self._end_slow_starts,  # before "breaker", the reset of which begins a slow start
            "breaker": self._close_breakers,
            "host_breaker": self._close_hosts,
            "cooldown": self._end_cooldowns,
            "credential_cooldown": self._end_credential_cooldowns,
            "pace": self._forget_paces,
            "throttle": self._end_throttles,
        }
        lifted = {name: lift(meant) for name, lift in lifts.items() if name in kinds}
        self._gateway.wake_waiters()
        warnings = [
            f"the credential of {name} is used again for every model, not only for {aim}"
            for name in lifted.get("credential_cooldown", ())
        ]
        if aim.upstream is None:
            hosts = lifted.get("host_breaker", ())
            warnings += [f"the host of {name} is used again by all its deployments" for name in hosts]
        return [f"{name}: {label}" for name, found in lifted.items() for label in found], warnings

    def _end_slow_starts(self, meant: list[Deployment]) -> list[str]:
        now = self._clock.now()
        ended = [
            deployment
            for deployment in meant
            if any(is_ramping(deployment, gate.snapshot(now)) for gate in deployment.gates.all())
        ]
        for deployment in ended:
            deployment.gates.end_ramp(now)
        return _names(ended)

    def _close_breakers(self, meant: list[Deployment]) -> list[str]:
        closed = [deployment for deployment in meant if self._is_reset(deployment.breaker)]
        for deployment in closed:
            deployment.gates.ramp(self._clock.now(), deployment.breaker.settings.slow_start)
        judged = [deployment for deployment in meant if any(deployment.callers.suspects())]
        for deployment in judged:
            deployment.callers.reset()
        return _names(dict.fromkeys([*closed, *judged]))

    def _close_hosts(self, meant: list[Deployment]) -> list[str]:
        names = {deployment.host: deployment.upstream.name for deployment in meant}
        return [name for host, name in names.items() if self._is_reset(host)]

    def _end_cooldowns(self, meant: list[Deployment]) -> list[str]:
        concerned = self._cooldowns(meant)
        keys = [key for key in concerned if key[0] != "credential"]
        lifted = self._gateway.cooldowns.lift(keys, self._clock.now())
        return _names(deployment for key in lifted for deployment in concerned[key])

    def _end_credential_cooldowns(self, meant: list[Deployment]) -> list[str]:
        concerned = self._cooldowns(meant)
        keys = [key for key in concerned if key[0] == "credential"]
        lifted = self._gateway.cooldowns.lift(keys, self._clock.now())
        return list(dict.fromkeys(concerned[key][0].upstream.name for key in lifted))

    def _cooldowns(self, meant: list[Deployment]) -> dict[CooldownKey, list[Deployment]]:
        return concerned_by(self._gateway.cooldowns.snapshot(self._clock.now()), meant)

    def _forget_paces(self, meant: list[Deployment]) -> list[str]:
        now, forgotten = self._clock.now(), []
        for deployment in meant:
            gates = deployment.gates.all()
            seen = [gate.snapshot(now) for gate in gates]
            if any(gate.rate is not None or gate.held_until is not None for gate in seen):
                forgotten.append(deployment)
            for gate in gates:
                gate.reset_pace(now)
        return _names(forgotten)

    def _end_throttles(self, meant: list[Deployment]) -> list[str]:
        now, ended = self._clock.now(), []
        for deployment in meant:
            gates = deployment.gates.all()
            if any(gate.snapshot(now).throttle.rate is not None for gate in gates):
                ended.append(deployment)
            for gate in gates:
                gate.reset_throttle(now)
        return _names(ended)

    def _is_reset(self, breaker: Breaker) -> bool:
        """Resets a breaker that its failures opened, and returns whether it was open."""
        if breaker.state not in ("open", "half_open"):
            return False
        breaker.reset(self._clock.now(), _REASON)
        return True


def _wanted(body: ResetDeployment) -> tuple[Resettable, ...]:
    """Returns the kinds to reset. Raises Refused where an upstream has no such kind."""
    known = _ALL if body.upstream is None else _OF_AN_UPSTREAM
    if strange := [kind for kind in body.kinds or () if kind not in known]:
        raise Refused(422, "invalid_body", f"`kinds`: an upstream as a whole has no {', '.join(strange)}")
    return tuple(body.kinds or known)


def _names(deployments: Iterable[Deployment]) -> list[str]:
    """Returns each label once, with the name under a pattern."""
    return list(dict.fromkeys(" ".join(deployment.breaker_of().values()) for deployment in deployments))
