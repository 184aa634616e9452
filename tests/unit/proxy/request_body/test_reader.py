from __future__ import annotations

import asyncio
import errno
import gzip
import io
import tempfile
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_guard.proxy.request_body.body_buffer import MEMORY_BYTES
from llm_guard.proxy.request_body.fields import BadRequest, BodyFields
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.proxy.request_body.model_field import inflate, rename
from llm_guard.proxy.request_body.reader import BodyLimit, receive
from llm_guard.proxy.request_body.spool import Spool
from llm_guard.proxy.request_body.spooled_body import SpooledBody, patched
from tests.fakes.clock import ManualClock

JSON = "application/json"
FORM = "multipart/form-data; boundary=b0"
BOUND = 64 << 20
LARGE = b'{"messages": ["' + b"QUJD" * 500_000 + b'"], "model": "a", "stream": true}'
LARGE_FORM = (
    b'--b0\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n'
    b'--b0\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + bytes(range(256)) * 6000 + b"\r\n"
    b'--b0\r\nContent-Disposition: form-data; name="model"\r\n\r\nb\r\n--b0--\r\n'
)


class Incoming:
    """A request body that arrives in pieces."""

    def __init__(self, body: bytes, piece_bytes: int = 65_536, error: BaseException | None = None) -> None:
        self._pieces = [body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)]
        self._error = error
        self.left = len(self._pieces)

    async def read(self) -> bytes:
        if self.left == 0 and self._error is not None:
            raise self._error
        if self.left == 0:
            return b""
        self.left -= 1
        return self._pieces[len(self._pieces) - 1 - self.left]


async def received(
    body: bytes, kind: str = JSON, encoding: str = "", piece_bytes: int = 65_536, **bounds: Any
) -> tuple[bytes | SpooledBody, BodyFields]:
    return await take_in(Incoming(body, piece_bytes), kind, encoding, **bounds)


async def take_in(
    incoming: Incoming,
    kind: str = JSON,
    encoding: str = "",
    *,
    max_bytes: int = BOUND,
    spool: Spool | None = None,
    clock: ManualClock | None = None,
) -> tuple[bytes | SpooledBody, BodyFields]:
    limit, spool, clock = BodyLimit(max_bytes), spool or Spool(BOUND), clock or ManualClock()
    return await receive(incoming.read, kind, encoding, limit, spool, clock)


async def stored(body: bytes, kind: str = JSON, encoding: str = "", piece_bytes: int = 65_536) -> SpooledBody:
    found, _ = await received(body, kind, encoding, piece_bytes)
    assert isinstance(found, SpooledBody)
    return found


async def refused(body: bytes, kind: str = JSON, encoding: str = "", **bounds: Any) -> tuple[int, str]:
    with pytest.raises(BadRequest) as caught:
        await received(body, kind, encoding, **bounds)
    return caught.value.status, caught.value.code


