"""Builds those parts of the gateway for which the config selects an implementation."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import structlog

from llm_guard.clock import Clock, SystemClock
from llm_guard.config import Config, ConfigError, FleetConfig, encryption_keys, problem_at
from llm_guard.config_reloader import ReloadAgreement
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.http_server.binding import TcpAddress
from llm_guard.proxy.telemetry.recorder import CallCounters
from llm_guard.resilience.capacity.gate import Gate
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.callers import Callers
from llm_guard.routing.deployment import NewGate
from llm_guard.routing.deployment_registry import NewBreaker, NewCallers
from llm_guard.storage.cache.blocking_cache import BlockingCache
from llm_guard.storage.cache.response_store import MemoryCache, ResponseStore
from llm_guard.storage.cache.sqlite_cache_file import CacheFile
from llm_guard.storage.calls.bodies import Bodies
from llm_guard.storage.calls.encryption import BodyEncryption
from llm_guard.storage.calls.process_lock import RunnerLock
from llm_guard.storage.calls.sqlite_store import SqliteCallStore
from llm_guard.storage.errors import EvictingStoreError, StoreError
from llm_guard.storage.owners_file import OwnersFile, OwnersStore
from llm_guard.storage.snapshot_file import gateway_name
from llm_guard.version import __version__
from llm_guard.worker_thread import WorkerThread

if TYPE_CHECKING:
    from llm_guard.fleet.member import FleetMember
    from llm_guard.fleet.names import FleetNames
    from llm_guard.storage.calls.redis_store import RedisCallStore
    from llm_guard.storage.shared.exchange_store import ExchangeStore
    from llm_guard.storage.shared.redis_store import StoreDescription

_log = structlog.get_logger("llm_guard.assembly")

FLEET_OF_WORKERS = "workers"
"""Name of the fleet that the workers of one gateway are, unless the config has one."""


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """All that a process needs to be one of the workers of a gateway (`llm_guard.workers`)."""

    number: int
    """From 1."""
    port: int
    """Port for calls, which the parent holds for all workers."""
    admin_socket: Path
    """UNIX socket of the admin API, through which the parent reaches it."""
    store: ExchangeStore
    """Their common store, unless the config has a fleet."""
    agreement: ReloadAgreement


def addresses_of(config: Config, worker: WorkerRole | None) -> tuple[TcpAddress, TcpAddress | Path | None]:
    """Returns where calls are served, and the admin API; None: at the same address."""
    server, ops = config.server, config.ops
    if worker is not None:
        return TcpAddress(server.host, worker.port, is_shared=True), worker.admin_socket
    return TcpAddress(server.host, server.port), None if ops.port is None else TcpAddress(ops.host, ops.port)


def new_cache_store(
    folder: Callable[[], Path], config: Config, sealing: Callable[[], BodyEncryption | None], clock: Clock
) -> ResponseStore:
    """Returns the store of cached responses. `folder` may raise OSError; `sealing` returns the present encryption."""
    rules = config.store.cache
    if rules.kind == "memory":
        return MemoryCache(clock, rules.size)
    if rules.kind == "sqlite":
        return BlockingCache(CacheFile(folder), rules.kind, clock, rules.size)
    from llm_guard.storage.cache.redis_cache import RedisCacheEntries  # noqa: PLC0415  # needs redis, which is an extra

    fleet = _fleet_of(config)
    entries = RedisCacheEntries(fleet.store, fleet.name, sealing, clock)
    return BlockingCache(entries, rules.kind, clock, rules.size)


def new_owners_store(folder: Callable[[], Path], config: Config, clock: Clock) -> OwnersStore:
    """Returns the store of the owners of a provider's objects. `folder` may raise OSError."""
    if config.store.objects.kind == "sqlite":
        return OwnersFile(folder)
    from llm_guard.storage.redis_owners import RedisOwners  # noqa: PLC0415  # needs redis, which is an extra

    fleet = _fleet_of(config)
    return RedisOwners(fleet.store, fleet.name, clock)


def new_call_store(
    folder: Callable[[], Path], config: Config, worker: WorkerRole | None, sealing: BodyEncryption | None, clock: Clock
) -> SqliteCallStore | RedisCallStore:
    """Returns the store of deferred calls and dead letters. `folder` may raise OSError."""
    runner, bodies = new_runner(folder, config, _number(worker)), Bodies(config.store.dead_letters.bodies, sealing)
    if config.store.calls.kind == "sqlite":
        return SqliteCallStore(folder, runner, bodies)
    from llm_guard.storage.calls.redis_store import RedisCallStore  # noqa: PLC0415  # needs redis, which is an extra

    fleet = _fleet_of(config)
    return RedisCallStore(fleet.store, fleet.name, runner, bodies, clock)


def _fleet_of(config: Config) -> FleetConfig:
    assert config.fleet is not None  # noqa: S101  # `kind: redis` without a fleet is a mistake of the config
    return config.fleet


async def refuse_evicting_store(config: Config, path: Path | None) -> None:
    """Raises ConfigError if the server may evict what is stored there beyond a call. One that does not answer is no
    reason not to start: it is checked before its first use."""
    fleet, store = config.fleet, config.store
    if fleet is None or "redis" not in (store.calls.kind, store.cache.kind, store.objects.kind):
        return
    from llm_guard.storage.shared.redis_script import check_server  # noqa: PLC0415  # needs redis, which is an extra

    try:
        await WorkerThread("fleet store").run(check_server, fleet.store)
    except EvictingStoreError as error:
        raise ConfigError([problem_at(path, ("fleet", "store"), str(error))]) from None
    except StoreError as error:
        _log.warning("stored calls and responses are not available", error=str(error))


