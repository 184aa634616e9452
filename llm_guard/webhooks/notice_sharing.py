"""Which of several gateways sends the notices about a cause that all of them see.

One at a time has the lease of a cause, and sends: the first notice, a more severe one, and the end. It
publishes what was sent, so that another one can go on. Without a fleet each gateway sends by itself.
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
    """State of the notice about a cause at one gateway, which has alerts with this cause, or had some until now."""

    id: str
    """Id of the notice."""
    told: Severity | None
    """Highest severity that was delivered, by this gateway or another; None: nothing was."""
    worst: Severity | None
    """Highest severity of the alerts that fire here and are not silenced; None: none does."""
    fires: bool = False
    """An alert fires here, silenced or not."""
    ended: tuple[str, ...] = ()
    """Ids of the notices about this cause that have ended lately, with the end delivered."""
    can_send: bool = True
    """False without a webhook, or if the last notice could not be delivered for long."""
    age_s: float = 0.0
    """Seconds since the first alert."""

    @property
    def is_over(self) -> bool:
        """True if the end of this notice was delivered."""
        return self.id in self.ended


@dataclass(frozen=True, slots=True)
class NoticeTurn:
    """Whether this gateway sends the notices about a cause, and their state at the others."""

    is_ours: bool
    others: tuple[NoticeState, ...] = ()

    @property
    def ended(self) -> frozenset[str]:
        """Ids of notices that another gateway has ended."""
        return frozenset(id_ for state in self.others for id_ in state.ended)


class NoticeSharing(Protocol):
    """Decides which gateway sends, implemented by `fleet.notices`."""

    def turn(self, cause: IncidentCause) -> NoticeTurn: ...


class NotShared:
    """Implements `NoticeSharing` for a gateway without a fleet."""

    def turn(self, _cause: IncidentCause) -> NoticeTurn:
        return NoticeTurn(is_ours=True)


def wants_lease(own: NoticeState, others: Iterable[NoticeState]) -> bool:
    """Returns whether a gateway asks for the lease. Of those that can send it is the one with the most severe alert,
    because that is the one to act on."""
    if own.is_over:
        return False
    able = [other for other in others if other.can_send and not other.is_over]
    return all(_weight(own) <= _weight(other) for other in able) if own.can_send else not able


def _weight(state: NoticeState) -> int:
    return _NOTHING_FIRES if state.worst is None else rank(state.worst)
