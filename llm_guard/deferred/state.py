"""State that the two sides of stored calls share: the intake, which the proxy calls, and the execution, which calls the
proxy. Built before both."""

from __future__ import annotations

import asyncio

from llm_guard.clock import Clock
from llm_guard.deferred.counters import DeferredCounters
from llm_guard.deferred.credentials import Credentials
from llm_guard.deferred.deadlines import CallDeadlines
from llm_guard.deferred.operator_events import AggregatedEvents, PublishEvent
from llm_guard.deferred.running_calls import RunningCalls
from llm_guard.deferred.store_client import AsyncCallStore
from llm_guard.storage.calls.store import CallStore


class DeferredState:
    """The store of calls, and what this process knows about its calls."""

    def __init__(self, store: CallStore, publish: PublishEvent, clock: Clock) -> None:
        """`publish` records events for operators."""
        self.call_store = AsyncCallStore(store, clock)
        self.events = AggregatedEvents(publish, clock)
        self.terms = CallDeadlines(clock)
        self.credentials = Credentials()
        self.counts = DeferredCounters()
        self.running = RunningCalls()
        self.has_work = asyncio.Event()
        """Set when a call may be due before the next second."""
