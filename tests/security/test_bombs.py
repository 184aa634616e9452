"""Compressed bodies that expand or are corrupt: inspected within the limits, and otherwise passed on compressed."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.stand import facing
from tests.chaos.wire import Connection
from tests.fakes.client import raw_request
from tests.fakes.provider import whole
from tests.security.grammar import head
from tests.security.stand import HOST, POST, fronting

MIB = 1 << 20
CLOSE = b"Connection: close"
JSON = b"Content-Type: application/json"


def named(attacks: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attack", [pytest.param(data, id=name) for name, data in attacks.items()])


@cache
def bomb(size: int, wbits: int = 31) -> bytes:
    """Compresses valid JSON with so many letters."""
    packer = zlib.compressobj(9, wbits=wbits)
    packed = [packer.compress(b'{"model":"gpt","user":"'), *(packer.compress(b"v" * MIB) for _ in range(size // MIB))]
    return b"".join(packed) + packer.compress(b'"}') + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "packed", "statuses"),
    [
        pytest.param(b"gzip", lambda: bomb(64 * MIB), (413,), id="C26 gzip"),
        pytest.param(b"x-gzip", lambda: bomb(64 * MIB), (413,), id="C26 x-gzip"),
        pytest.param(b"deflate", lambda: bomb(64 * MIB, 15), (413,), id="C26 deflate"),
        pytest.param(b"gzip, gzip", lambda: gzip.compress(bomb(64 * MIB)), (415,), id="C26 gzip in gzip"),
        pytest.param(b"br", lambda: bomb(MIB), (415,), id="C26 br"),
        pytest.param(b"zstd", lambda: bomb(MIB), (415,), id="C26 zstd"),
    ],
)
async def test_body_that_grows_above_the_limit_is_refused_early(
    encoding: bytes, packed: Callable[[], bytes], statuses: tuple[int, ...]
) -> None:
    body = packed()
    async with fronting(server={"max_body": "1MiB"}) as front:
        attack = (
            head(POST, HOST, CLOSE, JSON, b"Content-Encoding: " + encoding, b"Content-Length: %d" % len(body)) + body
        )
        with peak_memory() as peak:
            heard = await front.hear(attack)
        assert heard.statuses[0] in statuses
        assert peak[0] < 4 * MIB
        await front.check_reached()


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Measures the peak of memory allocated meanwhile, beyond what was allocated before."""
    peak = [0]
    tracemalloc.start()
    try:
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


GOOD = gzip.compress(b'{"model":"gpt"}', mtime=0)


@named({
    "C27 no gzip": b"hi", "C27 cut": GOOD[:-9], "C27 a wrong sum": GOOD[:-8] + bytes(8),
    "C27 a wrong head": b"\x1f\x8c" + GOOD[2:], "C27 broken in its middle": GOOD[:12] + b"\xff\xff\xff" + GOOD[15:],
    "C27 a header alone": GOOD[:10],
})  # fmt: skip
async def test_corrupt_body_is_the_clients_fault(attack: bytes) -> None:
    async with fronting(breaker={"consecutive_failures": 1}) as front:
        length = b"Content-Length: %d" % len(attack)
        for _ in range(3):
            heard = await front.hear(head(POST, HOST, CLOSE, JSON, b"Content-Encoding: gzip", length) + attack)
            assert heard.statuses == [400]
        assert await front.stand.metric("llm_guard_attempts_total") == 0
        assert front.stand.breaker("one/gpt").failures == 0
        await front.check_reached()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"], ids=["C28 whole", "C28 stream"])
async def test_response_that_would_inflate_is_passed_on_unchanged(kind: str) -> None:
    packed = bomb(64 * MIB)
    headers = {"content-type": kind, "content-encoding": "gzip"}
    async with facing([whole(200, packed, headers)]) as (stand, _), Connection(stand.url) as connection:
        accepts = {"accept-encoding": "gzip"}
        with peak_memory() as peak:
            body = CHAT.body(stream=kind == "text/event-stream")
            reply = await connection.ask(raw_request(CHAT.path, body, accepts))
        assert peak[0] < 16 * MIB
        # It may be refused as no valid response to the call, but it is never decompressed for the client.
        assert reply.body == packed or reply.status == 502
        assert len(reply.body) <= len(packed)


async def test_error_that_would_inflate_is_passed_on_unchanged() -> None:
    """C28: the gateway inspects only the beginning of an error."""
    packed = bomb(64 * MIB)
    script = [whole(500, packed, {"content-encoding": "gzip"})]
    async with facing(script) as (stand, _), Connection(stand.url) as connection:
        with peak_memory() as peak:
            reply = await connection.ask(raw_request(CHAT.path, CHAT.body(), {"accept-encoding": "gzip"}))
        assert (reply.status, reply.body) == (500, packed)
        assert peak[0] < 16 * MIB
