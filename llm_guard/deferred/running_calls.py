"""The stored calls that run in this process, and the ones that must not run any more.

`deferred.worker` runs them; the intake, the status API and the maintenance of the store cancel them here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from llm_guard.storage.calls.store import Purpose, StoredCall

_log = structlog.get_logger("llm_guard.deferred.running_calls")

_TAKEN_BACK_KEPT = 1000


@dataclass(slots=True)
class RunningCall:
    """A call that runs in this process."""

    kept: StoredCall
    task: asyncio.Task[None] | None = None
    is_asking: bool = False
    """Set while the task may be cancelled. A task that is cancelled before its first step would never run its
    cleanup."""
    is_given_up: bool = False
    """Its owner has deleted it."""
    is_taken: bool = False
    """Another gateway has taken it over, or has deleted it."""


class RunningCalls:
    """The running calls, by id."""

    def __init__(self) -> None:
        self._begun: dict[str, RunningCall] = {}
        self._taken_back: deque[str] = deque(maxlen=_TAKEN_BACK_KEPT)

    def __iter__(self) -> Iterator[RunningCall]:
        return iter(self._begun.values())

    def ids(self) -> list[str]:
        return list(self._begun)

    def count(self, purpose: Purpose) -> int:
        """Returns how many calls of this kind run."""
        return sum(begun.kept.purpose == purpose for begun in self._begun.values())

    def add(self, kept: StoredCall) -> RunningCall:
        """Adds a call that is about to run. A call that was taken back is given up already."""
        begun = self._begun[kept.id] = RunningCall(kept, is_given_up=kept.id in self._taken_back)
        return begun

    def remove(self, kept_id: str) -> None:
        """Removes a call at the end of its round."""
        del self._begun[kept_id]

    def give_up(self, kept_id: str) -> None:
        """Cancels a call that its owner has deleted, if it runs here."""
        begun = self._begun.get(kept_id)
        if begun is None or begun.task is None:
            return
        begun.is_given_up = True
        if begun.is_asking:
            begun.task.cancel()

    def take_back(self, kept_id: str) -> None:
        """Marks a call to be dropped if it is ever begun: its write failed or timed out, but may still reach the
        disk."""
        self._taken_back.append(kept_id)

    def cancel_lost(self, kept_id: str) -> None:
        """Cancels a call after another gateway has taken over its lease, as two must not run it, or has deleted it."""
        begun = self._begun.get(kept_id)
        if begun is not None and begun.task is not None and begun.is_asking:
            _log.warning("another gateway has taken over or deleted a call: cancelled here", stored_call_id=kept_id)
            begun.is_taken = True
            begun.task.cancel()
