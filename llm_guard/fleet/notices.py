"""The notices of alerts in a fleet: of those about one cause, one gateway sends all.

The policy is in `webhooks.notice_sharing`. Notices about the gateway itself are never shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from llm_guard.clock import Clock
from llm_guard.fleet.names import FleetNames
from llm_guard.resilience.causes.cause import IncidentCause
from llm_guard.storage.shared.exchange_store import Leases
from llm_guard.webhooks.notice_sharing import NoticeState, NoticeTurn, wants_lease

_LEASE_S = 3.0
_ALONE_AFTER_S = 3.0
"""Seconds without the store after which each gateway sends by itself."""
_SUBJECT = "notice:"


class FleetNotices:
    """Implements `webhooks.notice_sharing.NoticeSharing`."""

    def __init__(self, names: FleetNames, clock: Clock) -> None:
        self._names = names
        self._clock = clock
        self._states: Callable[[], Mapping[IncidentCause, NoticeState]] = dict
        self._others: dict[str, tuple[NoticeState, ...]] = {}
        self._held_until: dict[str, float] = {}
        self._alone_from = float("-inf")

    def connect(self, states: Callable[[], Mapping[IncidentCause, NoticeState]]) -> None:
        """`states` returns the state of this gateway's notices, by cause."""
        self._states = states

    def turn(self, cause: IncidentCause) -> NoticeTurn:
        """Returns whether this gateway sends. Undecided until the first exchange after an alert fired, a tenth of a
        second: then it does not."""
        now = self._clock.now()
        if now >= self._alone_from or _is_own(cause):
            return NoticeTurn(is_ours=True)
        subject = self._names.of(cause.key)
        return NoticeTurn(self._held_until.get(subject, now) > now, self._others.get(subject, ()))

    def summaries(self) -> dict[str, NoticeState]:
        """Returns what to publish, by subject."""
        return {self._names.of(cause.key): state for cause, state in self._states().items() if not _is_own(cause)}

    def wanted(self, summaries: Mapping[str, NoticeState]) -> dict[str, float]:
        """Returns the leases that are wanted, each with the seconds, according to what this gateway publishes."""
        return {
            f"{_SUBJECT}{subject}": _LEASE_S
            for subject, own in summaries.items()
            if wants_lease(own, self._others.get(subject, ()))
        }

    def conclude(self, others: Iterable[Mapping[str, NoticeState]], found: Leases, now: float) -> None:
        """Notes what the others have published, and the leases that this gateway holds."""
        by_subject: dict[str, tuple[NoticeState, ...]] = {}
        for states in others:
            for subject, state in states.items():
                by_subject[subject] = (*by_subject.get(subject, ()), state)
        self._others = by_subject
        self._held_until = {
            subject.removeprefix(_SUBJECT): now + seconds
            for subject, seconds in found.held.items()
            if subject.startswith(_SUBJECT)
        }
        self._alone_from = now + _ALONE_AFTER_S


def _is_own(cause: IncidentCause) -> bool:
    return cause.kind == "gateway"
