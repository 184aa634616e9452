"""Checks whether large JSON that is relayed in pieces is complete when it ends.

Counts brackets and reads no values: of a response that is too large to be read whole, only its end is checked, and that
it contains the names of the required members.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

from llm_guard.clock import Clock
from llm_guard.outcome import FailureKind
from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_client.errors import UpstreamError
from llm_guard.proxy.http_client.interfaces import Inbox, Wire
from llm_guard.proxy.response.content_decoding import PieceInflater, is_packed

_MOST_INFLATED_BYTES = 16 << 20
"""Most bytes that one piece may inflate to. Beyond it the encoding is a decompression bomb, and is not inspected."""
_WHOLE_TEXTS = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
"""Matches up to the end of the last complete string. Without it the regex would try each quotation mark in an
incomplete one."""
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REST_OF_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_PIECE_BYTES = 1 << 18
_LONGEST_NAME = 32


class CheckedExchange:
    """An exchange with a JSON body that raises in place of a clean end if the JSON is incomplete or lacks a member.

    The last byte is held back until the end is known: otherwise the client of a response with a Content-Length would
    have all of it by then.
    """

    def __init__(self, exchange: Exchange, held: bytes, last: bytes, end: JsonCompleteness, clock: Clock) -> None:
        """`held` was read of the body and is passed on before the rest is read; `last` is the byte after it."""
        self.status, self.reason, self.headers = exchange.status, exchange.reason, exchange.headers
        self._exchange = exchange
        self._unread = held
        self._last = last
        self._end = end
        self._clock = clock

    async def read(self) -> bytes:
        """Reads the next piece, like an Exchange. Raises UpstreamError as well for JSON that is incomplete, or lacks
        what is expected."""
        unread, self._unread = self._unread, b""
        for at in range(0, len(unread), _PIECE_BYTES):
            self._end.feed(unread[at : at + _PIECE_BYTES])
            await self._clock.sleep(0)  # 16 MiB would delay every other call by 40 ms
        last = self._last
        if unread:
            self._end.feed(last)
        chunk = await self._exchange.read()
        if chunk:
            self._end.feed(chunk)
            self._last = chunk[-1:]
            return last + chunk[:-1]
        if not self._end.is_whole:
            raise UpstreamError(FailureKind.TRUNCATED, "the JSON of the response was cut off")
        if missing := self._end.missing:
            why = f"the JSON of the response has no {missing}"
            raise UpstreamError(FailureKind.MALFORMED, why, is_shape_only=True)
        self._last = b""
        return last

    def abort(self) -> None:
        """Closes the connection, like an Exchange."""
        self._exchange.abort()

    def take_over(self, inbox: Inbox) -> Wire:
        """Switches to raw bytes after an upgrade, like an Exchange."""
        return self._exchange.take_over(inbox)


class JsonCompleteness:
    """Follows the JSON of one response as it arrives."""

    def __init__(self, encoding: str, names: Iterable[str] = ()) -> None:
        """`encoding`: the response's content-encoding, which must be readable; "" without one. `names`: members that it
        must contain somewhere."""
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
        """True if the body may end here, or if that cannot be known."""
        if self._is_unknown:
            return True
        has_ended = self._inflater is None or self._inflater.has_ended
        return has_ended and self._has_begun and self._depth == 0 and not self._is_in_text and not self._is_broken

    @property
    def missing(self) -> str:
        """The names that have not occurred, for messages; "" if there are none, or if that cannot be known."""
        return "" if self._is_unknown else ", ".join(sorted(name.decode().strip('"') for name in self._missing))

    def feed(self, piece: bytes) -> None:
        """Processes the next piece of the body."""
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
            # Clients ignore what follows the end of a compressed body.
            self._is_broken = not self._has_ended()

    def _has_ended(self) -> bool:
        return self._has_begun and self._depth == 0 and not self._is_in_text

    def _count(self, plain: bytes) -> None:
        """Counts the brackets outside strings."""
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
        if quote:  # a string that continues in the next piece
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
        """Returns what follows the string in which the last piece ended."""
        begin = 1 if self._is_escaped and plain else 0
        end = _REST_OF_TEXT.match(plain, begin)
        if end is None:
            self._is_escaped = _is_escaping(plain[begin:]) if plain else self._is_escaped
            return b""
        self._is_in_text = self._is_escaped = False
        return plain[end.end() :]


def _is_escaping(text: bytes) -> bool:
    """Returns whether a string continues after this piece with the second half of an escape."""
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
