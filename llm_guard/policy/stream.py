"""How a route treats its streams: what is done when one dies, how much is held back, and who is told to wait.

Owns the settings, and which failure lets a stream go on elsewhere. Does not own how two streams are joined
(`dialect.continuation`), nor who is asked (`policy.next_step`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llm_guard.outcome import Failure, Source
from llm_guard.policy.units import Count, Seconds, Unit

ENDING_S = 2.0
"""After the evidence of its end a stream may take this long for the rest: a usage chunk, `[DONE]`, the end of the
body. OpenRouter and vLLM send theirs at once; connections that are never closed have been seen behind proxies."""


def parse_recover(value: object) -> str:
    """`off`, `auto`, `continue` or `restart`; raises ValueError."""
    if value is False:  # what YAML makes of a bare `off`
        return "off"
    if value in ("off", "auto", "continue", "restart"):
        return str(value)
    raise ValueError("must be off, auto, continue or restart")


StreamEnd = Literal["strict", "lenient"]
"""What ends an upstream's chat streams. strict: a finish_reason; lenient: `[DONE]` alone as well."""
Recover = Annotated[Literal["off", "auto", "continue", "restart"], Unit(parse_recover)]

JOIN_S = 10.0
"""Seconds, from the first text of a stream that is to go on with another: so long its text is held while it has not
repeated the end of what was sent. Models that do so at all begin with it."""


@dataclass(frozen=True, slots=True)
class HoldBackSettings:
    """Whichever comes first ends it."""

    tokens: Count = 20
    """Events with content."""
    time: Seconds = 0.5
    """Seconds, from the first token."""


@dataclass(frozen=True, slots=True)
class WaitingSettings:
    after: Seconds = 15.0
    """Seconds of silence before the client is told that it is not forgotten, then between two such words."""
    before_head: bool = False
    """Also while no upstream has begun to answer: a failure after that is an error event under status 200."""
    unary: bool = False
    """Calls that are not streamed, too: blank lines before the JSON."""

    def applies_to(self, *, is_stream: bool) -> bool:
        return is_stream or self.unary


@dataclass(frozen=True, slots=True)
class StreamSettings:
    recover: Recover = "auto"
    """When a stream dies after its first token: off, an error event; auto, another attempt goes on where it ended, at
    deployments that take the text so far as the beginning of their answer; continue, at any, by an instruction where
    they do not; restart, one that begins anew and repeats what was sent word for word."""
    hold_back: HoldBackSettings | None = None
    """None: nothing is held once the first token is there."""
    waiting: WaitingSettings | None = WaitingSettings()
    """None: the client waits in silence."""


def why_cut(upstream: str, *, lacks_finish: bool) -> str:
    """Why a stream that ended by itself is no whole answer; `lacks_finish`: `stream_end: lenient` would let it pass."""
    why = "the stream ended without its terminal event"
    if not lacks_finish:
        return why
    return f"{why} (if this server never sends one, set upstreams.{upstream}.stream_end: lenient)"


def may_recover(failure: Failure) -> bool:
    """Whether another attempt may go on with a stream that this failure has ended."""
    return failure.kind.source is Source.UPSTREAM and not failure.kind.is_final and failure.limit != "total"


def effective_recover(recover: Recover, *, takes_prefill: bool) -> Recover:
    """What a route does whose deployments take an answer's beginning, at least one of them, or do not."""
    return "off" if recover == "auto" and not takes_prefill else recover
