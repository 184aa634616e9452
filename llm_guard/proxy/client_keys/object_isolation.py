"""`isolate_objects`: a client key can use only the objects that it has created; others do not exist for it.

Checks requests, and records the objects in responses. `resilience.client_keys.provider_objects` knows where ids occur,
`proxy.client_keys.object_ownership` keeps the index.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Exhausted, Refusal
from llm_guard.proxy.call import Call, Delivered
from llm_guard.proxy.client_keys.object_ownership import OwnedObjects
from llm_guard.proxy.client_keys.response_tap import EventReader, ResponseTap
from llm_guard.proxy.headers import ask_for_plain
from llm_guard.proxy.request_body.content_encoding import inflate, is_coded
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.request_body.model_field import BodyKind, kind_of, may_be_json
from llm_guard.proxy.request_body.reader import is_upload
from llm_guard.proxy.response.json_rewrite import object_in, unreadable, with_object
from llm_guard.resilience.client_keys.object_owners import ObjectKey
from llm_guard.resilience.client_keys.provider_objects import (
    OVERLAP_BYTES,
    RESPONSES,
    ObjectPath,
    Pairs,
    filtered,
    fold,
    known_by,
    known_by_event,
    may_refer,
    place_of,
    references,
    references_in_query,
)
from llm_guard.resilience.client_keys.scope import is_inference
from llm_guard.routing.route_table import Route

MOST_BYTES = 8 << 20
"""A body that may refer to objects is read up to this size; a larger one is refused."""
_AT_ONCE_BYTES = 1 << 16
"""A larger body is parsed in a thread: 8 MiB can take a second."""
_MOST_PARTS = 100_000
"""Most lists and objects in a body: each takes some hundred bytes of memory once parsed."""
_MOST_PAGES = 20
"""Most pages of a list that are searched for an entry of the caller's own."""
_PAGE = "100"
_SHARED_TYPES = frozenset[str]().union(*(dialect.SHARED_OBJECT_TYPES for dialect in DIALECTS.values()))
"""All dialects' together: a gateway behind may pass such an object on to a provider of another dialect."""

RunAttempts = Callable[[Call, Route], Awaitable[Delivered | Exhausted]]

_TOO_LARGE = Refusal(
    413, "body_too_large", f"a body that refers to objects must not be larger than {MOST_BYTES} bytes", by="scope"
)
_UNREADABLE = Refusal(
    400, "invalid_body", "the ids in this body cannot be checked: send JSON, or a form without ids", by="scope"
)
_TOO_LONG = Refusal(
    502, "list_too_long", f"the first {_MOST_PAGES} pages of the upstream's list have no entry of this API key, and "
    "there are more: request objects by their ids", by=None,
)  # fmt: skip


