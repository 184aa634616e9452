"""A request's body: received piece by piece, looked at as it passes, kept in memory or in a file.

Owns how much is looked at in one go, and when a body that still arrives can be sent on. Does not own what a body asks
for (`gateway.model_field`), where its bytes are (`gateway.body_store`), nor the connection that it comes from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from msgspec.json import encode

from llm_guard.clock import Clock
from llm_guard.gateway.asked import NOTHING, Asked, BadRequest
from llm_guard.gateway.body_limit import BodyLimit
from llm_guard.gateway.body_store import BodyStore, file_of
from llm_guard.gateway.coding import Inflater, is_coded
from llm_guard.gateway.form_scan import FormScan, boundary
from llm_guard.gateway.json_scan import JsonScan
from llm_guard.gateway.model_field import asked_of_form, inspect, kind_of, may_be_json
from llm_guard.gateway.spool import Spool
from llm_guard.gateway.stored_body import Patch, Renamed, StoredBody, Turns
from llm_guard.request_body import Block, FileBody

_AT_ONCE_BYTES = 1 << 17
"""A larger one is looked at piece by piece: the costliest JSON takes 18 ms a MiB."""
_PIECE_BYTES = 1 << 15


async def receive(
    read: Callable[[], Awaitable[bytes]],
    content_type: str,
    content_encoding: str,
    limit: BodyLimit,
    spool: Spool,
    clock: Clock,
) -> tuple[bytes | StoredBody, Asked]:
    """The body whose pieces `read` gives, b"" at its end, and what it asks for.

    Bytes up to `MEMORY_BYTES`, else a StoredBody, which the caller closes. Raises BadRequest, and what `read` raises;
    then, and when cancelled, there is nothing to close. A body that is there as a whole, has at most 128 KiB and no
    content encoding may as well be given to `inspect`.
    """
    body = ArrivingBody(read, content_type, content_encoding, None, limit, spool, clock)
    await body.begin()
    return await body.receive_whole()


class ArrivingBody:
    """A body that is being received: `begin` first, then either `receive_whole`, or `follow` and `receive_rest`, which
    lets attempts send it while it arrives. Fits `call.StoredBody`.

    Attempts have offsets of their own: each begins with the first byte.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        content_type: str,
        content_encoding: str,
        announced_bytes: int | None,
        limit: BodyLimit,
        spool: Spool,
        clock: Clock,
    ) -> None:
        """`announced_bytes`: its Content-Length, if it has one."""
        self._read = read
        self._content_type = content_type
        self._content_encoding = content_encoding
        self._announced_bytes = announced_bytes
        self._limit = limit
        self._spool = spool
        self._clock = clock
        self._turns = Turns(clock)
        self._beginning = b""
        self._is_over = False
        self._look: _Look | None = None
        """None: the beginning is all of it, and can be looked at in one go."""
        self._store = BodyStore(spool)
        self._is_followed = False
        self._models: int | None = None
        """How many model fields it may have in all while it is followed; None: any number."""

    async def begin(self) -> None:
        """Receives the first 128 KiB, or all of it. Raises BadRequest, and what `read` raises."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self._read():
            pieces.append(piece)
            size += len(piece)
            self._limit.check(size)
            if size > _AT_ONCE_BYTES:
                break
        self._is_over = not piece
        beginning = self._beginning = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if not piece and not (beginning and is_coded(self._content_encoding)):
            return
        self._look = _Look(beginning, self._content_type, self._content_encoding, self._limit.max_bytes)
        try:
            await self._take(beginning)
        except BaseException:
            self.close()
            raise

    async def receive_whole(self) -> tuple[bytes | StoredBody, Asked]:
        """Receives all of it; returns what `receive` does. Raises BadRequest, and what `read` raises."""
        look = self._look
        if look is None:
            return self._beginning, inspect(self._beginning, self._content_type, "", self._limit.max_bytes)
        try:
            asked = await self.receive_rest()
        except BaseException:
            self.close()
            raise
        content = self._store.content()
        if isinstance(content, bytes) and look.inflated_bytes <= _AT_ONCE_BYTES:
            return content, asked
        # What was inflated to be read stays a file's matter, for renaming inflates it again.
        stored = StoredBody(
            file_of(content), self._store.size, self._content_encoding, look.patches, self._spool, self._clock
        )
        return stored, asked

    # while it arrives

    def asks_so_far(self) -> Asked | None:
        """Returns what it asks for as far as it has arrived. None: there is no more to come, or no part of it can be
        read alone. Raises BadRequest."""
        if self._look is None or self._is_over or is_coded(self._content_encoding):
            return None
        return self._look.asks_so_far()

    @property
    def is_form(self) -> bool:
        """Whether fields may still arrive that say what it asks for."""
        return self._look is not None and self._look.is_form

    def follow(self, *, is_routed_by_model: bool) -> None:
        """From now on attempts may send it. `is_routed_by_model`: a model field that arrives later is refused, because
        the route was chosen without it."""
        assert self._look is not None  # noqa: S101  # `asks_so_far` has looked
        self._is_followed = True
        self._models = self._look.models if is_routed_by_model else None

    async def receive_rest(self) -> Asked:
        """Receives all of it; returns what it asks for. Raises BadRequest, and what `read` raises."""
        assert self._look is not None  # noqa: S101  # `begin` has left something to be received
        while not self._is_over:
            piece = await self._read()
            self._is_over = not piece
            self._limit.check(self._store.size + len(piece))
            await self._take(piece)
        asked = self._look.end()
        self._store.complete()
        return asked

    @property
    def size(self) -> int | None:
        """Total size in bytes. None until the body is complete, where its length was not announced."""
        return self._store.size if self._store.is_complete else self._announced_bytes

    def blocks(self) -> Iterator[Block]:
        """Yields all of it from the beginning: see `BodyStore.blocks`."""
        return self._store.blocks()

    async def wait_complete(self) -> None:
        """Returns when all of it has arrived, or it is closed."""
        await self._store.wait_complete()

    async def renamed(self, model: str) -> FileBody:
        """With `model` as its model and every other byte as it was. Raises BadRequest."""
        assert self._look is not None  # noqa: S101  # `asks_so_far` has found the model
        return Renamed(self, self._look.patches(model))

    def close(self) -> None:
        """Once the call is over; a second time does nothing."""
        self._store.close()

    async def _take(self, piece: bytes) -> None:
        """Looks at a piece before anything of it can be sent: what is refused here must reach no provider as a
        whole."""
        assert self._look is not None  # noqa: S101  # the caller has made it
        for at in range(0, len(piece), _PIECE_BYTES):
            part = piece[at : at + _PIECE_BYTES]
            for _ in self._look.feed(part):
                await self._turns.take()
            if self._is_followed:
                self._look.check(self._models)
            self._store.add(part)


class _Look:
    """At a body as it passes: inflates it and scans it, as far as its model may stand in it."""

    def __init__(self, begin: bytes, content_type: str, content_encoding: str, max_bytes: int) -> None:
        kind = kind_of(content_type)
        self._is_sure = kind != "other"
        self._scan: JsonScan | FormScan | None = None
        self._inflater: Inflater | None = None
        if not self._is_sure and not may_be_json(begin):
            return
        if is_coded(content_encoding):
            self._inflater = Inflater(content_encoding, max_bytes)
        self._scan = FormScan(boundary(content_type)) if kind == "form" else JsonScan()

    @property
    def inflated_bytes(self) -> int:
        """0 of a body that is not inflated."""
        return self._inflater.size if self._inflater is not None else 0

    def feed(self, piece: bytes) -> Iterator[None]:
        """The next 32 KiB at most; every step is short."""
        for block in (piece,) if self._inflater is None else self._inflater.feed(piece):
            if self._scan is None:
                return
            try:
                self._scan.feed(block)
            except BadRequest as bad:
                self._doubt(bad)
            yield

    def end(self) -> Asked:
        if self._scan is not None and self._inflater is not None:
            self._inflater.end()
        try:
            if isinstance(self._scan, FormScan):
                return asked_of_form(self._scan)
            return self._scan.end() if self._scan is not None else NOTHING
        except BadRequest as bad:
            self._doubt(bad)
            return NOTHING

    def asks_so_far(self) -> Asked | None:
        """Returns what the body asks for so far; None where only all of it can be read. Raises BadRequest."""
        if isinstance(self._scan, FormScan):
            return asked_of_form(self._scan)
        return NOTHING if self._scan is None else None

    @property
    def is_form(self) -> bool:
        return isinstance(self._scan, FormScan)

    @property
    def models(self) -> int:
        """How many model fields a form has, as far as it was looked at."""
        return len(self._scan.spans) if isinstance(self._scan, FormScan) else 0

    def check(self, most_models: int | None) -> None:
        """Raises BadRequest for a form that cannot be read, or has more than `most_models` model fields."""
        if isinstance(self._scan, FormScan):
            asked_of_form(self._scan)
            if most_models is not None and len(self._scan.spans) > most_models:
                message = "`model` must come before the file, and only once, in a form of this size"
                raise BadRequest(400, "invalid_model", message, "model")

    def patches(self, model: str) -> list[Patch]:
        """What makes it ask for another model; raises BadRequest."""
        if isinstance(self._scan, FormScan):
            return [(start, end, model.encode()) for start, end in self._scan.spans]
        assert self._scan is not None  # noqa: S101  # it has told of a model
        return [(*self._scan.span_of_model(), encode(model))]

    def _doubt(self, bad: BadRequest) -> None:
        if self._is_sure or bad.code != "invalid_json":
            raise bad
        self._scan = self._inflater = None  # it only began like JSON
