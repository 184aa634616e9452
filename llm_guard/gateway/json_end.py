"""Large JSON that passes in pieces: whether it is whole when it ends.

Owns the counting of brackets. Reads no values: of an answer too large to be judged only the end is checked, and that
the names of what it must have are in it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

from llm_guard.call import Exchange, Inbox, Wire
from llm_guard.clock import Clock
from llm_guard.gateway.answer_coding import PieceInflater, is_packed
from llm_guard.gateway.upstream_error import UpstreamError
from llm_guard.outcome import FailureKind

_MOST_INFLATED_BYTES = 16 << 20
"""Of one piece. Beyond it the encoding is a decompression bomb, which is not looked into."""
_WHOLE_TEXTS = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
"""Up to the end of the last text that ends. Without it each quotation mark in one that does not would be tried."""
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REST_OF_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_PIECE_BYTES = 1 << 18
_LONGEST_NAME = 32


class CheckedExchange:
    """An exchange whose body is JSON: it breaks where it would end cleanly, and the JSON is not what it should be.

    The last byte is held back until the end is known. Without it an answer that has a length would be whole by then.
    """

    def __init__(self, exchange: Exchange, held: bytes, last: bytes, end: JsonEnd, clock: Clock) -> None:
        """What was read of the body: `held`, which is passed on before the rest is read, and behind it `last`."""
        self.status, self.reason, self.headers = exchange.status, exchange.reason, exchange.headers
        self._exchange = exchange
        self._unread = held
        self._last = last
        self._end = end
        self._clock = clock

    async def read(self) -> bytes:
        """As of the exchange. Raises UpstreamError as well for JSON that was cut, or has not what is expected."""
        unread, self._unread = self._unread, b""
        for at in range(0, len(unread), _PIECE_BYTES):
            self._end.feed(unread[at : at + _PIECE_BYTES])
            await self._clock.sleep(0)  # 16 MiB would hold up every other call for 40 ms
        last = self._last
        if unread:
            self._end.feed(last)
        chunk = await self._exchange.read()
        if chunk:
            self._end.feed(chunk)
            self._last = chunk[-1:]
            return last + chunk[:-1]
        if not self._end.is_whole:
            raise UpstreamError(FailureKind.TRUNCATED, "the JSON of the answer was cut")
        if missing := self._end.missing:
            why = f"the JSON of the answer has no {missing}"
            raise UpstreamError(FailureKind.MALFORMED, why, is_shape_only=True)
        self._last = b""
        return last

    def abort(self) -> None:
        """As of the exchange."""
        self._exchange.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """As of the exchange."""
        return self._exchange.take_over(inbox)


class JsonEnd:
    """Fed the body of one answer, as it comes over the wire."""

    def __init__(self, encoding: str, names: Iterable[str] = ()) -> None:
        """`encoding`: the answer's content-encoding, which can be read; "" without one. `names`: of members that it
        must have somewhere."""
        self._missing = {f'"{name}"'.encode() for name in names}
        self._tail = b""
        self._inflater = PieceInflater() if is_packed(encoding) else None
        self._depth = 0
        self._has_begun = False
        self._is_in_text = False
        self._is_escaped = False
        self._is_broken = False
        self._is_unknown = False

    @property
    def is_whole(self) -> bool:
        """Whether the body may end here. True as well where that cannot be known."""
        if self._is_unknown:
            return True
        has_ended = self._inflater is None or self._inflater.has_ended
        return has_ended and self._has_begun and self._depth == 0 and not self._is_in_text and not self._is_broken

    @property
    def missing(self) -> str:
        """The names that have not come, for messages; "" without any, and where that cannot be known."""
        return "" if self._is_unknown else ", ".join(sorted(name.decode().strip('"') for name in self._missing))

    def feed(self, piece: bytes) -> None:
        """The next piece of the body."""
        if self._is_unknown or self._is_broken:
            return
        if self._inflater is None:
            self._count(piece)
            return
        inflated = 0
        try:
            for plain in self._inflater.pieces(piece):
                inflated += len(plain)
                if inflated > _MOST_INFLATED_BYTES:
                    self._is_unknown = True
                    return
                self._count(plain)
        except zlib.error:
            # Clients ignore what follows on the end of a compressed body.
            self._is_broken = not self._has_ended()

    def _has_ended(self) -> bool:
        return self._has_begun and self._depth == 0 and not self._is_in_text

    def _count(self, plain: bytes) -> None:
        """Counts the brackets outside texts."""
        if self._missing:
            seen = self._tail + plain
            self._missing = {name for name in self._missing if name not in seen}
            self._tail = seen[-_LONGEST_NAME:]
        if self._is_in_text:
            plain = self._leave_text(plain)
            if self._is_in_text:
                return
        texts = _WHOLE_TEXTS.match(plain)
        end = texts.end() if texts is not None else 0
        rest, quote, text = plain[end:].partition(b'"')
        if quote:  # a text that goes on in the next piece
            self._is_in_text = True
            self._is_escaped = _is_escaping(text)
        outside = _TEXT.sub(b"", plain[:end]) + rest
        if self._has_begun and self._depth == 0 and outside.strip():
            self._is_broken = True
        self._depth += outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")
        self._has_begun = self._has_begun or self._depth > 0 or b"}" in outside or b"]" in outside
        if self._has_ended() and outside.rstrip()[-1:] not in (b"", b"}", b"]"):
            self._is_broken = True

    def _leave_text(self, plain: bytes) -> bytes:
        """What stands behind the text in which the last piece ended."""
        begin = 1 if self._is_escaped and plain else 0
        end = _REST_OF_TEXT.match(plain, begin)
        if end is None:
            self._is_escaped = _is_escaping(plain[begin:]) if plain else self._is_escaped
            return b""
        self._is_in_text = self._is_escaped = False
        return plain[end.end() :]


def _is_escaping(text: bytes) -> bool:
    """Whether a text goes on behind this with the second half of an escape."""
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
