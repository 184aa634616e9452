"""Filters a provider's list of models by what the caller's key allows."""

from __future__ import annotations

from llm_guard.clock import Clock
from llm_guard.outcome import Exhausted
from llm_guard.proxy.call import Call, Delivered
from llm_guard.proxy.caller_identity import may_use
from llm_guard.proxy.response.json_rewrite import object_in, unreadable, with_object
from llm_guard.resilience.client_keys.provider_objects import filtered
from llm_guard.routing.route_table import RouteTable

_PATH = "/v1/models"


def is_filtered(call: Call) -> bool:
    """Returns whether this call's response must be filtered."""
    is_list = call.path == _PATH and call.method == "GET"
    return is_list and call.scope is not None and not call.scope.allows_all_models


def filter_models(call: Call, served: Delivered, table: RouteTable, clock: Clock) -> Delivered | Exhausted:
    """Returns the response as the call's key may see it. A provider's error is left unchanged."""
    if not 200 <= served.opened.status < 300:
        return served
    answer = object_in(served.opened)
    entries = answer.get("data") if answer is not None else None
    if answer is None or not isinstance(entries, list):
        return unreadable(served, clock)
    kept = [entry for entry in entries if _may_see(call, table, entry)]
    return with_object(served, filtered(answer, kept))


def _may_see(call: Call, table: RouteTable, entry: object) -> bool:
    name = entry.get("id") if isinstance(entry, dict) else None
    return isinstance(name, str) and may_use(call, table, name)
