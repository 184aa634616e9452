"""A gateway without sockets, an operator side and stored calls, for tests of single parts and for simulations."""

from __future__ import annotations

from random import Random
from typing import NoReturn, cast

from llm_guard.admin.tracing.exporter import Traces
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.proxy.attempts.upstream_attempt import Upstreams
from llm_guard.proxy.cache.response_cache import ResponseCache
from llm_guard.proxy.client_keys.object_ownership import OwnedObjects
from llm_guard.proxy.client_keys.screening import Screening
from llm_guard.proxy.degraded_mode import DegradedMode
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.ports import DeferredStore
from llm_guard.proxy.telemetry.recorder import CallCounters, Recorder
from llm_guard.routing.route_table import compile_routes
from llm_guard.storage.cache.response_store import MemoryCache
from llm_guard.storage.owners_file import OwnersFile


def new_gateway(
    config: Config,
    clock: Clock,
    *,
    upstreams: Upstreams | None = None,
    counters: CallCounters | None = None,
    deferred_store: DeferredStore | None = None,
    random: Random | None = None,
) -> Handler:
    """Builds a handler as `app.App` does. Without `upstreams` or a `deferred_store`, no call may need one."""
    counters, draw = counters or CallCounters(), _no_jitter if random is None else random.random
    traces = Traces(config.ops.traces, clock)
    return Handler(
        config,
        compile_routes(config, clock.now(), draw=draw),
        cast("Upstreams", upstreams),
        Recorder(counters, traces, clock),
        DegradedMode(counters.models, clock, lambda *_: None),
        ResponseCache(MemoryCache(clock, 1 << 20), clock),
        cast("DeferredStore", deferred_store),
        Screening(OwnedObjects(OwnersFile(_no_folder), clock), clock),
        traces,
        clock,
        random or Random(1),
    )


def _no_jitter() -> float:
    return 0.0


def _no_folder() -> NoReturn:
    raise OSError("this gateway stores nothing")
