"""A request that is recognized by its head must be the one that parsing gives, whatever came before it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.proxy.http_server.request import RepeatedHead, Request, RequestParser
from llm_guard.proxy.request_body.fields import BadRequest
from tests.effort import repeated

LENGTHS = (b"2", b"02", b" 2", b"2 ", b"+2", b"-2", b"2_0", b"12", b"0", b"", b"2\t", "²".encode("latin-1"))
LINES = (
    b"POST /v1/chat/completions HTTP/1.1", b"POST /v1/messages?a=1 HTTP/1.1", b"GET /v1/models HTTP/1.1",
    b"POST /v1/messages?a=1 HTTP/1.0", b"POST /v1/messages? HTTP/1.1",
)  # fmt: skip
OTHERS = (
    b"X-A: 1\r\n", b"", b"X-A: 2\r\n", b"connection: close\r\n", b"Connection: keep-alive\r\n", b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 2\r\n", b"X_A: 1\r\n",
    b"X-B: 1\r\nX-B: 2\r\n", b"X-Note: content-length: 7\r\n",
)  # fmt: skip


def written(line: bytes, other: bytes, length: bytes, body: bytes, *, is_length_last: bool) -> bytes:
    framing = b"Content-Length: " + length + b"\r\n"
    fields = b"Host: a\r\n" + (other + framing if is_length_last else framing + other)
    return line + b"\r\n" + fields + b"\r\n" + body


class Seen:
    """Implements `ParserCallbacks`: notes everything."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.parser = RequestParser(self)
        self.recognized = 0

    def on_begun(self) -> None:
        self.events.append("begun")

    def on_request(self, request: Request) -> None:
        self.events.append((request.method, request.path, request.query, request.version, request.headers))
        self.events.append((list(request.names.items()), request.content_length, request.is_keep_alive))

    def on_whole(self, request: Request) -> None:
        self.events.append((request.has_arrived, request.received_bytes, request.take()))

    def on_full(self, request: Request) -> None:
        self.events.append("full")

    def feed(self, data: bytes, *, is_repeated: bool) -> None:
        try:
            while data:
                if not is_repeated:
                    self.parser._head = None
                known, begun = self.parser._head, len(self.events)
                data = self.parser.feed(data)
                self.recognized += known is not None and known is self.parser._head and len(self.events) == begun + 4
        except BadRequest as bad:
            self.events.append((bad.status, bad.code))


REQUESTS = st.builds(
    written,
    st.sampled_from(LINES),
    st.sampled_from(OTHERS),
    st.sampled_from((b"2", b"3", *LENGTHS)),
    st.sampled_from((b"{}", b"{ }", b"", b"123456789012", b"{}POST / HTTP/1.1\r\n")),
    is_length_last=st.booleans(),
)


@given(st.data())
@settings(max_examples=repeated(2000))
def test_recognized_request_is_the_one_that_parsing_gives(data: st.DataObject) -> None:
    likely = data.draw(REQUESTS)
    requests = data.draw(st.lists(st.one_of(st.just(likely), REQUESTS), min_size=3, max_size=8))
    pieces: list[bytes] = []
    for request in requests:
        at = data.draw(st.one_of(st.just(len(request)), st.integers(0, len(request))))
        pieces += [request[:at], request[at:]]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(pieces) - 1))
        pieces[at : at + 2] = [b"".join(pieces[at : at + 2])]
    quick, thorough = Seen(), Seen()
    for piece in pieces:
        quick.feed(piece, is_repeated=True)
        thorough.feed(piece, is_repeated=False)
        assert quick.events == thorough.events
        if quick.events and isinstance(quick.events[-1], tuple) and quick.events[-1][0] in (400, 431, 505):
            return  # nothing is parsed on such a connection


def chat(length: bytes = b"2", body: bytes = b"{}", other: bytes = b"X-A: 1\r\n") -> bytes:
    return written(LINES[0], other, length, body, is_length_last=False)


def test_third_request_with_the_same_head_is_recognized_whatever_its_length() -> None:
    seen = Seen()
    for count, request in enumerate((chat(), chat(b"3", b"{ }"), chat(), chat(b"12", b"123456789012"))):
        seen.feed(request, is_repeated=True)
        assert seen.recognized == max(0, count - 1)
    assert seen.events[-1] == (True, 12, b"123456789012")
    (named, length, _), *_ = [event for event in seen.events[-2:] if isinstance(event, tuple) and len(event) == 3]
    assert (dict(named)["content-length"], length) == ("12", 12)


def test_head_with_another_field_is_parsed() -> None:
    seen = Seen()
    for request in (chat(), chat(), chat(other=b"X-A: 2\r\n"), chat()):
        seen.feed(request, is_repeated=True)
    assert seen.recognized == 0


def test_head_that_asks_for_the_end_of_its_connection_or_for_an_upgrade_is_not_kept() -> None:
    old, keep = LINES[3], b"Connection: keep-alive\r\n"
    for request in (written(old, keep, b"2", b"{}", is_length_last=True), chat(other=b"Upgrade: h2c\r\n")):
        seen = Seen()
        for _ in range(2):
            seen.feed(request, is_repeated=True)
        assert seen.parser._head is None


def test_rest_of_a_request_that_looks_like_the_next_one_is_none() -> None:
    smuggled = chat()
    for begun in (chat(b"%d" % len(smuggled), b""), b"POST /x HTTP/1.1\r\nX-Long: "):
        seen = Seen()
        for request in (chat(), chat(), begun):
            seen.feed(request, is_repeated=True)
        seen.feed(smuggled, is_repeated=True)
        assert seen.recognized == 0


def test_only_a_whole_request_is_split() -> None:
    seen = Seen()
    for _ in range(2):
        seen.feed(chat(), is_repeated=True)
    head = seen.parser._head
    assert isinstance(head, RepeatedHead)
    assert head.split(chat(b"3", b"{ }")) == (b"3", b"{ }")
    for length, body in ((b"3", b"{}"), (b"1", b"{}"), (b"1_2", b"123456789012"), (b"0000000000002", b"{}")):
        assert head.split(chat(length, body)) is None