def new_runner(folder: Callable[[], Path], config: Config, worker: int = 0) -> str | RunnerLock:
    """Returns the identity of this process as runner of stored calls: a lock named after its address, or a unique name
    if the system chooses the port, since the port then does not identify the gateway after a restart."""
    host, port = config.server.host, config.server.port
    return _process_id() if port == 0 else RunnerLock(folder, gateway_name(host, port, worker), token_hex(8))


def sealing_of(config: Config) -> BodyEncryption | None:
    """Returns the encryption of what is stored, if there is a key."""
    key = config.store.encryption_key
    return None if key is None else BodyEncryption(encryption_keys(key))


def breaker_type(config: Config, worker: WorkerRole | None) -> NewBreaker:
    """Returns the class of the deployments' breakers."""
    if config.fleet is None and worker is None:
        return Breaker
    from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker  # noqa: PLC0415  # loaded only with a fleet

    return SharedBreaker


def fleet_names(config: Config, worker: WorkerRole | None, generated: str | None) -> FleetNames | None:
    """Returns the digests of the fleet's names; None without a fleet. `generated`: the operator token that the gateway
    has made, None if the config has one."""
    if config.fleet is None and worker is None:
        return None
    from llm_guard.fleet.names import FleetNames  # noqa: PLC0415  # loaded only with a fleet

    token = config.ops.fleet_token or generated
    assert token is not None  # noqa: S101  # one is generated where the config has no operator's token
    return FleetNames(token)


def callers_type(names: FleetNames | None) -> NewCallers:
    """Returns what creates the callers of deployments."""
    if names is None:
        return Callers
    from llm_guard.resilience.circuit_breaker.shared_callers import SharedCallers  # noqa: PLC0415  # loaded only with a fleet

    return partial(SharedCallers, digest=names.of)


def gate_type(config: Config, worker: WorkerRole | None) -> NewGate:
    """Returns the class of the deployments' gates."""
    if config.fleet is None and worker is None:
        return Gate
    from llm_guard.resilience.capacity.shared_gate import SharedGate  # noqa: PLC0415  # loaded only with a fleet

    return SharedGate


def new_member(
    config: Config,
    worker: WorkerRole | None,
    names: FleetNames | None,
    gateway: Handler,
    counters: CallCounters,
    digest: Callable[[], str],
    clock: Clock,
) -> FleetMember | None:
    """Returns this gateway's membership of its fleet, which has not started yet; None without a fleet. `digest` returns
    that of the running config."""
    if names is None:
        return None
    from llm_guard.fleet.breakers import FleetBreakers  # noqa: PLC0415  # loaded only with a fleet
    from llm_guard.fleet.client_limits import FleetClientLimits  # noqa: PLC0415  # loaded only with a fleet
    from llm_guard.fleet.content import ReplicaStatus  # noqa: PLC0415  # loaded only with a fleet
    from llm_guard.fleet.member import FleetMember  # noqa: PLC0415  # loaded only with a fleet
    from llm_guard.fleet.paces import FleetPaces  # noqa: PLC0415  # loaded only with a fleet
    from llm_guard.fleet.retry_floors import FleetRetryFloors  # noqa: PLC0415  # loaded only with a fleet
    from llm_guard.fleet.slots import FleetSlots  # noqa: PLC0415  # loaded only with a fleet

    began_at = clock.now()

    def status() -> ReplicaStatus:
        calls = sum(sum(model.calls.values()) for model in counters.models.values())
        up_s = clock.now() - began_at
        return ReplicaStatus(__version__, digest(), up_s, gateway.running, calls, gateway.is_leaving, names.own)

    replica = _process_id() if worker is None else f"{_process_id()}:worker-{worker.number}"
    slots = FleetSlots(gateway.deployments, gateway.quotas, names, gateway.wake_waiters)
    gateway.table.pool.observers.subscribe(slots.adopt)
    client_limits = FleetClientLimits(gateway.quotas, names, clock)
    paces = FleetPaces(gateway.deployments, replica, names, gateway.wake_waiters)
    return FleetMember(
        FLEET_OF_WORKERS if config.fleet is None else config.fleet.name,
        replica,
        _exchange_store(config.fleet, worker, replica),
        FleetBreakers(gateway.deployments, names),
        slots,
        client_limits,
        paces,
        FleetRetryFloors(lambda: gateway.table),
        status,
        names,
        clock,
    )


def _exchange_store(fleet: FleetConfig | None, worker: WorkerRole | None, replica: str) -> ExchangeStore:
    if worker is not None and fleet is None:
        return worker.store
    from llm_guard.storage.shared.redis_store import RedisStore  # noqa: PLC0415  # needs redis, which is an extra

    assert fleet is not None  # noqa: S101  # a gateway without both is in no fleet
    return RedisStore(fleet.store, fleet.name, replica)


def _number(worker: WorkerRole | None) -> int:
    return 0 if worker is None else worker.number


async def describe_store(fleet: FleetConfig) -> StoreDescription:
    """Returns what is found of the fleet's store. Raises StoreUnavailable."""
    from llm_guard.storage.shared.redis_store import RedisStore  # noqa: PLC0415  # needs redis, which is an extra

    store = RedisStore(fleet.store, fleet.name, _process_id())
    try:
        return await store.describe(SystemClock())
    finally:
        await store.close()


def _process_id() -> str:
    """Returns a name that no other process has."""
    return f"{socket.gethostname()}:{os.getpid()}:{token_hex(8)}"
