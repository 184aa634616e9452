"""The log line of a call, and those of recent calls in bounded memory. It never contains a prompt or a key.

Owns its fields and their order. `proxy.telemetry.recorder` decides when it is written, `admin.api.calls` shows the
recent ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from llm_guard.outcome import Disposition
from llm_guard.proxy.call import Attempt, Call


class AttemptLine(Struct, gc=False):
    """One attempt. Fields with their usual value are left out."""

    deployment: str
    outcome: str
    waited_s: float
    """Time that the call waited before the attempt."""
    started_s: float
    """Time from the call's arrival to the start of the attempt."""
    duration_s: float
    answered_s: float | UnsetType = UNSET
    """Time from its start to its first token, where more followed."""
    waited_for: str | UnsetType = UNSET
    breaker: str | UnsetType = UNSET
    hedge: bool | UnsetType = UNSET
    key: str | UnsetType = UNSET
    """Name of the upstream's key, where it has several or reads it from a file."""
    resume_mode: str | UnsetType = UNSET
    translated_to: str | UnsetType = UNSET
    """The upstream's dialect, where it is not the client's."""
    dropped: list[str] | UnsetType = UNSET
    """Names of what the translated request has lost."""
    reason: str | UnsetType = UNSET
    next_step: str | UnsetType = UNSET
    budget_left: float | UnsetType | None = UNSET


class SkippedLine(Struct, gc=False):
    """A deployment that was not tried."""

    deployment: str
    reason: str
    failed_calls: list[str] | UnsetType = UNSET
    """Ids of the last failed calls that caused it, the newest first."""


class CallLine(Struct, gc=False):
    """The log line. Seconds are rounded to 0.1 ms, `overhead_s` to the microsecond. structlog adds the last three
    fields."""

    request_id: str
    method: str
    path: str
    model: str | None
    route: str | None
    outcome: str
    status: int | None
    stream: bool
    duration_s: float
    overhead_s: float
    attempts: list[AttemptLine]
    trace_id: str | UnsetType = UNSET
    """32 hexadecimal digits, as in `traceparent`."""
    ttft_s: float | UnsetType = UNSET
    skipped: list[SkippedLine] | UnsetType = UNSET
    client: str | UnsetType = UNSET
    tokens: dict[str, int] | UnsetType = UNSET
    refused_by: str | UnsetType | None = UNSET
    reason: str | UnsetType = UNSET
    gave_up: str | UnsetType | None = UNSET
    cache: str | UnsetType = UNSET
    age_s: float | UnsetType = UNSET
    fallback_response: str | UnsetType = UNSET
    dead_letter_id: str | UnsetType = UNSET
    deferred_id: str | UnsetType = UNSET
    background_purpose: str | UnsetType = UNSET
    injected_faults: list[str] | UnsetType = UNSET
    """Faults that operators have injected into its attempts: its failures are not the providers'."""
    event: str | UnsetType = UNSET
    level: str | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET


def call_line(call: Call, outcome: str, tokens: dict[str, int], now: float, overhead_s: float) -> CallLine:
    """Returns the log line of a call without its last three fields. `outcome` and `tokens` are the call's."""
    line = CallLine(
        request_id=call.id,
        method=call.method,
        path=call.path,
        model=call.model,
        route=call.route.alias if call.route is not None else None,
        outcome=outcome,
        status=call.sent_status,
        stream=call.is_stream,
        duration_s=int((now - call.started_at) * 1e4 + 0.5) / 1e4,  # as `_rounded`, which would be four calls here
        overhead_s=int(overhead_s * 1e6 + 0.5) / 1e6,
        attempts=[_attempt_line(attempt, call, now) for attempt in call.attempts],
    )
    if call.trace_id:
        line.trace_id = f"{call.trace_id:032x}"
    if call.first_token_at is not None:
        line.ttft_s = _rounded(call.first_token_at - call.started_at)
    if call.skipped:
        line.skipped = [
            SkippedLine(skipped.deployment, skipped.why, [*skipped.failed_calls] or UNSET) for skipped in call.skipped
        ]
    if call.client_key is not None:
        line.client = call.client_key
        line.tokens = tokens or UNSET
    if call.refusal is not None:
        line.refused_by = call.refusal.by
        line.reason = call.refusal.message
    elif call.failure is not None:
        line.reason = call.failure.detail
        line.gave_up = call.gave_up
        if call.failed_by is not None:
            line.refused_by = call.failed_by
    if call.disposition is not None:
        _add_disposition(line, call.disposition)
    return line


