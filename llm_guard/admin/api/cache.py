"""/admin/cache: entries and hits of the response cache, and its purge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from llm_guard.admin.api.parameters import check_known
from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused, answer
from llm_guard.admin.schemas.subsystems import CacheView, RouteCache
from llm_guard.config import Config
from llm_guard.proxy.cache.response_cache import ResponseCache
from llm_guard.proxy.telemetry.recorder import ModelCounts
from llm_guard.routing.route_table import NO_ALIAS
from llm_guard.storage.cache.response_store import RouteCacheSize

_NOTHING = RouteCacheSize(0, 0)


class Purge(Change):
    """The entries to purge."""

    between_fields: ClassVar[Mapping[str, object]] = {"minProperties": 2, "maxProperties": 2}
    """`reason`, and one of the two."""

    route: Annotated[str, Meta(min_length=1, max_length=600)] | UnsetType = UNSET
    all: Literal[True] | UnsetType = UNSET


class Purged(Struct, frozen=True):
    """Result of the purge."""

    purged: int
    """Number of purged responses."""


class CacheApi(EndpointGroup):
    """Endpoints of the cache, under the current config; a reload replaces it."""

    def __init__(
        self,
        config: Config,
        cache: ResponseCache,
        counts: Mapping[str, ModelCounts],
        flights: Callable[[], int],
        changes: Changes,
    ) -> None:
        self._cache = cache
        self._counts = counts
        self._flights = flights
        self._changes = changes
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Applies the routes of a new config."""
        self._is_on = {key: model.cache is not None for key, model in config.models.items()}
        self._is_on[NO_ALIAS] = config.defaults.cache is not None

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/admin/cache", "Shows the response cache, by route.", self._give, gives=CacheView),
            Endpoint(
                "POST", "/admin/cache/purge", "Purges the cached responses of one route, or of all.", self._purge,
                takes=Purge, gives=Changed[Purged],
            ),
        ]  # fmt: skip

    def view(self) -> CacheView:
        """Returns the current state."""
        now = self._cache.snapshot()
        shown = dict.fromkeys((*(key for key, is_on in self._is_on.items() if is_on), *now.routes))
        routes = [self._route(route, now.routes.get(route, _NOTHING)) for route in shown]
        return CacheView(
            now.kind,
            sum(cache.entries for cache in routes),
            sum(cache.bytes for cache in routes),
            now.max_bytes,
            now.evictions,
            dict(now.failures),
            self._flights(),
            routes,
        )

    def view_if_used(self) -> CacheView | None:
        """Returns the current state; None if no route has a cache, and no entries are left of one that had."""
        view = self.view()
        return view if view.routes else None

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self.view())

    def _route(self, route: str, held: RouteCacheSize) -> RouteCache:
        counts = self._counts.get(route) or ModelCounts()
        got = (counts.cache.get(outcome, 0) for outcome in ("hit", "stale", "stale_if_error", "miss", "coalesced"))
        return RouteCache(route, self._is_on.get(route, False), held.entries, held.bytes, *got)

    async def _purge(self, asked: AdminRequest) -> AdminResponse:
        route = None if asked.body.route is UNSET else asked.body.route
        if (route is None) == (asked.body.all is UNSET):
            raise Refused(422, "invalid_body", 'send either `route`, or `"all": true`')
        if route is not None:
            check_known(route, self._is_on.keys() | self._cache.snapshot().routes.keys(), "route")

        async def do() -> ChangeResult:
            purged = await self._cache.purge(route)
            if purged is None:
                message = "the cache file does not respond, and its responses may still be served: try again, or set"
                raise Refused(503, "cache_unreadable", f"{message} `store.cache.kind` to memory")
            return ChangeResult(Purged(purged), {"purged": purged})

        return await self._changes.make(asked, "cache.purge", route or "all", do)
