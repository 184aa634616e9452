"""Calls that the gateway answers itself: its list of models, their state, and the state of deferred calls."""

from __future__ import annotations

from collections.abc import Awaitable

from llm_guard.clock import Clock
from llm_guard.proxy.call import Call
from llm_guard.proxy.client_keys.quotas import ClientQuotas
from llm_guard.proxy.http_server.error_responses import refuse
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.model_catalog import ModelCatalog, is_for_catalog
from llm_guard.proxy.model_status import ModelStatuses
from llm_guard.proxy.ports import DeferredStore
from llm_guard.proxy.status_endpoint import STATUS_PATH, StatusEndpoint
from llm_guard.routing.route_table import RouteTable


class OwnEndpoints:
    """Answers calls that have no route."""

    def __init__(
        self,
        catalog: ModelCatalog,
        deferred_store: DeferredStore,
        quotas: ClientQuotas,
        statuses: ModelStatuses,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._deferred_store = deferred_store
        self._quotas = quotas
        self.status = StatusEndpoint(statuses, clock)

    def serve(self, call: Call, table: RouteTable, reply: ResponseWriter) -> Awaitable[object]:
        """Returns the coroutine that answers the call."""
        if call.path == STATUS_PATH and call.method in ("GET", "HEAD"):
            if (refusal := self._quotas.take_rate(call)) is not None:
                return refuse(call, refusal, reply)
            return self.status.serve(call, reply)
        if not is_for_catalog(call):
            return self._deferred_store.serve_status_api(call, reply)
        if call.client_key is not None and (refusal := self._quotas.reserve(call)) is not None:
            return refuse(call, refusal, reply)
        return self._catalog.serve(call, table, reply)
