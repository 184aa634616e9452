"""Stream settings of a route: recovery after a cut, buffering at the beginning, and keep-alives.

Also decides after which failures a stream may continue elsewhere. Streams are joined in `dialects.resume.transcript`;
`resilience.retry.decision` picks the deployment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llm_guard.outcome import Failure, Source
from llm_guard.resilience.units import Count, Seconds, Unit

ENDING_S = 2.0
"""After the evidence of its end a stream may take this long for the rest: a usage chunk, `[DONE]`, the end of the
body. OpenRouter and vLLM send theirs at once; connections that are never closed have been seen behind proxies."""


def parse_recover(value: object) -> str:
    """Parses `off`, `auto`, `continue` or `restart`; raises ValueError."""
    if value is False:  # YAML parses a bare `off` as False
        return "off"
    if value in ("off", "auto", "continue", "restart"):
        return str(value)
    raise ValueError("must be off, auto, continue or restart")


StreamEnd = Literal["strict", "lenient"]
"""Accepted ends of an upstream's chat streams. strict: a finish_reason; lenient: also `[DONE]` alone."""
ResumePolicy = Annotated[
    Literal["off", "auto", "continue", "restart"], Unit(parse_recover, {"enum": ["off", "auto", "continue", "restart"]})
]

JOIN_S = 10.0
"""Seconds, from the first text of a stream that continues another one, for which its text is held while it has not
repeated the end of what was sent. Models that repeat it at all do so at the beginning."""


@dataclass(frozen=True, slots=True)
class PrebufferSettings:
    """Holding back ends with the first of these limits."""

    tokens: Count = 20
    """Events with content."""
    time: Seconds = 0.5
    """Seconds, from the first token."""


@dataclass(frozen=True, slots=True)
class KeepAliveSettings:
    interval: Seconds = 15.0
    """Seconds of silence before the client is sent a keep-alive, and between keep-alives."""
    before_headers: bool = False
    """True if keep-alives may precede any upstream's response: a later failure is an error event under status 200."""
    unary: bool = False
    """True if calls that are not streamed get keep-alives too: blank lines before the JSON."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    recover: ResumePolicy = "auto"
    """When a stream dies after its first token: off, an error event; auto, another attempt continues where it ended, at
    deployments that accept the text so far as the beginning of their response; continue, at any, by an instruction
    where they do not; restart, one that begins again and repeats word for word what was sent."""
    prebuffer: PrebufferSettings | None = None
    """None: nothing is held back after the first token."""
    keepalive: KeepAliveSettings | None = KeepAliveSettings()
    """None: no keep-alives are sent."""


def why_cut(upstream: str, *, lacks_finish: bool) -> str:
    """Returns why a stream that ended by itself is incomplete; `lacks_finish`: `stream_end: lenient` would accept
    it."""
    why = "the stream ended without its terminal event"
    if not lacks_finish:
        return why
    return f"{why} (if this server never sends one, set upstreams.{upstream}.stream_end: lenient)"


def may_recover(failure: Failure) -> bool:
    """Returns whether another attempt may continue a stream that this failure has ended."""
    return failure.kind.source is Source.UPSTREAM and not failure.kind.is_final and failure.limit != "total"


def effective_recover(recover: ResumePolicy, *, takes_prefill: bool) -> ResumePolicy:
    """Resolves `auto`: off if none of a route's deployments accepts the beginning of a response (`takes_prefill`)."""
    return "off" if recover == "auto" and not takes_prefill else recover