def whole(body: FileBody) -> bytes:
    blocks = [block for block in body.blocks() if isinstance(block, bytes)]
    assert sum(map(len, blocks)) == body.size
    assert max(map(len, blocks)) <= (1 << 18) + 1000
    return b"".join(blocks)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects every temporary file that is created."""
    made: list[Any] = []
    make: Callable[..., Any] = tempfile.TemporaryFile

    def temporary_file(**named: Any) -> Any:
        made.append(make(**named))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)
    return made


# in memory


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
async def test_small_body_is_bytes(piece_bytes: int, files: list[Any]) -> None:
    body = b'{"model": "a", "stream": true}'
    assert await received(body, piece_bytes=piece_bytes) == (body, BodyFields("a", is_stream=True))
    assert not files


async def test_one_piece_is_not_copied() -> None:
    body = b'{"model": "a"}'
    found, _ = await received(body)
    assert found is body


@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "br"])
async def test_empty_body_has_no_fields(encoding: str) -> None:
    assert await received(b"", encoding=encoding) == (b"", BodyFields())


async def test_body_up_to_the_bound_stays_in_memory(files: list[Any]) -> None:
    body = b'{"x": "' + b"y" * (MEMORY_BYTES - 24) + b'","model": "a"}'
    body = body + b" " * (MEMORY_BYTES - len(body))
    assert await received(body) == (body, BodyFields("a"))
    assert not files
    larger, asked = await received(body + b" ")
    assert isinstance(larger, SpooledBody)
    assert (whole(larger), asked, len(files)) == (body + b" ", BodyFields("a"), 1)
    larger.close()


async def test_small_compressed_body_stays_in_memory() -> None:
    plain = b'{"model": "a"}'
    for encoding, packed in (("gzip", gzip.compress(plain)), ("deflate", zlib.compress(plain))):
        found = await received(packed, encoding=encoding, piece_bytes=5)
        assert found == (packed, BodyFields("a", inflated_bytes=len(plain)))


# in a file


@pytest.mark.parametrize("piece_bytes", [5000, 65_536, 10 << 20])
@pytest.mark.parametrize(("body", "kind"), [(LARGE, JSON), (LARGE_FORM, FORM)], ids=["json", "form"])
async def test_large_body_is_what_it_was_and_renamed_as_in_memory(body: bytes, kind: str, piece_bytes: int) -> None:
    found = await stored(body, kind, piece_bytes=piece_bytes)
    assert whole(found) == whole(found) == body
    assert whole(await found.renamed("new one")) == rename(body, kind, "", "new one")
    assert whole(await found.renamed("x")) == rename(body, kind, "", "x")
    found.close()


async def test_fields_of_a_large_body_are_found() -> None:
    for body, kind, asked in (
        (LARGE, JSON, BodyFields("a", is_stream=True)),
        (LARGE_FORM, FORM, BodyFields("b", is_model_doubled=True)),
    ):
        found, said = await received(body, kind)
        assert isinstance(found, SpooledBody)
        assert said == asked
        found.close()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x-gzip"])
@pytest.mark.parametrize(("body", "kind"), [(LARGE, JSON), (LARGE_FORM, FORM)], ids=["json", "form"])
async def test_compressed_body_is_compressed_again(body: bytes, kind: str, encoding: str, files: list[Any]) -> None:
    """The body is small, but reading it would require inflating all of it in memory."""
    packed = zlib.compress(body) if encoding == "deflate" else gzip.compress(body)
    found = await stored(packed, kind, encoding)
    assert whole(found) == packed
    renamed, other = await found.renamed("new one"), await found.renamed("other")
    assert inflate(whole(renamed), encoding, BOUND) == rename(body, kind, "", "new one")
    assert inflate(whole(other), encoding, BOUND) == rename(body, kind, "", "other")
    assert await found.renamed("other") is other
    found.close()
    assert all(file.closed for file in files)


async def test_two_attempts_that_rename_at_once_share_one_file(files: list[Any]) -> None:
    found = await stored(gzip.compress(LARGE), encoding="gzip")
    first, second = await asyncio.gather(found.renamed("new"), found.renamed("new"))
    assert first is second
    found.close()
    assert files
    assert all(file.closed for file in files)


async def test_two_readers_do_not_disturb_each_other() -> None:
    found = await stored(LARGE)
    pairs = list(zip(found.blocks(), (await found.renamed("b")).blocks(), strict=True))
    assert b"".join(first for first, _ in pairs) == LARGE
    assert b"".join(second for _, second in pairs if isinstance(second, bytes)) == rename(LARGE, JSON, "", "b")
    found.close()


async def test_ambiguous_model_is_refused_when_it_is_renamed() -> None:
    found = await stored(LARGE.replace(b'"model"', b'"mod\\u0065l"'))
    with pytest.raises(BadRequest, match="without escapes"):
        await found.renamed("b")
    found.close()


async def test_closed_body_cannot_be_read() -> None:
    found = await stored(LARGE)
    blocks = found.blocks()
    next(blocks)
    found.close()
    found.close()
    with pytest.raises(OSError, match="closed"):
        next(blocks)


# other content types


@pytest.mark.parametrize("body", [b"\x00\xff" * 1_000_000, b"{ not JSON" * 200_000, b" " * 2_000_000])
async def test_large_body_of_another_type_has_no_fields(body: bytes) -> None:
    for kind in ("application/octet-stream", ""):
        found, asked = await received(body, kind)
        assert isinstance(found, SpooledBody)
        assert (whole(found), asked) == (body, BodyFields())
        found.close()


async def test_large_json_is_found_under_other_names_too() -> None:
    found, asked = await received(b"\n " + LARGE, "text/plain")
    assert isinstance(found, SpooledBody)
    assert asked.model == "a"
    found.close()


async def test_compressed_body_of_another_kind_is_not_inflated() -> None:
    packed = b"\x1f\x8b not gzip at all"
    assert await received(packed, "audio/wav", "gzip") == (packed, BodyFields())
    assert await received(packed, "audio/wav", "br") == (packed, BodyFields())


# refusals


async def test_body_above_the_limit_is_refused_before_all_of_it_has_arrived(files: list[Any]) -> None:
    for size, bound in ((100, 99), (3_000_000, 2_000_000)):
        body = b'{"x": "' + b"y" * size
        incoming = Incoming(body, piece_bytes=size // 10)
        with pytest.raises(BadRequest, match=r"server\.max_body") as caught:
            await take_in(incoming, max_bytes=bound)
        assert (caught.value.status, caught.value.code) == (413, "body_too_large")
        assert incoming.left < 5
    assert len(files) == 1
    assert files[0].closed


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_bomb_is_refused_at_the_bound(encoding: str) -> None:
    bomb = b'{"x": "' + b"0" * 3_000_000 + b'"}'
    packed = zlib.compress(bomb) if encoding == "deflate" else gzip.compress(bomb)
    assert await refused(packed, encoding=encoding, max_bytes=2_000_000) == (413, "body_too_large")
    assert await refused(packed[:-1], encoding=encoding) == (400, "invalid_body")
    assert await refused(packed + packed, encoding=encoding) == (400, "invalid_body")
    assert await refused(bomb, encoding=encoding) == (400, "invalid_body")


async def test_encoding_that_cannot_be_read_is_refused() -> None:
    assert await refused(b"\x8b", encoding="br") == (415, "unsupported_content_encoding")
    assert await refused(b"\x8b" * 2_000_000, encoding="zstd") == (415, "unsupported_content_encoding")


@pytest.mark.parametrize("body", [LARGE[:-1], LARGE + b"x", b"[" * 2_000_000, LARGE[:-1] + b', "x": 01e400}'])
async def test_large_body_that_is_no_json_is_refused_and_nothing_left_open(body: bytes, files: list[Any]) -> None:
    assert await refused(body) == (400, "invalid_json")
    assert all(file.closed for file in files)


async def test_large_form_without_a_boundary_is_refused() -> None:
    assert await refused(LARGE_FORM, "multipart/form-data") == (400, "invalid_body")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ConnectionResetError(), BadRequest(408, "slow", "slow")])
async def test_nothing_stays_open_when_the_body_is_incomplete(error: BaseException, files: list[Any]) -> None:
    with pytest.raises(type(error)):
        await take_in(Incoming(LARGE[:-100_000], error=error))
    assert [file.closed for file in files] == [True]


# no space left


class FullDisk(io.BytesIO):
    """Accepts some bytes, in parts, and then fails with ENOSPC."""

    def write(self, data: Any) -> int:
        if self.tell() > 1_200_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(bytes(data[:50_000]))


@pytest.mark.parametrize("is_coded", [False, True])
async def test_full_disk_is_a_refusal_that_may_be_repeated(is_coded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = bytes((index * index >> 7) & 0xFF for index in range(400_000)).hex().encode() * 2
    body = b'{"model": "a", "x": "' + noise + b'"}'
    found = await stored(gzip.compress(body * 1, 1), encoding="gzip") if is_coded else None
    full = FullDisk(bytes(1_200_001)) if is_coded else FullDisk()
    full.seek(0, io.SEEK_END)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
    act: Awaitable[Any] = found.renamed("b") if found is not None else received(LARGE)
    with pytest.raises(BadRequest) as caught:
        await act
    assert (caught.value.status, caught.value.code, caught.value.should_retry) == (503, "no_room_for_body", True)
    assert full.closed
    if found is not None:
        found.close()


async def test_missing_directory_is_a_refusal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def temporary_file(**_: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)
    assert await refused(LARGE) == (503, "no_room_for_body")


async def test_file_that_takes_less_than_it_is_given_is_written_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:10_000]))

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Slow())
    found = await stored(LARGE)
    assert whole(found) == LARGE
    found.close()


# event loop


async def test_loop_gets_a_turn_whenever_a_millisecond_has_passed() -> None:
    class Busy(ManualClock):
        """A clock that advances by 0.4 ms at each reading."""

        def now(self) -> float:
            self.advance(0.0004)
            return super().now()

    clock = Busy()
    found, _ = await take_in(Incoming(LARGE, piece_bytes=10 << 20), clock=clock)
    assert isinstance(found, SpooledBody)
    found.close()
    pieces = len(LARGE) // 32_768 + 1
    assert pieces // 4 <= len(clock.slept) <= pieces
    assert set(clock.slept) == {0}


# patches


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 5, 100])
def test_patch_may_span_several_blocks(block_bytes: int) -> None:
    text = b"0123456789"
    blocks = [text[at : at + block_bytes] for at in range(0, 10, block_bytes)]
    for patches, after in (
        ([], text),
        ([(2, 7, b"ab")], b"01ab789"),
        ([(0, 1, b""), (1, 3, b"abcd"), (9, 10, b"z")], b"abcd345678z"),
        ([(4, 4, b"-")], b"0123-456789"),
        ([(0, 10, b"x")], b"x"),
    ):
        assert b"".join(patched(blocks, patches)) == after


# the bound on spooled bytes


async def test_spool_counts_a_body_and_its_renamed_copies_until_it_is_closed() -> None:
    spool = Spool(BOUND)
    packed = gzip.compress(LARGE.replace(b"QUJD", b"%d" * 2), 0)
    found, _ = await take_in(Incoming(packed), JSON, "gzip", spool=spool)
    assert isinstance(found, SpooledBody)
    assert spool.used_bytes == len(packed)
    renamed = await found.renamed("new")
    assert spool.used_bytes == len(packed) + (renamed.size or 0)
    await found.renamed("new")
    assert spool.used_bytes == len(packed) + (renamed.size or 0)
    found.close()
    found.close()
    assert spool.used_bytes == 0


async def test_body_of_exactly_the_free_room_is_taken_and_one_byte_more_refused() -> None:
    spool = Spool(len(LARGE) + 1000)
    found, _ = await take_in(Incoming(LARGE), spool=spool)
    assert isinstance(found, SpooledBody)
    spool.adopt(2 * len(LARGE))
    other, _ = await take_in(Incoming(LARGE), spool=spool)
    assert isinstance(other, SpooledBody)
    assert spool.used_bytes == spool.max_bytes
    other.close()
    spool.adopt(2 * len(LARGE) - 1)
    with pytest.raises(BadRequest) as caught:
        await take_in(Incoming(LARGE), spool=spool)
    assert (caught.value.status, caught.value.code, caught.value.should_retry) == (503, "no_room_for_body", True)
    assert spool.used_bytes == len(LARGE)
    found.close()
    assert spool.used_bytes == 0


async def test_small_body_needs_no_room() -> None:
    spool = Spool(0)
    body = b'{"x": "' + b"y" * 500_000 + b'", "model": "a"}'
    assert await take_in(Incoming(body), spool=spool) == (body, BodyFields("a"))


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ConnectionResetError(), BadRequest(408, "slow", "slow")])
async def test_incomplete_body_frees_its_room(error: BaseException) -> None:
    spool = Spool(BOUND)
    with pytest.raises(type(error)):
        await take_in(Incoming(LARGE[:-100_000], error=error), spool=spool)
    assert spool.used_bytes == 0


async def test_copy_that_finds_no_room_frees_what_it_had() -> None:
    spool = Spool(BOUND)
    packed = gzip.compress(LARGE, 0)
    found, _ = await take_in(Incoming(packed), JSON, "gzip", spool=spool)
    assert isinstance(found, SpooledBody)
    spool.adopt(len(packed))
    with pytest.raises(BadRequest, match=r"server\.max_spool"):
        await found.renamed("new")
    assert spool.used_bytes == len(packed)
    found.close()
    assert spool.used_bytes == 0
