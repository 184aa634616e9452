"""Serves `GET /v1/models` and `GET /v1/models/NAME`: the models that clients can request, in their dialect.

Names come from the config. The list also has those that match a pattern and are in the lists of the pattern's
upstreams, which are requested with the caller's key or the gateway's, as any call. A single model of a pattern is
requested from its upstream: providers know aliases and fine-tuned models that they do not list. An upstream's own list
is at `/upstreams/NAME/v1/models`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Exhausted, Refusal
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.attempts.admission import ResponseScope
from llm_guard.proxy.call import Call, Delivered
from llm_guard.proxy.caller_identity import may_use
from llm_guard.proxy.http_server.error_responses import refuse, unknown_model
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.response.json_rewrite import object_in
from llm_guard.resilience.client_keys.scope import model_in_path
from llm_guard.resilience.routing.candidates import deadline_at
from llm_guard.routing.route_table import Route, RouteTable

_MOST_S = 10.0
"""Time for one upstream's list, all attempts together."""

_Entry = dict[str, Any]
_Run = Callable[[Call, Route], Awaitable[Delivered | Exhausted]]


def is_for_catalog(call: Call) -> bool:
    """Returns whether a call asks for models of the config, not for those of an upstream that its path names."""
    if call.method not in ("GET", "HEAD") or call.upstream_name is not None:
        return False
    return call.path == DIALECTS[call.dialect].MODELS_PATH or model_in_path(call.path) is not None


def upstream_of_model(call: Call, table: RouteTable) -> str | None:
    """Returns the upstream that knows the single model that a call of the catalog asks for; None: the gateway does."""
    name = model_in_path(call.path)
    pattern = table.pattern_of(name) if name is not None and not table.is_exact(name) else None
    upstreams = table.upstreams_of(pattern, call.dialect) if pattern is not None else ()
    return upstreams[0] if upstreams else None


class ModelCatalog:
    """Answers calls for which `is_for_catalog` is true, unless `upstream_of_model` names an upstream."""

    def __init__(self, run: _Run, clock: Clock) -> None:
        """`run` makes the attempts of a call on a route."""
        self._run = run
        self._clock = clock

    async def serve(self, call: Call, table: RouteTable, reply: ResponseWriter) -> None:
        """Answers one call. Lists that cannot be had are left out, unless nothing is left then."""
        dialect, name = DIALECTS[call.dialect], model_in_path(call.path)
        if name is not None:
            if name not in table.exact_names(call.dialect) and table.pattern_of(name) is None:
                return await refuse(call, unknown_model(table, name), reply)
            answer = dialect.model_entry(name)
        else:
            method, path = call.method, call.path
            found, missing = await self._entries(call, table)
            call.method, call.path = method, path
            if not found and missing:
                return await refuse(call, _unknown(missing), reply)
            answer = dialect.model_list(list(found.values()))
        call.sent_status = 200
        headers = [("Content-Type", "application/json"), *header_rules.ours(call, None)]
        return await reply.send(200, "", headers, json.dumps(answer).encode())

    async def _entries(self, call: Call, table: RouteTable) -> tuple[dict[str, _Entry], set[str]]:
        """Returns the entries by name, and the upstreams that did not return a list."""
        own = [model for model in table.exact_names(call.dialect) if may_use(call, table, model)]
        found = {model: DIALECTS[call.dialect].model_entry(model) for model in own}
        missing: set[str] = set()
        for upstream in table.upstreams_of(None, call.dialect):
            listed = await self._list_of(call, table, upstream)
            if listed is None:
                missing.add(upstream)
            for entry in listed or ():
                model = entry["id"]
                if model not in found and _is_routed(call, table, model, upstream):
                    found[model] = entry
        return found, missing

    async def _list_of(self, call: Call, table: RouteTable, upstream: str) -> list[_Entry] | None:
        """Requests an upstream's list. Returns None if that fails."""
        dialect, route = DIALECTS[call.dialect], table.upstream_route(upstream)
        assert route is not None  # noqa: S101  # every upstream has one
        call.route, call.method, call.path, call.query = route, "GET", dialect.MODELS_PATH, dialect.WHOLE_LIST
        call.deadline_at = deadline_at(self._clock.now(), min(route.timeouts.total, _MOST_S), None)
        header_rules.ask_for_plain(call)
        served = await self._run(call, route)
        if isinstance(served, Exhausted):
            return None
        with ResponseScope(served, self._clock):
            answer = object_in(served.opened) if 200 <= served.opened.status < 300 else None
        entries = answer.get("data") if answer is not None else None
        if not isinstance(entries, list):
            return None
        return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _is_routed(call: Call, table: RouteTable, model: str, upstream: str) -> bool:
    """Returns whether calls for this model reach this upstream under this name, and may be made with the call's key."""
    pattern = table.pattern_of(model)
    return (
        pattern is not None
        and upstream in table.upstreams_of(pattern, call.dialect)
        and not table.is_exact(model)
        and may_use(call, table, model)
    )


def _unknown(upstreams: set[str]) -> Refusal:
    names = ", ".join(sorted(upstreams))
    return Refusal(502, "models_unknown", f"the config has only patterns, and {names} did not list its models", by=None)
