"""A request body as it arrives: limited in size by path and caller, scanned as it passes, kept in memory or in a file,
and received as a whole or sent on meanwhile.

Owns how much is scanned in one go, which calls begin before their body is complete, and the end of such a call when its
body fails. `proxy.request_body.model_field` reads the fields, `proxy.request_body.body_buffer` has the bytes,
`proxy.request_body.spool` limits the disk space of all bodies, `proxy.attempts.upstream_attempt` sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Self

from msgspec.json import encode
from msgspec.structs import replace

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.body_buffer import MEMORY_BYTES, BodyStore, file_of
from llm_guard.proxy.request_body.content_encoding import Inflater, is_coded
from llm_guard.proxy.request_body.fields import NOTHING, BadRequest, BodyFields
from llm_guard.proxy.request_body.interfaces import Block, FileBody
from llm_guard.proxy.request_body.json_scanner import JsonScanner
from llm_guard.proxy.request_body.model_field import form_fields, inspect, kind_of, may_be_json
from llm_guard.proxy.request_body.multipart_scanner import MultipartScanner, boundary
from llm_guard.proxy.request_body.spool import Spool
from llm_guard.proxy.request_body.spooled_body import CooperativeYield, Patch, PatchedBody, SpooledBody
from llm_guard.proxy.response.fallback_response import may_be_kept
from llm_guard.resilience.routing.candidates import deadline_at
from llm_guard.resilience.routing.client_hints import is_local

_ROOTS = ("/v1/files", "/v1/uploads")
"""Paths at which, and below which, the request body is a file."""
_UPLOADS = tuple(f"{root}/" for root in _ROOTS)


def is_upload(path: str) -> bool:
    """Returns whether the body of a call to this path is a file, which names no model."""
    return path.startswith(_ROOTS) and f"{path}/".startswith(_UPLOADS)


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """A size limit, and the config key that sets it."""

    max_bytes: int
    key: str = "server.max_body"

    def check(self, size: int) -> None:
        """Raises BadRequest (413) if a body of `size` bytes exceeds it."""
        if size > self.max_bytes:
            message = f"the body is larger than {self.max_bytes} bytes ({self.key})"
            raise BadRequest(413, "body_too_large", message)


class BodyLimits:
    """The limits of one config."""

    def __init__(self, config: Config) -> None:
        server = config.server
        self._usual = BodyLimit(server.max_body)
        self._upload = BodyLimit(max(server.max_body, server.max_upload), "server.max_upload")

    def of(self, call: Call, reply: ResponseWriter) -> BodyLimit:
        """Returns the limit for a call. Files may be larger than other bodies, except from unknown callers, because
        they take disk space."""
        if not is_upload(call.path):
            return self._usual
        is_known = call.client_key is not None or is_local(reply.peer, reply.request.version, reply.request.names)
        return self._upload if is_known else self._usual


_AT_ONCE_BYTES = 1 << 17
"""A larger body is scanned piece by piece: the costliest JSON takes 18 ms a MiB."""
_PIECE_BYTES = 1 << 15


async def receive(
    read: Callable[[], Awaitable[bytes]],
    content_type: str,
    content_encoding: str,
    limit: BodyLimit,
    spool: Spool,
    clock: Clock,
) -> tuple[bytes | SpooledBody, BodyFields]:
    """Receives a body from `read`, which returns b"" at its end. Returns the body and its fields.

    The body is bytes up to `MEMORY_BYTES`, else a SpooledBody, which the caller closes. Raises BadRequest, and what
    `read` raises; after an error or a cancellation there is nothing to close. For a complete body of at most 128 KiB
    without a content encoding, `inspect` gives the same fields.
    """
    body = await begin(read, content_type, content_encoding, None, limit, spool, clock)
    if isinstance(body, bytes):
        return body, inspect(body, content_type, "", limit.max_bytes)
    return await body.receive_whole()


async def begin(
    read: Callable[[], Awaitable[bytes]],
    content_type: str,
    content_encoding: str,
    announced_bytes: int | None,
    limit: BodyLimit,
    spool: Spool,
    clock: Clock,
) -> bytes | ArrivingBody:
    """Receives the first 128 KiB of a body, or all of it. Returns bytes for a complete body that `inspect` may read in
    one go.

    `announced_bytes` is the Content-Length, if there is one. Raises BadRequest, and what `read` raises; after an error
    or a cancellation there is nothing to close.
    """
    pieces: list[bytes] = []
    size = 0
    while piece := await read():
        pieces.append(piece)
        size += len(piece)
        limit.check(size)
        if size > _AT_ONCE_BYTES:
            break
    beginning = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if not piece and not (beginning and is_coded(content_encoding)):
        return beginning
    look = _Look(beginning, content_type, content_encoding, limit.max_bytes)
    body = ArrivingBody(read, look, content_encoding, announced_bytes, limit, spool, clock)
    try:
        await body.take(beginning)
        if not piece:
            await body.take(b"")
    except BaseException:
        body.close()
        raise
    return body


class ArrivingBody:
    """A body after its first part: either `receive_whole`, or `follow` and `receive_rest`, so that attempts can send it
    while it arrives. Implements `proxy.request_body.interfaces.BufferedBody`.

    Each attempt has an offset of its own and begins with the first byte.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        look: _Look,
        content_encoding: str,
        announced_bytes: int | None,
        limit: BodyLimit,
        spool: Spool,
        clock: Clock,
    ) -> None:
        self._read = read
        self._look = look
        self._content_encoding = content_encoding
        self._announced_bytes = announced_bytes
        self._limit = limit
        self._spool = spool
        self._clock = clock
        self._turns = CooperativeYield(clock)
        self._is_over = False
        self._store = BodyStore(spool)
        self._is_followed = False
        self._models: int | None = None
        """The most model fields that the body may have once attempts send it; None: any number."""

    async def receive_whole(self) -> tuple[bytes | SpooledBody, BodyFields]:
        """Receives all of it, and returns the same as `receive`. Raises BadRequest, and what `read` raises."""
        try:
            asked = await self.receive_rest()
        except BaseException:
            self.close()
            raise
        content, inflated_bytes = self._store.content(), self._look.inflated_bytes
        if inflated_bytes:
            asked = replace(asked, inflated_bytes=inflated_bytes)
        if isinstance(content, bytes) and inflated_bytes <= _AT_ONCE_BYTES:
            return content, asked
        # A body that inflates to more than 128 KiB stays a SpooledBody: renaming its model inflates it again.
        stored = SpooledBody(
            file_of(content), self._store.size, self._content_encoding, self._look.patches, self._spool, self._clock
        )
        return stored, asked

    # while it arrives

    def asks_so_far(self) -> BodyFields | None:
        """Returns the fields that have arrived so far. None: the body is complete, or cannot be read in part. Raises
        BadRequest."""
        if self._is_over or is_coded(self._content_encoding):
            return None
        return self._look.asks_so_far()

    @property
    def is_form(self) -> bool:
        """True for a form: its fields may still arrive."""
        return self._look.is_form

    def follow(self, *, is_routed_by_model: bool) -> None:
        """Allows attempts to send the body from now on. `is_routed_by_model`: a model field that arrives later is
        refused, because the route was chosen without it."""
        self._is_followed = True
        self._models = self._look.models if is_routed_by_model else None

    async def receive_rest(self) -> BodyFields:
        """Receives the rest of the body, and returns its fields. Raises BadRequest, and what `read` raises."""
        while not self._is_over:
            await self.take(await self._read())
        asked = self._look.end()
        self._store.complete()
        return asked

    async def take(self, piece: bytes) -> None:
        """Adds the next piece, b"" at the end. Scans it before any of it can be sent, so that a body that is refused
        reaches no provider completely. Raises BadRequest."""
        self._is_over = not piece
        self._limit.check(self._store.size + len(piece))
        for at in range(0, len(piece), _PIECE_BYTES):
            part = piece[at : at + _PIECE_BYTES]
            for _ in self._look.feed(part):
                await self._turns.take()
            if self._is_followed:
                self._look.check(self._models)
            self._store.add(part)

    @property
    def size(self) -> int | None:
        """Total size in bytes. None while the body arrives, if its length was not announced."""
        return self._store.size if self._store.is_complete else self._announced_bytes

    def blocks(self) -> Iterator[Block]:
        """Yields the body from its beginning: see `BodyStore.blocks`."""
        return self._store.blocks()

    async def wait_complete(self) -> None:
        """Returns once the body is complete or closed."""
        await self._store.wait_complete()

    async def renamed(self, model: str) -> FileBody:
        """Returns the body with `model` as its model and every other byte unchanged. Raises BadRequest."""
        return PatchedBody(self, self._look.patches(model))

    def close(self) -> None:
        """Releases the body. Idempotent."""
        self._store.close()


