"""Which of several gateways sends the notices about a cause that all of them see.

One at a time has the lease of a cause, and sends: the first notice, a more severe one, and the end. The others know
from it what was sent, so that one of them can go on. Without a fleet each gateway sends by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from llm_guard.resilience.alerts.alert import Severity, rank
from llm_guard.resilience.causes.cause import IncidentCause

_NOTHING_FIRES = 99


@dataclass(frozen=True, slots=True)
class NoticeState:
    """What a gateway knows of the notice about a cause. It has alerts of its own with this cause, or had until now."""

    id: str
    """Id of the notice."""
    told: Severity | None
    """Highest severity that was sent, by this gateway or another; None: nothing was."""
    worst: Severity | None
    """Highest severity of the alerts that fire here and are not silenced; None: none does."""
    is_over: bool = False
    """The notice of the end was sent."""


@dataclass(frozen=True, slots=True)
class NoticeTurn:
    """Whether this gateway sends the notices about a cause, and what the others know."""

    is_ours: bool
    others: tuple[NoticeState, ...] = ()

    @property
    def sent(self) -> NoticeState | None:
        """The notice that another gateway knows to be sent; None: there is none that has not ended."""
        known = [state for state in self.others if state.told is not None and not state.is_over]
        return min(known, key=lambda state: rank(state.told or "info"), default=None)


class NoticeSharing(Protocol):
    """Says whose turn it is, implemented by `fleet.notices`."""

    def turn(self, cause: IncidentCause) -> NoticeTurn: ...


class NotShared:
    """Implements `NoticeSharing` for a gateway without a fleet."""

    def turn(self, _cause: IncidentCause) -> NoticeTurn:
        return NoticeTurn(is_ours=True)


def wants_lease(own: NoticeState, others: Iterable[NoticeState]) -> bool:
    """Returns whether a gateway asks for the lease: the one with the most severe alert sends, because its notice is
    the one that wakes somebody."""
    return not own.is_over and all(_weight(own) <= _weight(other) for other in others if not other.is_over)


def _weight(state: NoticeState) -> int:
    return _NOTHING_FIRES if state.worst is None else rank(state.worst)
