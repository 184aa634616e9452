"""Restrictions by health checks: upstreams with failing probes, and engines that are down. Calls go there last.

Describes each of them; `admin.restrictions.restrictions` selects the deployments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_guard.admin.restrictions.deployments import Moment
from llm_guard.admin.schemas.restrictions import Lift, Restriction
from llm_guard.clock import iso
from llm_guard.resilience.health.engine_state import EngineState
from llm_guard.upstreams.engines.supervisor import EngineReport
from llm_guard.upstreams.probes.targets import ProbeView

_ENDS: dict[EngineState, str] = {
    "starting": "It ends when the engine answers its probe.",
    "restarting": "It ends when the engine answers its probe.",
    "unhealthy": "The engine is restarted automatically.",
    "restart_failed": "The engine is restarted automatically.",
    "failed": "The engine was given up: it is not restarted automatically.",
    "stopped": "The engine is not started automatically.",
}


def of_probes(views: Iterable[ProbeView]) -> Iterator[Restriction]:
    """Yields the upstreams and deployments with failing probes."""
    for view in views:
        if view.state == "down":
            name = view.deployment or view.upstream
            yield Restriction(
                "probe_down",
                view.deployment,
                None,
                view.upstream,
                f"{view.failures} probes of {name} failed in a row, the last one: {view.why}",
                None if view.down_since_wall is None else iso(view.down_since_wall),
                None,
                "The next probe that succeeds ends it, and so does a call that succeeds.",
                0,
                False,
                Lift("POST", "/admin/probes/now", {"upstream": view.upstream}, "Probes the upstream at once."),
                None,
                rule=f"{view.failures} failed probes in a row: {view.why}",
            )


def of_engines(reports: Iterable[EngineReport], moment: Moment) -> Iterator[Restriction]:
    """Yields an entry for each upstream of an engine that does not run. Standby engines are not started yet."""
    for report in reports:
        seen = report.now
        if seen.state == "running" or (seen.state == "stopped" and report.config.standby):
            continue
        action, effect = ("restart", "Stops the engine and starts it again.")
        if seen.state == "failed":
            action, effect = ("reset", "Clears its restart attempts, and restarts it.")
        elif seen.state == "stopped":
            action, effect = ("start", "Starts the engine.")
        until = None if seen.next_attempt_s is None else moment.now + seen.next_attempt_s
        why = f": {seen.why}" if seen.why else ""
        for upstream in report.config.upstreams:
            yield Restriction(
                "engine_down",
                None,
                None,
                upstream,
                f"the engine {report.name} is {seen.state.replace('_', ' ')}{why}",
                moment.iso(seen.since),
                moment.iso(until),
                _ENDS[seen.state],
                0,
                False,
                Lift("POST", f"/admin/engines/{action}", {"engine": report.name}, effect),
                None,
                rule=f"{report.name}: {seen.state.replace('_', ' ')}{why}",
            )
