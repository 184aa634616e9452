"""However good requests are mutated, the provider receives exactly what a strict parser reads in them."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import repeated
from tests.security.grammar import chunked, head, requests_in
from tests.security.stand import HOST, POST, Front, fronting

CLOSE = b"Connection: close"
JSON = b"Content-Type: application/json"
HOSTILE = (
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding : chunked",
    b"Content-Length: 0", b"Content-Length: 15", b"content-length: 1", b"Content-Length: +15",
    b"Connection: content-length", b"X: y\rZ: w", b"X: y\nContent-Length: 3", b" folded", b"Expect: 100-continue",
    b"Upgrade: h2c", b"Connection: upgrade", b"Host: evil", b"X_Y: z", b"Trailer: host", b"\xff: x",
)  # fmt: skip
hostile_bytes = st.sampled_from([
    b"\r", b"\n", b"\0", b" ", b"\t", b":", b",", b";", b"_", b"\x0b", b"\xa0", b"-", b"+", b"0", b"1", b"f", b"x",
    b"\r\n", b"\r\n\r\n", b"\n\n", b"\r\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n",
])  # fmt: skip


@st.composite
def good_requests(draw: st.DrawFn, number: int) -> bytes:
    """One call that carries its number."""
    body = b'{"model":"gpt","user":"%d %b"}' % (number, b"x" * draw(st.sampled_from([0, 1, 20, 300])))
    if draw(st.booleans()):
        return head(POST, HOST, JSON, b"Content-Length: %d" % len(body)) + body
    cut = draw(st.integers(1, len(body) - 1))
    return head(POST, HOST, b"Transfer-Encoding: chunked", JSON) + chunked(body[:cut], body[cut:])


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    """Up to three good calls with up to two mutations, in the pieces in which they are sent."""
    data = b"".join(draw(good_requests(number)) for number in range(draw(st.integers(1, 3))))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["put", "replace", "remove", "line", "line", "twice"])):
            case "put":
                data = data[:at] + draw(hostile_bytes) + data[at:]
            case "replace":
                data = data[:at] + draw(hostile_bytes) + data[at + 1 :]
            case "remove":
                data = data[:at] + data[at + draw(st.integers(1, 4)) :]
            case "line":
                at = data.find(b"\r\n", at)
                data = data[:at] + b"\r\n" + draw(st.sampled_from(HOSTILE)) + data[at:] if at >= 0 else data
            case _:
                data = data[:at] + data[at : at + draw(st.integers(1, 80))] + data[at:]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def test_provider_gets_what_a_strict_reader_reads() -> None:
    """C12: at random, never more requests than were sent, each body byte for byte, each framed once."""
    with asyncio.Runner() as runner:
        # The gateway waits for the rest of half a request; a short limit keeps the test fast.
        standing = fronting(server={"head_timeout": "50ms", "body_timeout": "50ms"})
        front = runner.run(standing.__aenter__())

        @settings(max_examples=repeated(300), derandomize=True, database=None, deadline=None)
        @given(mutated())
        def check(pieces: list[bytes]) -> None:
            runner.run(_check_read_strictly(front, pieces))

        try:
            check()
        finally:
            runner.run(standing.__aexit__(None, None, None))


async def _check_read_strictly(front: Front, pieces: list[bytes]) -> None:
    last = head(b"GET /healthz HTTP/1.1", HOST, CLOSE)
    await front.hear(*pieces, last)
    await front.stand.idle()
    front.provider.check()
    front.provider.connections.clear()
    reached = [(request.method, request.target, request.body) for request in front.provider.requests]
    front.provider.requests.clear()
    sent = [(each.method, each.target, each.body) for each in requests_in(b"".join(pieces) + last)]
    assert _is_within(reached, sent), (reached, sent)


def _is_within(part: list[tuple[bytes, bytes, bytes]], whole: list[tuple[bytes, bytes, bytes]]) -> bool:
    """Returns whether `part` is a subsequence of `whole`."""
    rest = iter(whole)
    return all(each in rest for each in part)
