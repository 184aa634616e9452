"""Concurrent calls that the gateways of a fleet may make together: how many of the slots each may use.

A slot is used by one gateway at a time. So a gateway gives a slot up before it says so, and uses a new one only after
the store has granted it. `storage.shared` keeps how many each holds; `fleet.slots` applies the shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

SLOTS_HELD_S = 5.0
"""How long a gateway holds its slots without another request."""
TURN_S = 0.5
"""How long it is a gateway's turn where there are fewer slots than gateways that need one."""

# Load comes in bursts: what was needed a moment ago is needed again.
_NEED_KEPT_S = 2.5


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """The request of a gateway for slots of one limit."""

    limit: int
    """Slots of all gateways together. If they disagree, the smallest limit counts. 0: this gateway leaves."""
    holds: int
    """Slots that this gateway may use until it has the answer."""
    need: int
    """Slots that it could use now."""
    gateways: int = 1
    """Gateways that it knows of. Until so many have sent a request, none gets more than an equal part: the store may
    have lost what they hold."""


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """The store's answer to a `SlotRequest`."""

    holds: int
    """Slots that this gateway may use now; at least those that it held."""
    fair: int
    """Slots that it should hold, given the needs of all: it gives up more, and gets less once others give up theirs."""


def granted(request: SlotRequest, replica: str, others: Mapping[str, SlotRequest], turn: int) -> SlotGrant:
    """Returns the grant for the gateway `replica`; `others` are the latest requests of the others, with what they hold
    since then. `turn` is the number of the present turn."""
    limit = min([request.limit, *(other.limit for other in others.values())])
    needs = {name: other.need for name, other in others.items()} | {replica: request.need}
    fair = fair_shares(limit, needs, turn)[replica]
    if len(needs) < request.gateways:
        fair = min(fair, limit // request.gateways)
    free = limit - sum(other.holds for other in others.values())
    return SlotGrant(max(request.holds, min(fair, free)), fair)


def fair_shares(limit: int, needs: Mapping[str, int], turn: int) -> dict[str, int]:
    """Divides the slots: no need is met while a smaller one is not (max-min fairness). What none needs is divided
    equally, so that the next call at any gateway finds a slot. If there are fewer slots than gateways that need one,
    they take turns."""
    names = sorted(needs)
    order = [names[(place + turn) % len(names)] for place in range(len(names))]
    needing = [name for name in order if needs[name]]
    if limit < len(needing):
        return {name: int(name in needing[:limit]) for name in names}
    order.sort(key=needs.__getitem__)
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
    """This gateway's share of one limit. Follows `request`, then `grant`; durations in seconds."""

    __slots__ = ("_asked_at", "_granted_at", "_peak", "_peak_before", "_peak_since", "fair", "held", "is_shared")

    def __init__(self) -> None:
        self.held = self.fair = 0
        self.is_shared = False
        """True from the first grant on."""
        self._asked_at = self._granted_at = -inf
        self._peak = self._peak_before = 0
        self._peak_since = -inf

    def is_due(self, in_use: int, waiting: int, now: float, each_s: float) -> bool:
        """Returns whether a request is due: there is something to get or to give up, or `each_s` has passed."""
        is_settled = self.is_shared and self.held == self.fair
        return bool(in_use or waiting) or not is_settled or now >= self._asked_at + each_s

    def request(
        self, limit: int, in_use: int, waiting: int, gateways: int, now: float, *, is_alone: bool = False
    ) -> SlotRequest:
        """Gives up what others should have, and returns the request for the store. `usable` must be applied before it
        is sent. `is_alone`: the last exchange failed; then it keeps what it uses without the store."""
        if is_alone:
            kept = self.usable(limit, gateways, now, is_connected=False) or 0
        else:
            kept = min(limit, self.held, self.fair) if now < self._granted_at + SLOTS_HELD_S else 0
        self.held = max(in_use, kept)
        self._asked_at = now
        number = in_use + waiting
        # With few slots a need of the past would keep them from others.
        need = number if limit <= gateways else self._needed(number, now)
        return SlotRequest(limit, self.held, min(limit, need), gateways)

    def grant(self, grant: SlotGrant) -> None:
        self.held, self.fair, self._granted_at, self.is_shared = grant.holds, grant.fair, self._asked_at, True

    def usable(self, limit: int, gateways: int, now: float, *, is_connected: bool) -> int | None:
        """Returns how many slots calls may use; None: all, since no other gateway is known.

        Without the store these are the slots held, at least one. When the others may have them, it is an equal part
        of the limit. `gateways`: those at the last exchange, this one included.
        """
        if is_connected and self.is_shared:
            return self.held
        if gateways == 1 and not self.is_shared:
            return None
        is_held = self.is_shared and now < self._granted_at + SLOTS_HELD_S
        return max(1, self.held if is_held else limit // gateways)

    def _needed(self, number: int, now: float) -> int:
        if now >= self._peak_since + _NEED_KEPT_S:
            self._peak_before = self._peak if now < self._peak_since + 2 * _NEED_KEPT_S else 0
            self._peak, self._peak_since = number, now
        self._peak = max(self._peak, number)
        return max(self._peak, self._peak_before)
