"""A request body in a file without a name, read block by block, with its model replaced if necessary.

`proxy.request_body.reader` writes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, overload

from llm_guard.clock import Clock
from llm_guard.proxy.request_body.content_encoding import Inflater, deflater, is_coded
from llm_guard.proxy.request_body.interfaces import Block, FileBody
from llm_guard.proxy.request_body.spool import Spool, SpoolFile

_BLOCK_BYTES = 1 << 18
_CODED_BLOCK_BYTES = 1 << 16
_TURN_S = 0.001

Patch = tuple[int, int, bytes]
"""A replacement: start, stop, new bytes."""


class BodyFile(Protocol):
    """The storage of a body: a `SpoolFile`, or memory for a small one."""

    @property
    def closed(self) -> bool: ...
    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class SpooledBody:
    """A complete body; implements `proxy.request_body.interfaces.BufferedBody`."""

    def __init__(
        self,
        file: BodyFile,
        size: int,
        content_encoding: str,
        patches: Callable[[str], list[Patch]],
        spool: Spool,
        clock: Clock,
    ) -> None:
        """`patches` returns the replacements that set another model, in order; it may raise BadRequest. Files of
        renamed copies are made in `spool`."""
        self.size = size
        self._file = file
        self._content_encoding = content_encoding
        self._patches = patches
        self._spool = spool
        self._clock = clock
        self._recoded: dict[str, _Recoded] = {}

    def blocks(self) -> Iterator[bytes]:
        """Yields the body, at most 256 KiB at a time; may be called again, and by several attempts at once. Raises
        OSError if the body is closed."""
        return _blocks(self._file, _BLOCK_BYTES)

    async def renamed(self, model: str) -> FileBody:
        """Returns the body with `model` as its model and every other byte unchanged; a compressed body is compressed
        again. The result is closed with this body. Raises BadRequest."""
        patches = self._patches(model)
        if not is_coded(self._content_encoding):
            return PatchedBody(self, patches)
        if model not in self._recoded:
            recoded = await _recode(self._file, self._content_encoding, patches, self._spool, self._clock)
            if self._recoded.setdefault(model, recoded) is not recoded:  # another attempt was faster
                recoded.close()
        return self._recoded[model]

    def close(self) -> None:
        """Deletes the files, at the end of the call. A second call does nothing."""
        self._file.close()
        for recoded in self._recoded.values():
            recoded.close()


class CooperativeYield:
    """Yields to the event loop whenever work has taken a millisecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.now()

    async def take(self) -> None:
        """Yields if the time is up; call it between two steps of work."""
        if self._clock.now() - self._since >= _TURN_S:
            await self._clock.sleep(0)
            self._since = self._clock.now()


@overload
def patched(blocks: Iterable[bytes], patches: Iterable[Patch]) -> Iterator[bytes]: ...
@overload
def patched(blocks: Iterable[Block], patches: Iterable[Patch]) -> Iterator[Block]: ...
def patched(blocks: Iterable[Block], patches: Iterable[Patch]) -> Iterator[Block]:
    """Yields the blocks with all patches applied; patches are in order and do not overlap. Never yields an empty block,
    because as a chunk it would end the request."""
    waiting = iter(patches)
    patch = next(waiting, None)
    at = kept_from = 0
    for block in blocks:
        if not isinstance(block, bytes):
            yield block
            continue
        end = at + len(block)
        pieces = []
        while patch is not None and patch[0] < end:
            start, stop, new = patch
            pieces += [block[max(0, kept_from - at) : start - at], new]
            kept_from = stop
            patch = next(waiting, None)
        pieces.append(block[max(0, kept_from - at) :])
        at = end
        if new_block := b"".join(pieces):
            yield new_block


class PatchedBody:
    """A body with patches, as a view of the original."""

    def __init__(self, body: FileBody, patches: list[Patch]) -> None:
        size = body.size
        self.size = None if size is None else size + sum(len(new) - (stop - start) for start, stop, new in patches)
        self._body = body
        self._patches = patches

    def blocks(self) -> Iterator[Block]:
        return patched(self._body.blocks(), self._patches)


class _Recoded:
    """A recompressed copy of a body, in its own file."""

    def __init__(self, file: SpoolFile) -> None:
        self.size = file.size
        self._file = file

    def blocks(self) -> Iterator[bytes]:
        return _blocks(self._file, _BLOCK_BYTES)

    def close(self) -> None:
        self._file.close()


async def _recode(file: BodyFile, content_encoding: str, patches: list[Patch], spool: Spool, clock: Clock) -> _Recoded:
    inflater, packer, turns = (
        Inflater(content_encoding, max_bytes=1 << 62),
        deflater(content_encoding),
        CooperativeYield(clock),
    )
    plain = (block for coded in _blocks(file, _CODED_BLOCK_BYTES) for block in inflater.feed(coded))
    new = spool.new_file()
    try:
        for block in patched(plain, patches):
            new.append(packer.compress(block))
            await turns.take()
        new.append(packer.flush())
        return _Recoded(new)
    except BaseException:
        new.close()
        raise


def _blocks(file: BodyFile, block_bytes: int) -> Iterator[bytes]:
    """Yields the file from its beginning. Seeks before each read, because other readers use the same file."""
    at = 0
    while not file.closed:
        file.seek(at)
        block = file.read(block_bytes)
        if not block:
            return
        at += len(block)
        yield block
    raise OSError("the body is closed")
