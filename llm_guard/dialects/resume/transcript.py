"""Base classes for resuming a stream that died, on another stream.

Transcript records what the client was sent, and Splice joins the next stream to it. Where one text continues another is
found in `dialects.resume.text_join`; the formats are in `dialects.resume.chat`, `dialects.resume.responses` and
`dialects.resume.messages`.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any, Literal

from llm_guard.dialects.sse import SseEvent, Usage, events_in

Prefill = Literal["none", "plain", "prefix", "partial", "continue_final_message"]
"""How a deployment accepts the beginning of a response: not at all; as a last message of the assistant, bare or with
`prefix: true` (Mistral, DeepSeek), `partial: true` (Moonshot, Qwen), `continue_final_message: true` (vLLM, SGLang).
"""

ResumeMode = Literal["prefill", "instruction", "restart"]
"""How the next stream is requested: with the text so far as its beginning, with the text so far and an instruction to
continue, or by repeating the original request.
"""

MAX_TEXT = 1 << 20
"""In characters. A longer response is not kept, and cannot be resumed."""
MAX_KEPT_BYTES = 4 << 20
"""Maximum bytes kept of a stream: some 17,000 chunks of a chat, which take a quarter of a second to read."""
_BATCH_BYTES = 1 << 16


class Splice(ABC):
    """Joins one new stream to what the client was sent."""

    has_diverged = False
    """True if the new stream does not match what was sent before: nothing more of it may be passed on."""
    is_joined = False
    """True after the join: everything from now on is new to the client."""

    @property
    def is_searching(self) -> bool:
        """True while text is buffered that may or may not join. The caller must limit how long that lasts."""
        return False

    @abstractmethod
    def feed(self, block: bytes) -> bytes:
        """Takes whole events of the new stream; returns the events for the client, rewritten to match its first stream
        (id, model, indices, sequence numbers). Never raises, even for invalid events."""


class Transcript(ABC):
    """Records what one call's streams have sent to the client, one after the other.

    Events are stored, compressed from time to time, and parsed only if the stream dies. That costs 0.3 us for a chunk
    of a chat, where parsing it would take 20."""

    def __init__(self) -> None:
        self._raw: list[bytes] = []
        self._raw_bytes = 0
        self._packed: list[bytes] = []
        self.is_strange = False
        """True if something was sent that can be neither put into a request nor compared with a second run, or if it
        was too much to keep."""
        self.has_ended = False
        """True if the client knows why the response ended, so that there is nothing to resume."""
        self._kept_bytes = 0

    def feed(self, block: bytes) -> None:
        """Takes whole events that the client got from its first stream. A splice records its own."""
        self._raw.append(block)
        self._raw_bytes += len(block)
        if self._raw_bytes > _BATCH_BYTES:
            self._pack()

    @abstractmethod
    def resume_modes(self, request: dict[str, Any], prefill: Prefill) -> tuple[ResumeMode, ...]:
        """How this response can be resumed, the best way first, never `restart`; () if it cannot be, as in the middle
        of a tool call, with structured output or several choices."""

    @abstractmethod
    def can_restart(self, request: dict[str, Any]) -> bool:
        """True if a second run can be compared with what was sent."""

    @abstractmethod
    def request(self, request: dict[str, Any], resume_mode: ResumeMode, prefill: Prefill) -> dict[str, Any]:
        """Builds the request for the next stream; does not modify the original."""

    @abstractmethod
    def splice(self, resume_mode: ResumeMode, marker: dict[str, Any]) -> Splice:
        """Creates the splice for a new stream that was requested in this mode. Its first event that the client gets
        carries `marker` in the field `llm_guard`."""

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """Tokens of all streams together, as counted by the provider, else estimated as one per piece of text."""

    @property
    @abstractmethod
    def wasted_tokens(self) -> int:
        """Output tokens that were generated but not passed on: repeated text, and text that was buffered when a stream
        died. One per piece of text."""

    @abstractmethod
    def _take(self, event: SseEvent) -> None:
        """Records one event that the client got."""

    def _fold(self) -> None:
        """Parses the stored events. Must be called before their content is used."""
        packed, self._packed = self._packed, []
        blocks = (zlib.decompress(batch) for batch in packed)
        raw, self._raw, self._raw_bytes = b"".join(self._raw), [], 0
        for block in (*blocks, raw):
            for event in events_in(block):
                self._take(event)

    def _pack(self) -> None:
        self._kept_bytes += self._raw_bytes
        batch = zlib.compress(b"".join(self._raw), level=1)
        self._raw, self._raw_bytes = [], 0
        self._packed.append(batch)
        if self._kept_bytes > MAX_KEPT_BYTES:
            self.is_strange = True
            self._packed.clear()
