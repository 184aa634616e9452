"""The response cache of one gateway: which calls may use it, which response is theirs, and which responses are stored.

`storage.cache.response_store` keeps the responses, `resilience.caching.key` computes their keys, and
`resilience.caching.freshness` decides how long they may be served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from llm_guard.clock import Clock
from llm_guard.outcome import Disposition
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.cache.cached_response import replay
from llm_guard.proxy.call import Call
from llm_guard.proxy.coalescing.single_flight import SingleFlight
from llm_guard.proxy.gc_pause import uncollected
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.model_field import kind_of
from llm_guard.proxy.response.shared_response import shareable_headers
from llm_guard.resilience.caching.cacheability import ANSWERS, forbids_keeping, is_filtered, may_be_asked_of_cache
from llm_guard.resilience.caching.freshness import (
    CacheControl,
    CacheSettings,
    Freshness,
    judge,
    lasts_s,
    may_serve_stale,
    parse_cache_control,
)
from llm_guard.resilience.caching.key import CacheKeyFields, canonical, key_of, media_type, relevant_headers
from llm_guard.routing.route_table import Route
from llm_guard.storage.cache.response_store import CachedResponse, CacheHit, CacheSnapshot, ResponseStore

_STAND_IN_S = 60.0


class _Asks(msgspec.Struct):
    """The fields that are read from a request."""

    store: Any = None
    background: Any = None
    container: Any = None
    temperature: Any = None
    seed: Any = None


_NEVER_EMPTY = ("choices", "data", "results")
"""Members with one entry for each requested result. A Messages or Responses turn may legitimately be empty."""

_asks = msgspec.json.Decoder(_Asks).decode
_answer = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


ServedAs = Literal["hit", "stale", "stale_if_error"]
"""How a cached response was served."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of a cache lookup."""

    key: bytes
    rules: CacheSettings
    cache_control: CacheControl
    purges: int
    """Number of purges before the lookup: a response requested before a purge is not stored after it."""
    found: CacheHit | None = None
    result: Freshness = "miss"