class _Look:
    """Scans a body as it passes, inflated if need be, as far as it may contain the model."""

    def __init__(self, begin: bytes, content_type: str, content_encoding: str, max_bytes: int) -> None:
        kind = kind_of(content_type)
        self._is_sure = kind != "other"
        self._scan: JsonScanner | MultipartScanner | None = None
        self._inflater: Inflater | None = None
        if not self._is_sure and not may_be_json(begin):
            return
        if is_coded(content_encoding):
            self._inflater = Inflater(content_encoding, max_bytes)
        self._scan = MultipartScanner(boundary(content_type)) if kind == "form" else JsonScanner()

    @property
    def inflated_bytes(self) -> int:
        """Size of the inflated body in bytes; 0 if it is not inflated."""
        return self._inflater.size if self._inflater is not None else 0

    def feed(self, piece: bytes) -> Iterator[None]:
        """Scans the next piece, of 32 KiB at most. Yields after each short step."""
        for block in (piece,) if self._inflater is None else self._inflater.feed(piece):
            if self._scan is None:
                return
            try:
                self._scan.feed(block)
            except BadRequest as bad:
                self._doubt(bad)
            yield

    def end(self) -> BodyFields:
        if self._scan is not None and self._inflater is not None:
            self._inflater.end()
        try:
            if isinstance(self._scan, MultipartScanner):
                return form_fields(self._scan)
            return self._scan.end() if self._scan is not None else NOTHING
        except BadRequest as bad:
            self._doubt(bad)
            return NOTHING

    def asks_so_far(self) -> BodyFields | None:
        """Returns the fields so far; None if the body can only be read as a whole. Raises BadRequest."""
        if isinstance(self._scan, MultipartScanner):
            return form_fields(self._scan)
        return NOTHING if self._scan is None else None

    @property
    def is_form(self) -> bool:
        return isinstance(self._scan, MultipartScanner)

    @property
    def models(self) -> int:
        """Number of model fields that the form has so far."""
        return len(self._scan.spans) if isinstance(self._scan, MultipartScanner) else 0

    def check(self, most_models: int | None) -> None:
        """Raises BadRequest for a form that cannot be read, or has more than `most_models` model fields."""
        if isinstance(self._scan, MultipartScanner):
            form_fields(self._scan)
            if most_models is not None and len(self._scan.spans) > most_models:
                message = "`model` must come before the file, and only once, in a form of this size"
                raise BadRequest(400, "invalid_model", message, "model")

    def patches(self, model: str) -> list[Patch]:
        """Returns the patches that put another model into the body. Raises BadRequest."""
        if isinstance(self._scan, MultipartScanner):
            return [(start, end, model.encode()) for start, end in self._scan.spans]
        assert self._scan is not None  # noqa: S101  # a model was found
        return [(*self._scan.span_of_model(), encode(model))]

    def _doubt(self, bad: BadRequest) -> None:
        if self._is_sure or bad.code != "invalid_json":
            raise bad
        self._scan = self._inflater = None  # it only began like JSON


