"""A request's body: received piece by piece, looked at as it passes, kept in memory or in a file.

Owns how much is looked at in one go. Does not own what a body asks for (`gateway.model_field`), the file
(`gateway.stored_body`), nor the connection that it comes from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from io import BytesIO

from msgspec.json import encode

from llm_guard.clock import Clock
from llm_guard.gateway.asked import NOTHING, Asked, BadRequest
from llm_guard.gateway.body_limit import BodyLimit
from llm_guard.gateway.coding import Inflater, is_coded
from llm_guard.gateway.form_scan import FormScan, boundary
from llm_guard.gateway.json_scan import JsonScan
from llm_guard.gateway.model_field import asked_of_form, inspect, kind_of, may_be_json
from llm_guard.gateway.spool import Spool, SpoolFile
from llm_guard.gateway.stored_body import Patch, StoredBody, Turns

MEMORY_BYTES = 1 << 20
"""A larger body is kept in a file."""

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
    pieces: list[bytes] = []
    size = 0
    while piece := await read():
        pieces.append(piece)
        size += len(piece)
        limit.check(size)
        if size > _AT_ONCE_BYTES:
            break
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if not piece and not (body and is_coded(content_encoding)):
        return body, inspect(body, content_type, "", limit.max_bytes)
    look = _Look(body, content_type, content_encoding, limit.max_bytes)
    store = _Store(spool)
    try:
        turns = Turns(clock)
        while body:
            for at in range(0, len(body), _PIECE_BYTES):
                part = body[at : at + _PIECE_BYTES]
                store.add(part)
                for _ in look.feed(part):
                    await turns.take()
            body = await read() if piece else b""
            limit.check(store.size + len(body))
        asked = look.end()
        return store.end(content_encoding, look, clock), asked
    except BaseException:
        store.close()
        raise


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


class _Store:
    """What has come of a body: in memory, and from some size on in a file."""

    def __init__(self, spool: Spool) -> None:
        self.size = 0
        self._spool = spool
        self._pieces: list[bytes] = []
        self._file: SpoolFile | None = None

    def add(self, piece: bytes) -> None:
        """Raises BadRequest if the spool or the disk has no room."""
        self.size += len(piece)
        if self._file is None:
            self._pieces.append(piece)
            if self.size <= MEMORY_BYTES:
                return
            self._file = self._spool.new_file()
            pieces, self._pieces = self._pieces, []
        else:
            pieces = [piece]
        for piece in pieces:
            self._file.append(piece)

    def end(self, content_encoding: str, look: _Look, clock: Clock) -> bytes | StoredBody:
        """All of it. What was inflated to be read stays a file's matter, for renaming inflates it again."""
        if self._file is not None:
            return StoredBody(self._file, self.size, content_encoding, look.patches, self._spool, clock)
        body = b"".join(self._pieces)
        if look.inflated_bytes <= _AT_ONCE_BYTES:
            return body
        return StoredBody(BytesIO(body), self.size, content_encoding, look.patches, self._spool, clock)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