class ObjectIsolation:
    """Isolates the objects of client keys from each other, for all calls of one gateway."""

    def __init__(self, objects: OwnedObjects, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self.is_on = False

    def applies_to(self, call: Call) -> bool:
        return self.is_on and call.client_key is not None

    def needs_whole_body(self, call: Call) -> bool:
        return self.applies_to(call) and not is_upload(call.path)

    # requests

    async def check(self, call: Call) -> Refusal | None:
        """Refuses a call that refers to an object that its key has not created, with the error of a provider that has
        no such object."""
        place = _place(call)
        if place is None and not is_inference(call.method, call.path):
            return _missing(f"{call.path} is not available to this API key")
        if place is not None:
            ask_for_plain(call)
            if place.object_id and not self._is_own(call, place.object_id):
                return _missing(f"no such object: {place.object_id!r}")
        is_list = place is not None and place.action == "list"
        refusal = self._check_all(call, references_in_query(call.query, is_list=is_list))
        if refusal is not None or is_upload(call.path):
            return refusal
        try:
            return await self._check_body(call)
        except BadRequest as bad:
            return Refusal(bad.status, bad.code, bad.message, by="request")

    async def _check_body(self, call: Call) -> Refusal | None:
        """Refuses a body that refers to objects of others, or cannot be checked. Raises BadRequest."""
        kind = kind_of(call.content_type)
        is_in_file = not isinstance(call.body, bytes) and not is_coded(call.content_encoding)
        if is_in_file and not await self._may_refer(call, kind):
            return None
        body = await _plain(call)
        if body is None:
            return _TOO_LARGE
        if b"\0" in body[:4] and kind != "form":
            return _UNREADABLE  # JSON in UTF-16, which some servers read
        if not may_refer(kind, call.path, body):
            return None
        if kind == "form" or (kind == "other" and not may_be_json(body)):
            return _UNREADABLE
        if body.count(b"{") + body.count(b"[") > _MOST_PARTS:
            return _TOO_LARGE
        try:
            found = await asyncio.to_thread(_ids_in, body) if len(body) > _AT_ONCE_BYTES else _ids_in(body)
        except (ValueError, RecursionError):
            return _UNREADABLE
        return self._check_all(call, found)

    async def _may_refer(self, call: Call, kind: BodyKind) -> bool:
        """Returns whether a body that is not in memory may refer to objects."""
        assert not isinstance(call.body, bytes)  # noqa: S101  # checked by the caller
        before = b""
        for block in call.body.blocks():
            if not isinstance(block, bytes):
                await block
                continue
            if may_refer(kind, call.path, before + block):
                return True
            before = block[-OVERLAP_BYTES:]
            await self._clock.sleep(0)
        return False

    def _check_all(self, call: Call, ids: Iterable[str]) -> Refusal | None:
        for object_id in ids:
            if not self._is_own(call, object_id):
                return _missing(f"no such object: {object_id!r}")
        return None

    def _is_own(self, call: Call, object_id: str) -> bool:
        """Returns whether the key owns the id at any upstream that the call may go to. False if at any of them another
        key has the same id."""
        owner, owners = call.client_key or "", self._objects.owners
        keys = [ObjectKey(upstream, object_id) for upstream in _upstreams(call)]
        is_others = any(owners.has_other(key, owner) for key in keys)
        return not is_others and any(owners.is_own(key, owner) for key in keys)

    # responses

    async def screen(self, call: Call, served: Delivered, run: RunAttempts) -> Delivered | Exhausted:
        """Returns the response as the call's key may see it, and records the objects in it. `run` fetches more of a
        list."""
        place, opened = _place(call), served.opened
        if place is None or not 200 <= opened.status < 300:
            return served
        if place.action == "list":
            return await self._screen_list(call, served, run)
        note = partial(self._note, call, served.attempt.target.deployment.upstream.name)
        if opened.view is not None:
            reader = EventReader(lambda event: note(known_by_event(event)))
            reader.feed(opened.buffered)
            opened.exchange = opened.exchange and ResponseTap(opened.exchange, reader)
        elif (answer := object_in(opened)) is not None:
            note(known_by(place, answer))
        return served

    def _note(self, call: Call, upstream: str, known: Iterable[tuple[str, bool]]) -> None:
        for object_id, is_answer in known:
            self._objects.note(upstream, object_id, call.client_key or "", is_answer=is_answer)

    async def _screen_list(self, call: Call, served: Delivered, run: RunAttempts) -> Delivered | Exhausted:
        """Pages through the provider's list to the first page with an entry of the caller's own: SDKs continue from the
        last entry of a page, and stop at an empty page."""
        asked, size, pages = call.query, None, 0
        while True:
            answer = object_in(served.opened)
            entries = answer.get("data") if answer is not None else None
            if answer is None or not isinstance(entries, list):
                return unreadable(served, self._clock)
            pages, size = pages + 1, len(entries) if size is None else size
            kept = [entry for entry in entries if self._may_see(call, entry)]
            query = _next_query(call, asked, entries) if answer.get("has_more") is True else None
            if not kept and query is not None and pages == _MOST_PAGES:
                if self._objects.owners.has_objects(call.client_key or ""):
                    # An empty list would say that the key has none: others could hide its objects behind their own.
                    return Exhausted(None, _TOO_LONG, "the upstream's list was too long to be filtered")
                query = None
            if kept or query is None:
                return self._shown(call, served, answer, kept, size)
            result = await _ask_again(call, query, run)
            if not isinstance(result, Delivered) or not 200 <= result.opened.status < 300:
                return result
            served = result

    def _shown(
        self, call: Call, served: Delivered, answer: dict[str, Any], kept: list[dict[str, Any]], size: int
    ) -> Delivered:
        """Returns a page of the caller's own entries, no longer than the provider's first page."""
        upstream = served.attempt.target.deployment.upstream.name
        for entry in kept[:size]:
            self._note(call, upstream, known_by(ObjectPath("", "use"), entry))
        if "has_more" in answer:
            answer["has_more"] = len(kept) > size or (answer["has_more"] is True and bool(kept))
        return with_object(served, filtered(answer, kept[:size]))

    def _may_see(self, call: Call, entry: object) -> bool:
        object_id = entry.get("id") if isinstance(entry, dict) else None
        return isinstance(object_id, str) and self._is_own(call, object_id)


def _place(call: Call) -> ObjectPath | None:
    if call.path != RESPONSES and is_inference(call.method, call.path):
        return None
    return place_of(call.method, call.path)


def _upstreams(call: Call) -> set[str]:
    assert call.route is not None  # noqa: S101  # calls without one are refused earlier
    return {target.deployment.upstream.name for target in call.route.targets}


def _next_query(call: Call, asked: str, entries: list[Any]) -> str | None:
    """Returns the query for the page after this one; None if the list is read backwards."""
    query = dict(parse_qsl(asked, keep_blank_values=True))
    last = entries[-1].get("id") if entries and isinstance(entries[-1], dict) else None
    if not isinstance(last, str) or "before" in query or "before_id" in query:
        return None
    return urlencode({**query, DIALECTS[call.dialect].PAGE_CURSOR: last, "limit": _PAGE})


async def _ask_again(call: Call, query: str, run: RunAttempts) -> Delivered | Exhausted:
    """Executes the same call with another query."""
    assert call.route is not None  # noqa: S101  # a call with a response has one
    asked, call.query = call.query, query
    try:
        return await run(call, call.route)
    finally:
        call.query = asked


async def _plain(call: Call) -> bytes | None:
    """Returns the whole body, decoded; None if it is too large. Raises BadRequest."""
    if isinstance(call.body, bytes):
        body = call.body
    else:
        if call.body.size is None or call.body.size > MOST_BYTES:
            return None
        pieces = []
        for block in call.body.blocks():
            if isinstance(block, bytes):
                pieces.append(block)
            else:
                await block
        body = b"".join(pieces)
    return inflate(body, call.content_encoding, MOST_BYTES)


def _ids_in(body: bytes) -> list[str]:
    """Returns the ids in a body. Raises ValueError and RecursionError."""
    value = json.loads(body, object_pairs_hook=_pairs, parse_int=_short_int, parse_float=str)
    return list(references(value, _SHARED_TYPES))


def _pairs(pairs: list[tuple[str, Any]]) -> Pairs:
    return Pairs(tuple((fold(name), value) for name, value in pairs))


def _short_int(digits: str) -> int | str:
    """Returns an integer of an ordinary size, and others as text: a number of thousands of digits is no id
    (CVE-2020-10735)."""
    return int(digits) if len(digits) < 20 else digits


def _missing(message: str) -> Refusal:
    return Refusal(404, "not_found", message, by="scope")
