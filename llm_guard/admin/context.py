"""The running gateway, as `app` hands it to the admin API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_guard.admin.audit.changes import Changes
from llm_guard.admin.events.event_log import EventLog
from llm_guard.admin.tracing.exporter import Traces
from llm_guard.clock import Clock
from llm_guard.config_reloader import ConfigReloader
from llm_guard.deferred.service import DeferredService
from llm_guard.proxy.attempts.fault_injection import FaultInjector
from llm_guard.proxy.cache.response_cache import ResponseCache
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.http_server.connection import Listener
from llm_guard.proxy.telemetry.recorder import CallCounters
from llm_guard.upstreams.engines.registry import Engines
from llm_guard.upstreams.probes.prober import Prober

if TYPE_CHECKING:
    from llm_guard.fleet.member import FleetMember


@dataclass(frozen=True, slots=True)
class AdminContext:
    """References to the parts of the gateway that the admin API reads and acts on."""

    gateway: Handler
    reloads: ConfigReloader
    counters: CallCounters
    listeners: Callable[[], list[Listener]]
    """The listeners; the one for calls comes first."""
    clock: Clock
    dials: Callable[[str], int]
    """Connections begun to an origin since the start."""
    prober: Prober
    deferred: DeferredService
    engines: Engines
    cache: ResponseCache
    journal: EventLog
    changes: Changes
    traces: Traces
    faults: FaultInjector
    """Faults that operators inject into attempts."""
    file_problems: Callable[[], Mapping[str, str | None]] = dict
    """Problems with keys and certificates in files, by purpose; None: no problem."""
    fleet: FleetMember | None = None
    """None: this gateway is alone."""
    credential_problems: Callable[[], Mapping[str, str | None]] = dict
    """Problems with the credentials of clouds, by upstream; None: no problem."""
    worker: int = 0
    """Number of this process among the workers of the gateway; 0: the gateway has one process."""
