"""/admin/clients: usage and remaining limits of each client key, and their reset.

`resilience.client_keys.limits` enforces the limits.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from llm_guard.admin.api.parameters import check_known
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.context import AdminContext
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, answer
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.proxy.telemetry.recorder import ClientCounts
from llm_guard.resilience.client_keys.limit_states import LimitName

RESET = "/admin/clients/reset"


class ClientLimitView(Struct, frozen=True):
    """A limit of a client key."""

    limit: LimitName
    """rate: calls per second; concurrency: calls at once; the others: tokens per minute, and per day in UTC."""
    allowed: float
    left: float
    reset_s: float
    """Seconds until all of it is available again, if nothing is used meanwhile."""
    refused: int
    """Calls refused by this limit since the start."""
    is_refusing: bool
    """It refuses calls now."""


class ClientView(Struct, frozen=True):
    """A client key."""

    client: str
    """Name of the key."""
    priority: str
    """Highest priority that its calls may request."""
    weight: float
    """Its share of the wait queue within a priority."""
    calls: dict[str, int]
    """Calls since the start by how they ended."""
    tokens: dict[str, int]
    """Tokens since the start: input, output, cached (of the input), wasted (output that the client did not get)."""
    limits: list[ClientLimitView]


class ResetClient(Change):
    """The client key to reset."""

    client: Annotated[str, Meta(min_length=1, max_length=600)]


class ClientApi(EndpointGroup):
    """Endpoints of client keys, under the current config; a reload replaces it."""

    def __init__(self, config: Config, running: AdminContext, changes: Changes) -> None:
        self._quotas = running.gateway.quotas
        self._counts = running.counters.clients
        self._clock: Clock = running.clock
        self._changes = changes
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the keys of a new config."""
        self._keys = {key.name: key for key in config.server.client_keys}

    def pages(self) -> list[Endpoint]:
        reset = "Resets the used rate and tokens of a client key. Running calls still count."
        return [
            Endpoint("GET", "/admin/clients", "Shows usage and limits of each client key.", self._give,
                 gives=list[ClientView]),
            Endpoint("POST", RESET, reset, self._reset, takes=ResetClient, gives=Changed[ClientView]),
        ]  # fmt: skip

    def views(self) -> list[ClientView]:
        """Returns all keys, in the order of the config."""
        return [self._view(name) for name in self._keys]

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self.views())

    async def _reset(self, asked: AdminRequest) -> AdminResponse:
        name = asked.body.client
        check_known(name, self._keys.keys(), "client")

        def do() -> ChangeResult:
            limits = self._quotas.by_name.get(name)
            if limits is None:
                return ChangeResult(self._view(name), {}, [f"{name} has no limits"])
            now, wall = self._clock.now(), self._clock.wall()
            used = {limit.limit: limit.allowed - limit.left for limit in limits.left(now, wall)}
            limits.reset(now, wall)
            return ChangeResult(self._view(name), {"used": used})

        return await self._changes.make(asked, "clients.reset", name, do)

    def _view(self, name: str) -> ClientView:
        key, counts = self._keys[name], self._counts.get(name) or ClientCounts()
        return ClientView(
            name, key.priority, key.weight, dict(counts.client_calls), dict(counts.client_tokens), self._limits(name)
        )

    def _limits(self, name: str) -> list[ClientLimitView]:
        limits = self._quotas.by_name.get(name)
        if limits is None:
            return []
        now, wall = self._clock.now(), self._clock.wall()
        refusing = {limit.limit for limit in limits.refusing(now)}
        return [
            ClientLimitView(
                limit.limit,
                limit.allowed,
                round(limit.left, 3),
                round(limit.reset_s, 3),
                self._quotas.refusals.get((name, limit.limit), 0),
                limit.limit in refusing,
            )
            for limit in limits.left(now, wall)
        ]