def check_announced(reply: ResponseWriter, limit: BodyLimit, spool: Spool) -> None:
    """Checks the size of the body as far as it is known, and what the head announces. Sends the 100 (Continue) that a
    client may wait for before it sends the body. Raises BadRequest."""
    request = reply.request
    limit.check(max(request.content_length, request.received_bytes))
    if request.content_length > MEMORY_BYTES:
        spool.check(request.content_length)
    if "expect" not in request.names or request.version == "1.0":  # HTTP/1.0 has none (RFC 9110, section 10.1.1)
        return
    if request.names["expect"].lower() != "100-continue":
        reply.closes_connection = True  # unknown whether the body follows
        raise BadRequest(417, "expectation_failed", "the only supported Expect value is 100-continue")
    reply.send_continue()


async def receive_call(call: Call, request: Request, limit: BodyLimit, spool: Spool, clock: Clock) -> BodyFields:
    """Receives the body of a call, and returns the fields read from it.

    Leaves an ArrivingBody in `call.body` if the rest of the body cannot change the route. Raises BadRequest.
    """
    announced_bytes = request.content_length if "content-length" in request.names else None
    body = await begin(
        request.read, call.content_type, call.content_encoding, announced_bytes, limit, spool, clock
    )  # fmt: skip
    if isinstance(body, bytes):
        call.body = body
        return inspect(body, call.content_type, "", limit.max_bytes)
    asked = None if request.has_arrived else body.asks_so_far()
    if asked is not None and _is_route_known(call, body, asked):
        call.body = body
        return asked
    call.body, asked = await body.receive_whole()
    return asked


