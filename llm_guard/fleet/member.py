"""This gateway as a member of a fleet: exchanges with the store, ten times a second.

If the store is slow, an exchange that is late takes the place of the next ones. If it fails, the breakers decide by
themselves from that moment on, and the store is tried again after a second at most.
"""

from __future__ import annotations

import asyncio

import structlog

from llm_guard.clock import Clock
from llm_guard.fleet.breakers import FleetBreakers
from llm_guard.fleet.content import Content, decode, encode
from llm_guard.resilience.circuit_breaker.shared_breaker import EXCHANGE_S
from llm_guard.storage.shared.exchange_store import Exchanged, ExchangeStore, Leases, StoreUnavailable

_log = structlog.get_logger("llm_guard.fleet")

_LONGEST_PAUSE_S = 1.0
_MOST_DOUBLINGS = 4
_NO_LEASES = Leases({}, {})


class FleetMember:
    """Exchanges from `start` until `stop`."""

    def __init__(self, store: ExchangeStore, breakers: FleetBreakers, clock: Clock) -> None:
        self._store = store
        self._breakers = breakers
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.is_connected = False
        """True if the latest exchange succeeded."""
        self.others = 0
        """Other gateways seen at the latest exchange; 0 without the store."""
        self.exchanges = 0
        """Successful exchanges."""
        self.failures: dict[str, int] = {}
        """Failed exchanges, by reason."""
        self.unreadable = 0
        """Contents of others that could not be read."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Withdraws what this gateway has published, if the store answers."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        await self._store.close()

    async def exchange(self) -> None:
        """Exchanges once, and concludes. Raises StoreUnavailable."""
        began_at = self._clock.now()
        content = encode(Content(self._breakers.summaries(began_at)))
        try:
            found = await self._store.exchange(content, self._breakers.wanted(began_at))
        except StoreUnavailable as error:
            self._work_alone(str(error))
            raise
        self._conclude(found, began_at)
        self.exchanges += 1

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self.exchange()
                failures = 0
            except StoreUnavailable:
                failures += 1
            except Exception as error:  # noqa: BLE001  # a bug must not end the exchanges for good
                failures += 1
                if type(error).__name__ not in self.failures:
                    _log.exception("unexpected error in an exchange with the store of the fleet")
                self._work_alone(type(error).__name__)
            await self._clock.sleep(min(_LONGEST_PAUSE_S, EXCHANGE_S * 2 ** min(failures, _MOST_DOUBLINGS)))

    def _conclude(self, found: Exchanged, began_at: float) -> None:
        if not self.is_connected:
            self.is_connected = True
            _log.info("the store of the fleet answers", others=len(found.others))
        now, others = self._clock.now(), []
        for published in found.others:
            content = decode(published.content)
            if content is None:
                self.unreadable += 1
                continue
            age_s = published.age_s + now - began_at
            others.append((age_s, content.breakers))
        self.others = len(others)
        # A lease ends where it was granted, so its seconds count from before the request.
        held = {subject: seconds - (now - began_at) for subject, seconds in found.leases.held.items()}
        self._breakers.conclude(others, Leases(held, found.leases.taken), now)

    def _work_alone(self, why: str) -> None:
        is_first = self.is_connected or not (self.exchanges or self.failures)
        self.failures[why] = self.failures.get(why, 0) + 1
        if is_first:
            self.is_connected = False
            _log.warning("the store of the fleet does not answer: this gateway works alone", reason=why)
        self.others = 0
        self._breakers.conclude((), _NO_LEASES, self._clock.now())
