"""Concurrent calls that the gateways of a fleet may make together: how many of the slots each may use.

A slot is used by one gateway at a time. So a gateway gives a slot up before it says so, and uses a new one only after
the store has granted it. `storage.shared` keeps who holds how many; `fleet.slots` applies the shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

SLOTS_HELD_S = 5.0
"""How long a gateway holds its slots if it does not ask again."""

# Load comes in bursts: what was needed a moment ago is needed again.
_NEED_KEPT_S = 2.5


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What a gateway asks the store for, of one limit."""

    limit: int
    """Slots of all gateways together."""
    holds: int
    """Slots that this gateway may use until it has the answer."""
    need: int
    """Slots that it could use now."""


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """The store's answer to a `SlotRequest`."""

    holds: int
    """Slots that this gateway may use now; at least those that it held."""
    fair: int
    """Slots that it should hold, given the needs of all: it gives up more, and gets less once others give up theirs."""


def granted(request: SlotRequest, replica: str, others: Mapping[str, tuple[int, int]]) -> SlotGrant:
    """Returns the grant for the gateway `replica`; `others` are the slots that each other gateway holds, and its
    need."""
    needs = {name: need for name, (_, need) in others.items()} | {replica: request.need}
    fair = fair_shares(request.limit, needs)[replica]
    free = request.limit - sum(held for held, _ in others.values())
    return SlotGrant(max(request.holds, min(fair, free)), fair)


def fair_shares(limit: int, needs: Mapping[str, int]) -> dict[str, int]:
    """Divides the slots: no need is met while a smaller one is not (max-min fairness). What none needs is divided
    equally, so that the next call at any gateway finds a slot."""
    order = sorted(needs, key=lambda name: (needs[name], name))
    shares, left = {}, limit
    for place, name in enumerate(order):
        shares[name] = min(needs[name], left // (len(order) - place))
        left -= shares[name]
    for place, name in enumerate(order):
        extra = left // (len(order) - place)
        shares[name] += extra
        left -= extra
    return shares


class SlotShare:
    """This gateway's share of one limit. Follows `request`, then `grant` or `lose`; durations in seconds."""

    __slots__ = ("_asked_at", "_fair", "_granted_at", "_held", "_is_shared", "_peak", "_peak_before", "_peak_since")

    def __init__(self) -> None:
        self._held = self._fair = 0
        self._is_shared = False
        """True from the first grant on."""
        self._asked_at = self._granted_at = -inf
        self._peak = self._peak_before = 0
        self._peak_since = -inf

    def request(self, limit: int, in_use: int, waiting: int, now: float) -> SlotRequest:
        """Gives up what others should have, and returns the request for the store. `usable` must be applied before it
        is sent."""
        self._held = min(limit, max(in_use, min(self._held, self._fair)))
        self._asked_at = now
        return SlotRequest(limit, self._held, min(limit, self._needed(in_use + waiting, now)))

    def grant(self, grant: SlotGrant) -> None:
        self._held, self._fair, self._granted_at, self._is_shared = grant.holds, grant.fair, self._asked_at, True

    def usable(self, limit: int, replicas: int, now: float, *, is_connected: bool) -> int | None:
        """Returns how many slots calls may use; None: all, since nothing is known of other gateways.

        Without the store these are the slots held, at least one. When the others may have them, it is an equal part
        of the limit. `replicas`: gateways at the last grant, this one included.
        """
        if not self._is_shared:
            return None
        if is_connected:
            return self._held
        return max(1, self._held if now < self._granted_at + SLOTS_HELD_S else limit // replicas)

    def _needed(self, number: int, now: float) -> int:
        if now >= self._peak_since + _NEED_KEPT_S:
            self._peak_before = self._peak if now < self._peak_since + 2 * _NEED_KEPT_S else 0
            self._peak, self._peak_since = number, now
        self._peak = max(self._peak, number)
        return max(self._peak, self._peak_before)
