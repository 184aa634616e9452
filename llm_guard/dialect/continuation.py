"""A stream that goes on from where another has died: what both sides of the seam have to know.

Owns the nouns: what a client has been told (Transcript) and how the next stream is joined to it (Splice). Does not own
where one text goes on from another (`dialect.seam`), nor what a wire format's events mean (`dialect.chat_continuation`,
`dialect.responses_continuation`, `dialect.messages_continuation`).
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Any, Literal

from llm_guard.dialect.sse import Event, Usage, events_in

Prefill = Literal["none", "plain", "prefix", "partial", "continue_final_message"]
"""How a deployment takes an answer's beginning: not at all; as a last message of the assistant, bare or with
`prefix: true` (Mistral, DeepSeek), `partial: true` (Moonshot, Qwen), `continue_final_message: true` (vLLM, SGLang)."""

Manner = Literal["prefill", "instruction", "restart"]
"""How the next stream is asked for: with the text so far as its beginning, with the text so far and the request to go
on, or as if nothing had happened."""

MAX_TEXT = 1 << 20
"""Characters. A longer answer is not kept, and cannot be gone on with."""
MAX_KEPT_BYTES = 4 << 20
"""What is kept of a stream: some 17,000 chunks of a chat, which take a quarter of a second to read."""
_BATCH_BYTES = 1 << 16


class Splice(ABC):
    """Joins one new stream to what the client has been told."""

    has_diverged = False
    """What comes is not what was sent before: nothing of this stream may be passed on any more."""
    is_joined = False
    """The seam is behind: what comes from now on is new to the client."""

    @property
    def is_searching(self) -> bool:
        """Text is held of which it is not known yet whether it joins. That must not last."""
        return False

    @abstractmethod
    def feed(self, block: bytes) -> bytes:
        """Takes whole events of the new stream; returns the events that the client is to be told, in the terms of its
        first stream (id, model, indices, sequence numbers). Never raises for what a provider may send."""


class Transcript(ABC):
    """What a client has been told by one call's streams, one after the other.

    A stream that does not die is not read: its bytes are kept, and compressed from time to time. That costs 0.3 us for
    a chunk of a chat, where reading it would take 20.
    """

    def __init__(self) -> None:
        self._raw: list[bytes] = []
        self._raw_bytes = 0
        self._packed: list[bytes] = []
        self.is_strange = False
        """Something was sent that cannot be given back, nor compared with a second run; or more than is kept."""
        self.has_ended = False
        """The client knows why the answer stopped: nothing is left to go on with."""
        self._kept_bytes = 0

    def feed(self, block: bytes) -> None:
        """Takes whole events, as the client got them from its first stream; those of a splice are noted by itself."""
        self._raw.append(block)
        self._raw_bytes += len(block)
        if self._raw_bytes > _BATCH_BYTES:
            self._pack()

    @abstractmethod
    def manners(self, request: dict[str, Any], prefill: Prefill) -> tuple[Manner, ...]:
        """How this answer can be gone on with, the best first, `restart` never among them; () when it cannot be, as in
        the middle of a tool call, with structured output or several choices."""

    @abstractmethod
    def can_restart(self, request: dict[str, Any]) -> bool:
        """Whether a second run could be compared with what was sent."""

    @abstractmethod
    def request(self, request: dict[str, Any], manner: Manner, prefill: Prefill) -> dict[str, Any]:
        """The request for the next stream; the original is left as it is."""

    @abstractmethod
    def splice(self, manner: Manner, marker: dict[str, Any]) -> Splice:
        """Joins a new stream, which was asked for in this manner. Its first event that the client sees carries
        `marker` as its field `llm_guard`."""

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """Tokens of all streams in sum, as counted by the provider, else estimated as one per piece of text."""

    @property
    @abstractmethod
    def thrown_away(self) -> int:
        """Tokens of output that were generated and not passed on: what came twice, or held when a stream died. One per
        piece of text."""

    @abstractmethod
    def _take(self, event: Event) -> None:
        """Notes one event that the client got."""

    def _fold(self) -> None:
        """To be called before anything is asked of what was kept."""
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
