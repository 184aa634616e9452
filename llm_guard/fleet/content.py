"""What a gateway publishes to the others of its fleet, as bytes.

A newer version of the gateway may publish more: unknown fields are ignored, and missing ones have defaults. What cannot
be read is ignored as a whole: it cannot be of this version, or somebody else writes to the store.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec

from llm_guard.resilience.capacity.pace_report import PaceDecision, PaceEvent, PaceReport, PaceState
from llm_guard.resilience.circuit_breaker.caller_evidence import NO_CALLERS, CallersSummary
from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary
from llm_guard.resilience.client_keys.limit_states import ClientUse
from llm_guard.webhooks.notice_sharing import NoticeState


class ReplicaStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the operator's pages show of a gateway."""

    version: str = ""
    config: str = ""
    """Digest of the running config."""
    up_s: float = 0.0
    in_flight: int = 0
    """Calls running now."""
    calls: int = 0
    """Since the start."""
    is_draining: bool = False
    names: str = ""
    """The same at all gateways that share anything with it (`fleet.names`)."""


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one gateway publishes; breakers, notices and clients by subject (`fleet.breakers`, `fleet.notices`,
    `fleet.client_limits`)."""

    breakers: dict[str, BreakerSummary] = {}
    notices: dict[str, NoticeState] = {}
    status: ReplicaStatus = ReplicaStatus()
    clients: dict[str, ClientUse] = {}
    wanted: tuple[str, ...] = ()
    """Concurrency limits of which it needs more slots than it has (`fleet.slots`)."""
    paces: dict[str, PaceReport] = {}
    """By subject (`fleet.paces`)."""


# The summary of a breaker takes 350 bytes, with failing callers up to 1,500.
_MOST_BYTES = 1 << 20
_MOST = 1e12
_MOST_CHARS = 300
_MOST_CALLERS = 100
_MOST_WAITING = 10_000

_read = msgspec.msgpack.Decoder(Content).decode
_write = msgspec.msgpack.Encoder().encode


def encode(content: Content) -> bytes:
    """Returns what this gateway publishes: without the paces and callers if no gateway would read so much, as the rest
    is needed more."""
    found = _write(content)
    if len(found) <= _MOST_BYTES:
        return found
    breakers = {subject: replace(summary, callers=NO_CALLERS) for subject, summary in content.breakers.items()}
    return _write(msgspec.structs.replace(content, breakers=breakers, paces={}))


def decode(content: bytes) -> Content | None:
    """Returns what another gateway has published; None if it cannot be read."""
    if len(content) > _MOST_BYTES:
        return None
    try:
        found = _read(content)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    is_plausible = (
        _is_plausible_status(found.status)
        and all(map(_is_plausible, found.breakers.values()))
        and all(map(_is_plausible_notice, found.notices.values()))
        and all(map(_is_plausible_use, found.clients.values()))
        and all(map(_is_plausible_pace, found.paces.values()))
    )
    return found if is_plausible else None


def _is_plausible_status(status: ReplicaStatus) -> bool:
    numbers, texts = (status.up_s, status.in_flight, status.calls), (status.version, status.config, status.names)
    return max(map(len, texts)) <= _MOST_CHARS and _are_plausible(numbers)


def _is_plausible(summary: BreakerSummary) -> bool:
    numbers = (
        summary.calls, summary.failures, summary.slow_calls, summary.window_s, summary.counted,
        summary.first_sent_s, summary.takes_s, summary.slowest_s, summary.ok_sent_s or 0.0, summary.ok_takes_s,
        summary.recovered_s or 0.0, *summary.rates, *summary.latest_sent_s, *summary.in_flight_s,
        summary.callers.calls, summary.callers.failures, summary.callers.ok_began_s or 0.0,
    )  # fmt: skip
    return _are_plausible(numbers) and _are_plausible_callers(summary.callers)


def _are_plausible(numbers: Collection[float]) -> bool:
    """Returns whether no number is negative, infinite or none (NaN). A sum with NaN is NaN."""
    return min(numbers) >= 0 and sum(numbers) < _MOST


def _are_plausible_callers(callers: CallersSummary) -> bool:
    numbers = (
        number for one in callers.failing for number in (one.calls, one.failures, one.run_began_s or 0.0, one.in_run)
    )
    return (
        len(callers.failing) <= _MOST_CALLERS
        and len(callers.looks) <= _MOST_CALLERS
        and all(0 <= number < _MOST for number in numbers)
        and all(abs(seconds) < _MOST for seconds in callers.looks.values())
    )


def _is_plausible_notice(notice: NoticeState) -> bool:
    return 0 <= notice.age_s < _MOST and all(len(id_) <= _MOST_CHARS for id_ in (notice.id, *notice.ended))


def _is_plausible_use(use: ClientUse) -> bool:
    counts = (use.calls, use.day, use.day_restored, use.day_gone, use.resets)
    return all(0 <= count < _MOST for count in counts) and abs(use.tokens) < _MOST and abs(use.day_tokens) < _MOST


def _is_plausible_pace(report: PaceReport) -> bool:
    counts = (report.term, report.received, report.first, report.in_flight, *(one.count for one in report.waiting))
    return (
        all(0 <= count < _MOST for count in counts)
        and sum(one.count for one in report.waiting) <= _MOST_WAITING
        and all(0 < one.weight < _MOST for one in report.waiting)
        and (report.rate is None or 0 < report.rate < _MOST)
        and all(map(_is_plausible_event, report.events))
        and (report.decision is None or _is_plausible_decision(report.decision))
    )


def _is_plausible_event(event: PaceEvent) -> bool:
    windows = () if event.hint is None else event.hint.windows
    return (
        abs(event.seconds) < _MOST
        and 0 < event.count <= _MOST_WAITING
        and (event.granted_at is None or abs(event.granted_at) < _MOST)
        and all(0 <= window.remaining <= window.limit < _MOST for window in windows)
        and all(window.reset_s is None or 0 <= window.reset_s < _MOST for window in windows)
        and all(0 < window.refill_per_s < _MOST or window.reset_s is None for window in windows)
    )


def _is_plausible_decision(decision: PaceDecision) -> bool:
    members = decision.members.values()
    return (
        0 <= decision.term < _MOST
        and abs(decision.at) < _MOST
        and 0 <= decision.waiting < _MOST
        and all(0 <= one.read < _MOST and 0 <= one.first < _MOST for one in members)
        and all(abs(grant.granted_at) < _MOST for one in members for grant in one.grants)
        and _is_plausible_state(decision.free)
        and (decision.apart is None or _is_plausible_state(decision.apart))
    )


def _is_plausible_state(state: PaceState) -> bool:
    lengths = (state.since_s or 0.0, state.held_s or 0.0, state.held_since_s or 0.0)
    return (state.rate is None or 0 < state.rate < _MOST) and all(abs(length_s) < _MOST for length_s in lengths)
