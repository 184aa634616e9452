"""Restrictions by an operator's override, by a degraded mode, or of the gateway as a whole.

Describes each of them. `admin.restrictions.deployments` has those that deployments set by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from llm_guard.admin.overrides.breaker_overrides import BreakerOverride
from llm_guard.admin.overrides.injected_faults import FaultOverride
from llm_guard.admin.restrictions.deployments import Moment
from llm_guard.admin.schemas.restrictions import Lift, LiftBody, Restriction
from llm_guard.admin.schemas.subsystems import DegradedView, ModeView
from llm_guard.clock import iso
from llm_guard.resilience.client_keys.limit_states import LimitLeft, Refusing
from llm_guard.routing.deployment import Deployment, MaintenanceHold

_RELOAD = "/admin/config/reload"


def of_force(force: BreakerOverride, refused: int, moment: Moment) -> Restriction:
    """Describes breakers that an operator has forced open. `refused`: calls that they have refused since."""
    aim = force.aim
    body: LiftBody = {"upstream": aim.upstream} if aim.upstream is not None else {"deployment": aim.deployment}
    if aim.model is not None:
        body["model"] = aim.model
    return Restriction(
        "forced_breaker",
        aim.deployment,
        aim.model,
        aim.upstream,
        f"forced open by {force.who}: {force.reason}",
        iso(force.since),
        moment.iso(force.until),
        _end_of_override(force.until, "reset"),
        0,
        False,
        Lift("POST", "/admin/breakers/reset", body, "Removes the override; the breaker starts closed."),
        None,
        rule=f"forced open by {force.who}",
        refused=refused,
    )


def of_config_force(deployment: Deployment) -> Restriction:
    """Describes a breaker that the config forces open."""
    lift = Lift(
        "POST",
        "/admin/breakers/force-closed",
        {**deployment.breaker_of()},
        "Forces the breaker closed until it is reset; then the config forces it open again.",
    )
    return Restriction(
        "forced_breaker",
        deployment.label,
        deployment.breaker_of().get("model"),
        deployment.upstream.name,
        "the config forces its breaker open (breaker.state: forced_open)",
        None,
        None,
        "It ends when the config sets another state.",
        0,
        False,
        lift,
        None,
        rule="breaker.state: forced_open",
        refused=deployment.breaker.refused,
    )


def of_hold(label: str, hold: MaintenanceHold, refused: int, moment: Moment) -> Restriction:
    """Describes a deployment that an operator has drained or cordoned. `refused`: calls not sent to it since."""
    return Restriction(
        "hold",
        label,
        None,
        None,
        f"{hold.kind} by {hold.who}: {hold.reason}",
        iso(hold.since),
        moment.iso(hold.until),
        _end_of_override(hold.until, "uncordoned"),
        0,
        False,
        Lift(
            "POST", "/admin/deployments/uncordon", {"deployment": label}, "The deployment gets calls again, gradually."
        ),
        None,
        rule=f"{hold.kind} by {hold.who}",
        refused=refused,
    )


def of_fault(override: FaultOverride, upstream: str | None, moment: Moment) -> Restriction:
    """Describes a fault that an operator injects. `upstream`: of its deployment, if it has one."""
    fault = override.fault
    return Restriction(
        "injected_fault",
        fault.deployment,
        fault.model,
        upstream,
        f"{fault.id}: {fault.effect.kind} for {fault.share:.0%} of the attempts, injected by {override.who}: "
        f"{override.reason}",
        iso(override.since),
        moment.iso(fault.until),
        _end_of_override(fault.until, "ended"),
        0,
        False,
        Lift("POST", "/admin/chaos/end", {"id": fault.id}, "Ends the fault; attempts that hang fail."),
        None,
        rule=f"{fault.effect.kind} for {fault.share:.0%} of the attempts",
        refused=fault.struck,
    )


def of_modes(view: DegradedView) -> Iterator[Restriction]:
    """Yields the degraded modes, in which calls wait less and fallback responses are sent early."""
    if view.gateway.is_degraded:
        yield _mode(view.gateway, None)
    for mode in view.models:
        if mode.is_degraded and mode.by != "gateway":
            yield _mode(mode, mode.model)


def of_client_limit(client: str, left: LimitLeft, refusing: Refusing, moment: Moment) -> Restriction:
    """Describes a client key that has used up one of its limits."""
    end = "It ends when enough is available for the call that was refused last."
    if refusing.until == inf:
        end = "It ends with the next call that fits: the one that was refused last is larger than the limit."
    return Restriction(
        "client_limit",
        None,
        None,
        None,
        f"the client key {client} has {left.left:.0f} of {left.allowed:g} left of its limit {left.limit} "
        "(server.client_keys[].limits)",
        moment.iso(refusing.since),
        moment.iso(None if refusing.until == inf else refusing.until),
        end,
        0,
        True,
        Lift("POST", "/admin/clients/reset", {"client": client}, "Resets the usage of the key, for all its limits."),
        None,
        rule=f"{left.limit}: {left.allowed:g}",
        refused=refusing.refused,
    )


def of_deadline(model: str, calls: int, timed_out: int, since: float, moment: Moment) -> Restriction:
    """Describes the last minute's calls that ended at their deadline."""
    effect = "Reloads the config. Set a longer timeout.total for the model in the file first."
    return Restriction(
        "deadline",
        None,
        model,
        None,
        f"{timed_out} of {calls} calls within a minute had no response by their deadline: timeout.total, the "
        "client's own timeout, or the wait of a degraded mode is too short",
        moment.iso(since),
        None,
        "Each call has its own deadline; this entry disappears a minute after the last such call.",
        0,
        False,
        Lift("POST", _RELOAD, {}, effect),
        None,
        rule=f"{timed_out} of {calls} calls within a minute",
        refused=timed_out,
    )


