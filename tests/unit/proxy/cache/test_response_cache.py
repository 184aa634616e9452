"""Stale responses: how old one may be that is served after a failure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.config import parse_config
from llm_guard.proxy.cache.response_cache import ResponseCache, may_serve_stale_later
from llm_guard.proxy.call import Call
from llm_guard.routing.route_table import compile_routes
from llm_guard.storage.cache.response_store import CachedResponse, MemoryCache
from tests.fakes.clock import ManualClock

ANSWER = CachedResponse(
    route="gpt", status=200, reason="OK", headers=(), body=b"{}", is_stream=False, deployment="a/gpt"
)


def choosy_call(**rules: Any) -> Call:
    """Returns a call whose client accepts no stale response while its upstream works."""
    upstreams = {"a": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1"}}
    models = {"gpt": {"deployments": [{"upstream": "a"}], "cache": rules}}
    config = parse_config(json.dumps({"upstreams": upstreams, "models": models}), "test.yaml", {})
    body, headers = b'{"model":"gpt","messages":[]}', (("cache-control", "max-age=1"),)
    route = compile_routes(config, 0.0).find("gpt")
    return Call("lg-1", "openai", "POST", "/v1/chat/completions", "", headers, 0.0, body, model="gpt", route=route)


@pytest.mark.parametrize(("age_s", "is_served"), [(25.0, True), (40.0, False)])
async def test_response_that_is_still_stored_is_served_after_a_failure_only_within_stale_if_error(
    age_s: float, is_served: bool
) -> None:
    clock = ManualClock()
    cache = ResponseCache(MemoryCache(clock, 1 << 20), clock)
    call = choosy_call(ttl="10s", stale_if_error="20s", stale_while_revalidate="1h")
    assert call.route is not None
    lookup = await cache.look_up(call, call.route)
    assert lookup is not None
    await cache.store.put(lookup.key, ANSWER, 3610.0)
    clock.advance(age_s)
    lookup = await cache.look_up(call, call.route)
    assert lookup is not None and lookup.found is not None  # noqa: PT018
    assert lookup.result == "miss"
    assert may_serve_stale_later(lookup) is is_served
    assert (await cache.find_stale(call) is not None) is is_served