def tokens_of(call: Call) -> dict[str, int]:
    """Returns the tokens of a call: input and output as counted by the provider, cached ones of the input, and wasted
    ones, which were generated but never reached the client. Counts of 0 are left out."""
    found: dict[str, int] = {}
    usage, wasted = call.usage, call.wasted_tokens
    for attempt in call.attempts:
        if attempt.failure is not None:
            wasted += wasted_by(attempt)
    if prompt := usage.prompt:
        found["input"] = prompt
    if usage.output:
        found["output"] = usage.output
    if usage.cached:
        found["cached"] = usage.cached
    if wasted:
        found["wasted"] = wasted
    return found


def log_ids(call: Call) -> dict[str, str]:
    """Returns the ids that identify the call in any other log line."""
    ids = {"request_id": call.id}
    if call.trace_id:
        ids["trace_id"] = f"{call.trace_id:032x}"
    return ids


def wasted_by(attempt: Attempt) -> int:
    """Returns the output tokens of a failed attempt that were held back when it died, or that lost a race."""
    if attempt.answered_at is not None:
        return attempt.wasted
    return attempt.watch.tokens if attempt.watch is not None else 0


def _add_disposition(line: CallLine, disposition: Disposition) -> None:
    if disposition.cache:
        line.cache = disposition.cache
    if disposition.age_s is not None:
        line.age_s = _rounded(disposition.age_s)
    if disposition.fallback:
        line.fallback_response = disposition.fallback
    if disposition.dead_letter_id:
        line.dead_letter_id = disposition.dead_letter_id
    if disposition.deferred_id:
        line.deferred_id = disposition.deferred_id
    if disposition.background_purpose:
        line.background_purpose = disposition.background_purpose
    if disposition.injected_faults:
        line.injected_faults = [*disposition.injected_faults]


def _attempt_line(attempt: Attempt, call: Call, now: float) -> AttemptLine:
    started_at, ended_at = attempt.started_at, attempt.ended_at or now
    line = AttemptLine(
        deployment=attempt.target.deployment.label,
        outcome=attempt.outcome,
        waited_s=int(attempt.waited_s * 1e4 + 0.5) / 1e4,
        started_s=int((started_at - call.started_at) * 1e4 + 0.5) / 1e4,
        duration_s=int((ended_at - started_at) * 1e4 + 0.5) / 1e4,
    )
    if attempt.is_stream and attempt.answered_at is not None:
        line.answered_s = _rounded(attempt.answered_at - started_at)
    if attempt.waited_for:
        line.waited_for = attempt.waited_for
    if attempt.breaker != "closed":
        line.breaker = attempt.breaker
    if attempt.is_hedge:
        line.hedge = True
    if attempt.key is not None:
        line.key = attempt.key.name
    if attempt.resume_mode is not None:
        line.resume_mode = attempt.resume_mode
    if attempt.translation is not None and attempt.translation.is_translated:
        line.translated_to = attempt.translation.dialect
        line.dropped = [*attempt.translation.dropped] or UNSET
    if attempt.failure is not None:
        line.reason = attempt.failure.detail
    if attempt.next_step:
        line.next_step = attempt.next_step
        line.budget_left = attempt.budget_left
    return line


def _rounded(seconds: float) -> float:
    # `round` would take three times as long.
    return int(seconds * 1e4 + 0.5) / 1e4


