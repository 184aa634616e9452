"""Limits of client keys that hold for all gateways of a fleet together: rate, tokens a minute and tokens a day.

Each gateway publishes what it has used, and counts what the others have used as if it were its own. A limit may be
exceeded by what is used between two exchanges; the calls after it wait for longer. `fleet.slots` shares the limits of
concurrent calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_guard.clock import Clock
from llm_guard.fleet.names import FleetNames
from llm_guard.proxy.client_keys.quotas import ClientQuotas
from llm_guard.resilience.client_keys.limit_states import ClientUse
from llm_guard.resilience.client_keys.limits import ClientLimits
from llm_guard.resilience.client_keys.use_elsewhere import UseElsewhere, before_reset

_UNUSED = ClientUse()


class FleetClientLimits:
    """The limits of this gateway's client keys, by subject."""

    def __init__(self, quotas: ClientQuotas, names: FleetNames, clock: Clock) -> None:
        self._quotas = quotas
        self._names = names
        self._clock = clock
        self._elsewhere: dict[str, UseElsewhere] = {}
        self._gateways = 1

    def uses(self) -> dict[str, ClientUse]:
        """Returns what to publish: nothing of keys that were never used."""
        found = {}
        for subject, limits, elsewhere in self._limits():
            use = limits.use()
            elsewhere.follow_reset(use.resets)
            use = limits.use(elsewhere.day_gone(use.day))
            if use.calls or use.day_tokens or use.day_restored or use.day_gone or use.resets:
                found[subject] = use
        return found

    def conclude(self, others: Sequence[tuple[str, Mapping[str, ClientUse]]], now: float) -> None:
        """Counts what the other gateways have used: `others` is what each has published, with its id."""
        self._gateways, wall = len(others) + 1, self._clock.wall()
        for subject, limits, elsewhere in self._limits():
            uses = {replica: found.get(subject, _UNUSED) for replica, found in others}
            self._follow_resets(limits, elsewhere, uses, now)
            day = limits.use().day
            calls, tokens = elsewhere.note(uses, day)
            limits.share(self._gateways, knows_others=True)
            limits.note_elsewhere(calls, tokens, now)
            limits.note_day_elsewhere(day, elsewhere.day_tokens(day), wall)

    def _follow_resets(
        self, limits: ClientLimits, elsewhere: UseElsewhere, uses: dict[str, ClientUse], now: float
    ) -> None:
        """Resets the limits if an operator has reset them at another gateway, and leaves out what was used before."""
        latest = max((use.resets for use in uses.values()), default=0)
        if latest > limits.resets:
            limits.reset(now, self._clock.wall())
            limits.resets = latest
        elsewhere.follow_reset(limits.resets)
        for replica, use in uses.items():
            if use.resets < limits.resets:
                uses[replica] = before_reset(use)

    def are_quiet(self, now: float) -> bool:
        """True if no key is at its rate: then it matters little what the others use meanwhile."""
        return not any(limits.is_at_rate(now) for limits in self._quotas.by_name.values())

    def work_alone(self) -> None:
        """Uses an equal part of each limit from now on."""
        for _, limits, elsewhere in self._limits():
            elsewhere.pause()
            limits.share(self._gateways, knows_others=False)

    def _limits(self) -> Iterator[tuple[str, ClientLimits, UseElsewhere]]:
        before = self._elsewhere
        self._elsewhere = {name: before.get(name) or UseElsewhere() for name in self._quotas.by_name}
        for name, limits in self._quotas.by_name.items():
            yield f"client:{self._names.of(name)}", limits, self._elsewhere[name]
