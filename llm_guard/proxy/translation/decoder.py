"""The view of a stream whose events are translated: the upstream's bytes are judged as always, and whole events become
the client's.

An end is written only after the stream has shown its own, so that no client can take a cut response for a whole one.
"""

from __future__ import annotations

from llm_guard.dialects import DialectName
from llm_guard.dialects.sse import split_before
from llm_guard.dialects.translation.canonical import InvalidCallError
from llm_guard.dialects.translation.error_bodies import translated_error_event
from llm_guard.dialects.translation.stream_translation import StreamTranslator
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.streams.decoder import PlainStreamDecoder

_STATUS_OF_ERROR = 502
"""An error inside a stream has no status of its own."""


def untranslatable(error: Exception, what: str) -> Failure:
    """Returns the failure of a response that cannot be read or expressed; `what` it is, in one word."""
    kind = FailureKind.BAD_SAMPLE if isinstance(error, InvalidCallError) else FailureKind.MALFORMED
    return Failure(kind, f"sent a {what} that cannot be translated ({error})")


class TranslatingStreamDecoder:
    """Implements `proxy.call.StreamDecoder`."""

    takes_events = True
    """Always: whole events are passed on alone."""
    is_compressed = False

    def __init__(
        self, view: PlainStreamDecoder, translator: StreamTranslator, client: DialectName, request_id: str
    ) -> None:
        """`view` is that of the upstream's stream, inflated."""
        self._view = view
        self._translator = translator
        self._client = client
        self._request_id = request_id
        self._failure: Failure | None = None
        self._is_over = False
        """True after a failure or an error event."""
        self.watch = view.watch
        self.suppressed = b""

    @property
    def is_closed(self) -> bool:
        """True if no more of the stream may be passed on."""
        return self._is_over or self._view.is_closed

    @property
    def has_ended(self) -> bool:
        """True if the client's terminal event has been written."""
        return self._translator.has_ended

    @property
    def failure(self) -> Failure | None:
        """A failure found in the stream, or in its translation; None if there is none."""
        return self._failure or self._view.failure

    def feed(self, chunk: bytes) -> bytes:
        """Takes a chunk; returns the client's events."""
        if self._is_over:
            return b""
        block, error = self._view.feed(chunk), self.watch.error
        if error is None:
            return self._translated(block)
        passed = self._translated(split_before(block, error)[0])
        if not self._is_over:
            self.suppressed = translated_error_event(error, _STATUS_OF_ERROR, self._client, self._request_id)
            self._is_over = True
        return passed

    @property
    def missing_end(self) -> bytes:
        """Returns the end that the client still lacks, if the stream has shown its own."""
        if not self.watch.has_ended or self.watch.error is not None or self._failure is not None:
            return b""
        try:
            return self._translator.finish()
        except ValueError as error:
            self._fail(error)
            return b""

    def trailing_bytes(self) -> bytes:
        return self.missing_end

    def _translated(self, block: bytes) -> bytes:
        try:
            return self._translator.feed(block)
        except ValueError as error:
            self._fail(error)
            return self._translator.written()

    def _fail(self, error: ValueError) -> None:
        self._failure = untranslatable(error, "stream")
        self._is_over = True