def of_deferred_queue(waiting: int, most: int, since: float | None, moment: Moment) -> Restriction:
    """Describes a full queue of deferred calls."""
    effect = "Reloads the config. Set a larger store.deferred.max_pending in the file first."
    return Restriction(
        "deferred_queue",
        None,
        None,
        None,
        f"{waiting} of {most} deferred calls are pending (store.deferred.max_pending)",
        moment.iso(since),
        None,
        "Another one is accepted whenever one of them ends.",
        waiting,
        False,
        Lift("POST", _RELOAD, {}, effect),
        None,
        rule=f"store.deferred.max_pending: {most}",
    )


def of_spool(used: int, most: int, refused: int, since: float, moment: Moment) -> Restriction:
    """Describes large bodies that found no room on the disk within the last minute."""
    effect = "Reloads the config. Set a larger server.max_spool in the file first."
    return Restriction(
        "spool",
        None,
        None,
        None,
        f"large request bodies were refused within the last minute: {used} of {most} bytes are spooled "
        "(server.max_spool), or the disk under TMPDIR is full",
        moment.iso(since),
        None,
        "Bodies are accepted again when there is room; this entry disappears a minute after the last refusal.",
        0,
        False,
        Lift("POST", _RELOAD, {}, effect),
        None,
        rule=f"server.max_spool: {most} bytes",
        refused=refused,
    )


def of_connections(most: int, refused: int, is_shared: bool, since: float, moment: Moment) -> Restriction:
    """Describes new connections refused within the last minute, because all that may be open had a call.

    `is_shared`: operators use the same address, and may be refused as well.
    """
    effect = "Reloads the config. Set a larger server.max_connections in the file first."
    also = "; the admin API uses the same address, and may be refused too (ops.port gives it its own)"
    return Restriction(
        "connections",
        None,
        None,
        None,
        f"new connections were refused within a minute: all {most} connections had a call "
        f"(server.max_connections, or the limit on open files){also if is_shared else ''}",
        moment.iso(since),
        None,
        "Connections are accepted again when one ends or idles; this entry disappears a minute after the last refusal.",
        0,
        False,
        Lift("POST", _RELOAD, {}, effect),
        None,
        rule=f"server.max_connections: {most}",
        refused=refused,
    )


def of_tls_handshakes(refused: int, since: float, moment: Moment) -> Restriction:
    """Describes new connections with a failed TLS handshake within the last minute."""
    return Restriction(
        "tls_handshakes",
        None,
        None,
        None,
        "TLS handshakes of new connections failed within a minute: the client has no certificate that "
        "server.tls.client_ca accepts, does not trust the gateway's, or speaks no TLS version of it (the log has the "
        "reason at debug)",
        moment.iso(since),
        None,
        "No handshake is refused for it; this entry disappears a minute after the last failure.",
        0,
        False,
        Lift("POST", _RELOAD, {}, "Reloads the config and the certificates. Correct these first."),
        None,
        rule="server.tls",
        refused=refused,
    )


def of_drain(since: float | None, moment: Moment) -> Restriction:
    """Describes the shutdown of the gateway."""
    return Restriction(
        "drain",
        None,
        None,
        None,
        "this gateway is shutting down: calls in flight finish, new ones are refused",
        moment.iso(since),
        None,
        "It ends with the process.",
        0,
        False,
        None,
        "a shutdown cannot be undone: start another gateway",
        rule="shutdown of the gateway",
    )


def _mode(mode: ModeView, model: str | None) -> Restriction:
    is_override = mode.by == "operator"
    body: LiftBody = {} if model is None else {"model": model}
    lift = (
        Lift("POST", "/admin/degraded/auto", body, "The rule decides again.")
        if is_override
        else Lift("POST", "/admin/degraded/exit", body, "Exits degraded mode, regardless of the rule.")
    )
    return Restriction(
        "degraded_mode",
        None,
        model,
        None,
        f"calls wait for degraded.max_wait at most, then get a fallback response: {mode.reason or 'by its rule'}",
        mode.since,
        mode.until,
        _end_of_override(mode.until, "removed") if is_override else "It ends when calls succeed again.",
        0,
        False,
        lift,
        None,
        rule=mode.reason or "degraded.enter_failure_rate",
    )


def _end_of_override(until: object, done: str) -> str:
    return "It ends by itself at that time." if until is not None else f"It lasts until it is {done}."