def _is_route_known(call: Call, body: ArrivingBody, asked: BodyFields) -> bool:
    """Returns whether no field that is still to arrive can change the route."""
    if call.upstream_name is not None and call.scope is None:
        return True
    return asked.model is not None or is_upload(call.path) or not body.is_form


def needs_whole_body(call: Call, reply: ResponseWriter) -> bool:
    """Returns whether the call needs its complete body first: the gateway answers it itself, it may be translated, or
    its route or its client wants hedging, degraded mode, a deferred call or a dead letter."""
    route = call.route
    if route is None or call.translation is not None or (route.hedging is not None and call.is_repeatable):
        return True
    return route.lasting.degraded is not None or may_be_kept(call, reply)


class BodyReception:
    """`async with BodyReception(...)`: receives the rest of a body while the calling task executes the call.

    If the body fails (its client is too slow, it is too large, it cannot be read), the calling task is cancelled
    without blaming a provider, and the body's error is raised from the `async with` block.
    """

    def __init__(self, call: Call, body: ArrivingBody, note: Callable[[BodyFields], None], clock: Clock) -> None:
        """`note` is called with the fields of the complete body."""
        self._call = call
        self._body = body
        self._note = note
        self._clock = clock
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine runs in one
        self._task = task
        self._cancelling = task.cancelling()
        self._call.start_time(inf, inf)  # an upload's time is limited by its connection alone
        self._receiving = asyncio.get_running_loop().create_task(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._receiving.cancel()
        is_ours = self._error is not None and self._task.uncancel() <= self._cancelling
        try:
            if self._error is not None and is_ours and isinstance(error, asyncio.CancelledError):
                raise self._error from None
        finally:
            self._error = None  # its traceback refers to this object

    async def _receive(self) -> None:
        try:
            self._complete(await self._body.receive_rest())
        except Exception as error:  # noqa: BLE001  # any error must end the call, which waits for the rest
            self._error = error
            self._task.cancel()

    def _complete(self, asked: BodyFields) -> None:
        """Starts the call's own time limits."""
        call = self._call
        assert call.route is not None  # noqa: S101  # without one it would not have been sent on
        if call.sent_status is None:
            self._note(asked)
        call.start_time(call.client_deadline, deadline_at(self._clock.now(), call.route.timeouts.total, None))