class Timestamps:
    """Formats instants like structlog, `2026-01-31T23:59:59.123456Z`. The prefix of the current second is cached."""

    __slots__ = ("_beginning", "_second")

    def __init__(self) -> None:
        self._second = -1.0
        self._beginning = ""

    def of(self, wall: float) -> str:
        """Returns the text for `wall`, in seconds since the epoch."""
        micros = int((wall - self._second) * 1e6)
        if not 0 <= micros < 1_000_000:
            self._second = floor(wall)
            micros = int((wall - self._second) * 1e6)
            self._beginning = f"{datetime.fromtimestamp(self._second, UTC):%Y-%m-%dT%H:%M:%S}."
        return f"{self._beginning}{str(1_000_000 + micros)[1:]}Z"  # the format `06d` would take twice as long


CallFate = Literal["well", "failed", "turned_away", "own_doing"]
"""Class of a finished call. turned_away: it failed without an attempt, as when a breaker is open: in an outage these
are many, and operators look for the failures before them. own_doing: neither the gateway nor an upstream could have
served it."""

_SHARES: dict[CallFate, float] = {"well": 0.25, "failed": 0.375, "turned_away": 0.125, "own_doing": 0.25}
_FAILED: tuple[CallFate, ...] = ("failed", "turned_away")
_BESIDE_BYTES = 120
"""Memory per line beyond its text: CPython 3.11, 64 bits."""


@dataclass(frozen=True, slots=True)
class BufferSize:
    """The number of lines, and how many of them are of failed calls."""

    calls: int
    failed: int


class RecentCalls:
    """Keeps a ring buffer for each fate, so that a flood of refused calls displaces only other refused calls."""

    def __init__(self, calls: int = 1000, memory: int = 1 << 24) -> None:
        """Keeps at most `calls` lines of each fate; `memory` is in bytes, for all lines together."""
        self._rings: dict[CallFate, _Ring] = {fate: _Ring() for fate in _SHARES}
        self.limit(calls, memory)

    def limit(self, calls: int, memory: int) -> None:
        """Changes the limits, and drops what exceeds them, the oldest first."""
        for fate, ring in self._rings.items():
            ring.most, ring.most_bytes = calls, int(memory * _SHARES[fate])
            ring.shrink()

    def keep(self, line: bytes, ended_at: float, fate: CallFate) -> None:
        """Adds the line of a finished call; `ended_at` must not decrease."""
        ring: _Ring = self._rings[fate]  # as a C struct in the compiled build
        ring.lines.append((ended_at, line))
        ring.bytes += len(line) + _BESIDE_BYTES
        if ring.bytes > ring.most_bytes or len(ring.lines) > ring.most:
            ring.shrink()

    def newest(self) -> Iterator[bytes]:
        """Returns all lines, that of the latest call first."""
        return _newest(self._rings.values())

    def newest_failed(self) -> Iterator[bytes]:
        """Returns the lines of failed calls, that of the latest call first."""
        return _newest([self._rings[fate] for fate in _FAILED])

    def try_find(self, beginning: bytes) -> bytes | None:
        """Returns the line that begins with `beginning`, if any."""
        for ring in self._rings.values():
            for _, line in ring.lines:
                if line.startswith(beginning):
                    return line
        return None

    def snapshot(self) -> BufferSize:
        failed = sum(len(self._rings[fate].lines) for fate in _FAILED)
        return BufferSize(sum(len(ring.lines) for ring in self._rings.values()), failed)


class _Ring:
    """The latest lines of one fate, and the memory that they take."""

    __slots__ = ("bytes", "lines", "most", "most_bytes")

    def __init__(self) -> None:
        self.lines: deque[tuple[float, bytes]] = deque()
        self.bytes = 0
        self.most = self.most_bytes = 0

    def shrink(self) -> None:
        while self.lines and (self.bytes > self.most_bytes or len(self.lines) > self.most):
            _, line = self.lines.popleft()
            self.bytes -= len(line) + _BESIDE_BYTES


def _newest(rings: Iterable[_Ring]) -> Iterator[bytes]:
    every = sorted((kept for ring in rings for kept in ring.lines), key=_ended_at, reverse=True)
    return (line for _, line in every)


def _ended_at(kept: tuple[float, bytes]) -> float:
    return kept[0]