class ResponseCache:
    """Looks up, serves and stores responses."""

    def __init__(self, store: ResponseStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._purges = 0

    async def look_up(self, call: Call, route: Route) -> Lookup | None:
        """Returns None if the call may neither be served from the cache nor have its response stored."""
        rules = route.lasting.cache
        body = None if rules is None else _plain_body(call)
        if rules is None or body is None:
            return None
        cache_control = parse_cache_control(_cache_control(call))
        key = _key(call, body, route, rules) if cache_control.is_stored else None
        if key is None:
            return None
        found = None if cache_control.no_cache else await self.store.get(key)
        age: Freshness = "miss" if found is None else judge(found.age_s, rules, cache_control)
        disposition = call.disposition = call.disposition or Disposition()
        disposition.cache_key = b"" if cache_control.no_cache else key
        return Lookup(key, rules, cache_control, self._purges, found, age)

    async def give(self, call: Call, found: CacheHit, result: ServedAs, reply: ResponseWriter) -> None:
        """Sends the client a response that was found, and records it as `result`."""
        disposition = call.disposition = call.disposition or Disposition()
        disposition.cache, disposition.age_s = result, found.age_s
        await replay(call, found.answer, reply, self._clock)

    async def find_stale(self, call: Call) -> CacheHit | None:
        """Returns the stale response that the route allows after a failure, if there is one."""
        rules = call.route.lasting.cache if call.route is not None else None
        if rules is None or call.disposition is None or not call.disposition.cache_key:
            return None
        found = await self.store.get(call.disposition.cache_key)
        return found if found is not None and may_serve_stale(found.age_s, rules) else None

    async def serve_stale(self, call: Call, found: CacheHit, reply: ResponseWriter) -> None:
        """Sends the client a stale response. The call's outcome stays a failure."""
        await self.give(call, found, "stale_if_error", reply)

    async def keep(self, lookup: Lookup, flight: SingleFlight) -> None:
        """Stores the response of a flight, if it may be stored and the cache has not been purged since the lookup."""
        answer = _answer_of(flight, lookup.rules)
        if answer is not None and lookup.purges == self._purges:
            await self.store.put(lookup.key, answer, _lasts_s(flight.call, lookup.rules))

    async def purge(self, route: str | None) -> int | None:
        """Deletes the responses of a route, or all. Returns how many; None: the store does not say. Responses to
        requests under way will not be stored."""
        self._purges += 1
        return await self.store.purge(route)

    def look(self, _now: float) -> None:
        """Deletes expired responses. To be called each second."""
        self.store.sweep()

    def snapshot(self) -> CacheSnapshot:
        return self.store.snapshot()


def may_serve_stale_later(lookup: Lookup) -> bool:
    """Returns whether the response that was found may be served if the call fails."""
    return lookup.found is not None and may_serve_stale(lookup.found.age_s, lookup.rules)


# requests


def _plain_body(call: Call) -> bytes | None:
    """Returns the body of a call that the cache may serve; None: this call does not use the cache."""
    if call.method != "POST" or call.path not in ANSWERS or call.is_sticky or call.is_upgrade:
        return None
    if not isinstance(call.body, bytes) or call.content_encoding or kind_of(call.content_type) == "form":
        return None
    return call.body


def _cache_control(call: Call) -> str:
    return ",".join(value for name, value in call.headers if name.lower() == "cache-control")


def _key(call: Call, request_body: bytes, route: Route, rules: CacheSettings) -> bytes | None:
    """Returns the cache key; None: the request cannot be read, or does more than produce a response."""
    try:
        asks = msgspec.structs.asdict(uncollected(_asks, request_body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    body = canonical(request_body) if may_be_asked_of_cache(call.path, asks, rules.requests) else None
    if body is None:
        return None
    return key_of(
        CacheKeyFields(
            dialect=call.dialect,
            method=call.method,
            path=call.path,
            query=call.query,
            upstream=call.upstream_name or "",
            route=route.alias,
            targets=_targets(route),
            model=call.model or "",
            is_stream=call.is_stream,
            media_type=media_type(call.content_type),
            headers=relevant_headers(header_rules.of_request(call.headers)),
            body=body,
            caller=() if rules.shared else _caller(call),
        )
    )


def _targets(route: Route) -> tuple[str, ...]:
    own = (target for target in route.targets if target.alias == route.alias)
    return tuple(f"{target.deployment.upstream.base_url} {target.model or ''}" for target in own)


def _caller(call: Call) -> tuple[str, ...]:
    """Returns what identifies the caller: the client key, else the keys that it sent; the account; and its cookies, by
    which a self-hosted server may tell users apart. All callers without any of these are one caller."""
    cookies = (value for name, value in call.headers if name.lower() == "cookie")
    return (call.client_key or "", call.key_digest, call.account_digest, *cookies)


# responses


def _answer_of(flight: SingleFlight, rules: CacheSettings) -> CachedResponse | None:
    """Returns the response of a flight if it is a complete and valid success, else None."""
    call, tape = flight.call, flight.tape
    if flight.gave_up is not None or call.failure is not None or not tape.is_whole:
        return None
    if tape.status != 200 or len(tape.body) > rules.max_answer:
        return None
    names = header_rules.lower_names(tape.headers)
    is_stream = names.get("content-type", "").lower().startswith("text/event-stream")
    is_coded = names.get("content-encoding", "identity") not in ("", "identity")
    if is_stream != call.is_stream or is_coded or forbids_keeping(names.get("cache-control", "")):
        return None
    body = bytes(tape.body)
    if is_filtered(body) or not (flight.has_said_all if is_stream else _is_answer(body, ANSWERS[call.path])):
        return None
    return CachedResponse(
        route=call.route.alias if call.route is not None else "",
        status=tape.status,
        reason=tape.reason,
        headers=shareable_headers(tape.headers),
        body=body,
        is_stream=is_stream,
        deployment=names.get("x-llm-guard-deployment", ""),
    )


def _lasts_s(call: Call, rules: CacheSettings) -> float:
    """Returns how long a response may be used at all. That of a stand-in of another dialect must not outlive the
    outage."""
    served = next((attempt for attempt in reversed(call.attempts) if attempt.failure is None), None)
    if served is None or served.translation is None or not served.translation.is_translated:
        return lasts_s(rules)
    return min(lasts_s(rules), _STAND_IN_S) if served.is_fallback else lasts_s(rules)


def _is_answer(body: bytes, expected: str) -> bool:
    """Returns whether the body is a JSON object with the expected member and no error."""
    try:
        fields = uncollected(_answer, body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    answer = fields.get(expected)
    is_empty = expected in _NEVER_EMPTY and answer is not None and bytes(answer)[1:].lstrip() == b"]"
    return _is_nothing(fields.get("error")) and not (_is_nothing(answer) or is_empty)


def _is_nothing(field: msgspec.Raw | None) -> bool:
    return field is None or bytes(field) == b"null"
