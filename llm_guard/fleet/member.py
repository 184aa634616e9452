"""This gateway as a member of a fleet: exchanges with the store, ten times a second while any of the gateways has
failures, alerts or changes that the others should know, else every 0.3 s.

If the store is slow, an exchange that is late takes the place of the next ones. If it fails, the breakers decide by
themselves from that moment on, and the store is tried again after three quarters of a second at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import structlog

from llm_guard.clock import Clock
from llm_guard.fleet.breakers import FleetBreakers, are_quiet
from llm_guard.fleet.client_limits import FleetClientLimits
from llm_guard.fleet.content import Content, ReplicaStatus, decode, encode
from llm_guard.fleet.names import FleetNames
from llm_guard.fleet.notices import FleetNotices
from llm_guard.fleet.overrides import FleetOverrides
from llm_guard.fleet.paces import FleetPaces
from llm_guard.fleet.retry_floors import FleetRetryFloors
from llm_guard.fleet.slots import FleetSlots
from llm_guard.resilience.circuit_breaker.shared_breaker import EXCHANGE_S
from llm_guard.storage.shared.exchange_store import Exchanged, ExchangeStore, Leases, StoreUnavailable

_log = structlog.get_logger("llm_guard.fleet")

# The lengths of pauses vary, so this is a little less than three of them.
_QUIET_S = 0.25
_LONGEST_PAUSE_S = 0.75
_MOST_DOUBLINGS = 4
_STATUS_EVERY_S = 1.0
_NO_LEASES = Leases({}, {})


@dataclass(frozen=True, slots=True)
class Replica:
    """Another gateway of the fleet, as of the latest exchange."""

    id: str
    age_s: float
    """Seconds since it published this."""
    status: ReplicaStatus
    open_breakers: int
    """Those that are not closed."""
    kept_paces: int = 0
    """Paces of calls about which it decides for all."""


class FleetMember:
    """Exchanges from `start` until `stop`."""

    def __init__(
        self,
        name: str,
        replica: str,
        store: ExchangeStore,
        breakers: FleetBreakers,
        slots: FleetSlots,
        client_limits: FleetClientLimits,
        paces: FleetPaces,
        retry_floors: FleetRetryFloors,
        status: Callable[[], ReplicaStatus],
        names: FleetNames,
        clock: Clock,
    ) -> None:
        """`name` is the fleet's, `replica` the id of this gateway; `status` returns what the others show of it."""
        self.name = name
        self._replica = replica
        self.notices = FleetNotices(names, clock)
        self.overrides = FleetOverrides(clock)
        self._store = store
        self._breakers = breakers
        self._slots = slots
        self._client_limits = client_limits
        self.paces = paces
        self._retry_floors = retry_floors
        self._status = status
        self._published = status()
        self._status_at = clock.now()
        self._clock = clock
        self._began_at = clock.now()
        """When the latest exchange began."""
        self._have_others_news = True
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.is_connected = False
        """True if the latest exchange succeeded."""
        self.others: tuple[Replica, ...] = ()
        """Other gateways seen at the latest exchange; none without the store."""
        self.problem = ""
        """Why the latest exchange failed; empty: it succeeded, or there was none."""
        self.exchanges = 0
        """Successful exchanges."""
        self.failures: dict[str, int] = {}
        """Failed exchanges, by reason."""
        self._unreadable = 0
        self._strangers: set[str] = set()
        """Ids of gateways that share nothing with this one."""

    @property
    def unreadable(self) -> int:
        """Contents and overrides of others that could not be read."""
        return self._unreadable + self.overrides.unreadable

    async def start(self) -> None:
        """Exchanges once, so that overrides by operators apply to the first call, and goes on in the background."""
        failures = 0 if await self._try_exchange() else 1
        self._task = asyncio.get_running_loop().create_task(self._run(failures))

    async def stop(self) -> None:
        """Withdraws what this gateway has published, and gives up its slots, if the store answers. Closes the
        connection, also if `start` did not end."""
        self._is_stopping = True  # a client library may take a cancellation for an error of its own
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self.is_connected:
            with suppress(StoreUnavailable):  # slots end by themselves
                await self._store.exchange(encode(Content(status=self._status())), {}, self._slots.left())
        await self._store.close()

    def own(self) -> Replica:
        """Returns this gateway as the others see it."""
        summaries = self._breakers.summaries(self._clock.now()).values()
        is_open = [summary.state != "closed" for summary in summaries]
        return Replica(self._replica, 0.0, self._status(), sum(is_open), self.paces.kept)

    async def exchange(self) -> None:
        """Exchanges once, and concludes. Raises StoreUnavailable."""
        self._began_at = began_at = self._clock.now()
        if began_at >= self._status_at + _STATUS_EVERY_S:
            self._published, self._status_at = self._status(), began_at
            self._retry_floors.share(self._slots.gateways)
        notices = self.notices.summaries()
        uses = self._client_limits.uses()
        slots, breakers = self._slots.requests(began_at), self._breakers.summaries(began_at)
        paces = self.paces.reports(began_at)
        content = Content(breakers, notices, self._published, uses, tuple(self._slots.wanted()), paces)
        leases = self._breakers.wanted(began_at) | self.notices.wanted(notices) | self.paces.wanted(began_at)
        try:
            found = await self._store.exchange(encode(content), leases, slots)
            self._conclude(found, began_at)
            if self.paces.has_grants:
                # Calls wait for what has just been decided.
                content = msgspec.structs.replace(content, paces=self.paces.reports(self._clock.now()))
                await self._store.exchange(encode(content), {})
        except StoreUnavailable as error:
            self._work_alone(str(error))
            raise
        self.exchanges += 1
        await self._exchange_overrides(found.overrides_version)

    async def _exchange_overrides(self, version: int) -> None:
        """Exchanges overrides, if any has changed. A failure of theirs alone does not end the sharing of breakers."""
        try:
            await self.overrides.exchange(self._store, version)
        except Exception as error:  # noqa: BLE001  # a bug must not end the exchanges for good
            why = str(error) if isinstance(error, StoreUnavailable) else type(error).__name__
            if why not in self.failures:
                _log.warning("overrides by operators could not be exchanged", reason=why)
            self.failures[why] = self.failures.get(why, 0) + 1

    async def _run(self, failures: int) -> None:
        while not self._is_stopping:
            await self._clock.sleep(min(_LONGEST_PAUSE_S, EXCHANGE_S * 2 ** min(failures, _MOST_DOUBLINGS)))
            if not failures and self._can_wait():
                continue
            failures = 0 if await self._try_exchange() else failures + 1

    def _can_wait(self) -> bool:
        """True while no gateway has anything that another one should know at once. An exchange takes as much CPU as a
        call does."""
        now = self._clock.now()
        if now >= self._began_at + _QUIET_S or self._have_others_news:
            return False
        if self.overrides.has_changes or self.notices.summaries():
            return False
        return (
            self.paces.are_quiet
            and self._slots.are_quiet
            and self._client_limits.are_quiet(now)
            and self._breakers.are_quiet(now)
        )

    async def _try_exchange(self) -> bool:
        try:
            await self.exchange()
        except StoreUnavailable:
            return False
        except Exception as error:  # noqa: BLE001  # a bug must not end the exchanges for good
            if type(error).__name__ not in self.failures:
                _log.exception("unexpected error in an exchange with the store of the fleet")
            self._work_alone(type(error).__name__)
            return False
        return True

    def _conclude(self, found: Exchanged, began_at: float) -> None:
        if not self.is_connected:
            self.is_connected, self.problem = True, ""
            _log.info("the store of the fleet answers", others=len(found.others))
        now, others, replicas, uses, reports = self._clock.now(), [], [], [], []
        for published in found.others:
            content = decode(published.content)
            if content is None:
                self._unreadable += 1
                continue
            age_s = published.age_s + now - began_at
            others.append((age_s, content))
            uses.append((published.replica, content.clients))
            reports.append((published.replica, age_s, content.paces))
            is_open = [summary.state for summary in content.breakers.values() if summary.state != "closed"]
            kept = [report for report in content.paces.values() if report.decision is not None]
            replicas.append(Replica(published.replica, age_s, content.status, len(is_open), len(kept)))
        self._warn_of_strangers(replicas)
        self.others = tuple(replicas)
        self._have_others_news = any(
            content.notices or content.wanted or content.paces or not are_quiet(content.breakers)
            for _, content in others
        )
        # A lease ends where it was granted, so its seconds count from before the request.
        held = {subject: seconds - (now - began_at) for subject, seconds in found.leases.held.items()}
        leases = Leases(held, found.leases.taken)
        self._breakers.conclude([(age_s, content.breakers) for age_s, content in others], leases, now)
        self.notices.conclude([content.notices for _, content in others], leases, now)
        self._client_limits.conclude(uses, now)
        wanted = {subject for _, content in others for subject in content.wanted}
        self._slots.conclude(found.slots, len(found.others) + 1, now, wanted)
        self.paces.conclude(reports, leases, self._slots.gateways, now)

    def _warn_of_strangers(self, replicas: Iterable[Replica]) -> None:
        strangers = {replica.id for replica in replicas if replica.status.names != self._published.names}
        if strangers - self._strangers:
            _log.warning("gateways of the fleet have another ops.token: they share nothing", others=len(strangers))
        self._strangers = strangers

    def _work_alone(self, why: str) -> None:
        is_first = self.is_connected or not (self.exchanges or self.failures)
        self.failures[why] = self.failures.get(why, 0) + 1
        if is_first:
            self.is_connected = False
            _log.warning("the store of the fleet does not answer: this gateway works alone", reason=why)
        self.others, self.problem = (), why
        now = self._clock.now()
        self._breakers.conclude((), _NO_LEASES, now)
        self._client_limits.work_alone()
        self._slots.work_alone(now)
        self.paces.work_alone(self._slots.gateways, now)
