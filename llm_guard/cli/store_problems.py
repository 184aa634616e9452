"""What is wrong with the settings of a fleet's server, for `llm-guard check --online` and `llm-guard doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_guard.storage.shared.redis_store import StoreDescription


def store_problems(store: StoreDescription, *, keeps_calls: bool) -> Iterator[tuple[str, str, bool]]:
    """Yields each problem with its remedy, and whether the gateway does not start with it. `keeps_calls`: deferred
    calls and dead letters are stored there."""
    policy = store.eviction
    if keeps_calls and policy.startswith("allkeys"):
        problem = f"maxmemory-policy {policy} may evict stored calls, so the gateway does not start"
        yield problem, "set noeviction", True
    elif policy != "noeviction":
        yield f"maxmemory-policy {policy} may evict overrides by operators", "use noeviction", False
    if keeps_calls and not store.is_persistent:
        yield "deferred calls and dead letters are lost when the server restarts", "set appendonly yes", False
