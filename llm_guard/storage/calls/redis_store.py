"""Deferred calls and dead letters on a Redis or Valkey server, for gateways that share no file system.

Each operation is one script, `calls.lua`, so it is done as a whole or not at all. Blocking; used by one thread. What is
acknowledged is as durable as the server: `appendonly yes` there survives a restart, `appendfsync always` a power cut.

A response of the server can be lost. Then it is not known whether the operation was done: calls that may have been
added are deleted again, and calls that may have been begun are queued again, before others are begun.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from llm_guard.clock import Clock
from llm_guard.storage.calls.bodies import Bodies, Unreadable
from llm_guard.storage.calls.process_lock import RunnerLock
from llm_guard.storage.calls.redis_fields import HashFields, call_in, fields_of, sealed_body, sealed_text
from llm_guard.storage.calls.store import (
    HOME_S,
    INTERRUPTED,
    OVERDUE,
    CallFailure,
    CallFilter,
    CallGroup,
    CallStats,
    Purpose,
    State,
    StoredCall,
    StoredResponse,
    as_text,
    stored_at,
)
from llm_guard.storage.errors import RefusedError, StoreError
from llm_guard.storage.shared.redis_script import RedisScript

_TIMEOUT_S = 5.0
"""Seconds for a whole request: a body of 16 MiB takes three at 50 Mbit/s."""
_AT_ONCE = 300
"""Calls that one script deletes or requeues: it takes some ten milliseconds, for which other gateways wait."""
_MOST = 5_000
"""Calls that one method deletes."""
_MOST_DOUBTFUL = 1_000
_ANY = "\0"


class RedisCallStore:
    """Implements `CallStore` for one gateway. After a StoreError the next call connects again."""

    def __init__(self, url: str, fleet: str, runner: str | RunnerLock, bodies: Bodies, clock: Clock) -> None:
        """`runner` identifies this process uniquely. With a lock, calls of an earlier process are taken over at once;
        without one, when their leases end."""
        self._script = RedisScript(url, __package__, "calls.lua", f"llmg:1:{{{fleet}}}:calls:", _TIMEOUT_S, clock)
        self._lock = None if isinstance(runner, str) else runner
        self._runner = runner if isinstance(runner, str) else runner.runner
        self._bodies = bodies
        self._running: dict[str, tuple[Purpose, str]] = {}
        """Calls that run here, each with its purpose, and a name for what was begun."""
        self._has_failed = False
        """A request was not answered, since doubts were last settled."""
        self._added_in_doubt: list[str] = []
        """Calls that may have been added."""
        self._is_begin_in_doubt = False
        """Calls may have been begun that are not known here."""
        self._is_home = False
        """True once this process has the credentials of a stored call."""

    def adopt(self, bodies: Bodies) -> None:
        """Changes how bodies are stored from now on. Stored ones stay as they are, and are read with the keys of
        `bodies`."""
        self._bodies = bodies

    def add(self, *calls: StoredCall) -> None:
        homed = [call for call in calls if call.request.needs_credentials]
        alive_until = max((stored_at(call) + HOME_S for call in homed), default=0.0)
        args: list[str | bytes | float] = [self._runner, alive_until, len(calls)]
        for call in calls:
            fields = _flat(fields_of(call, self._bodies, self._runner))
            args += [call.id, len(fields), *fields]
        if homed:
            self._note_work()
            self._is_home = True
        try:
            taken = self._run("add", *args)
        except RefusedError:
            raise
        except StoreError:
            self._added_in_doubt = [*self._added_in_doubt, *(call.id for call in calls)][-_MOST_DOUBTFUL:]
            raise
        if taken is not None:
            raise StoreError(f"{_text(taken)} is stored already")
        new = {call.id for call in calls}
        self._added_in_doubt = [call_id for call_id in self._added_in_doubt if call_id not in new]

    def get(self, call_id: str) -> StoredCall | None:
        found = _pairs(self._run("get", call_id))
        return call_in({**found, "id": call_id.encode()}, self._bodies) if found else None

    def find(self, wanted: CallFilter, limit: int, before: str | None) -> list[StoredCall]:
        """Returns none if the call with the id `before` is gone."""
        return self._bare(self._run("find", limit, before or "", *_filter(wanted)))

    def stats(self) -> CallStats:
        totals, oldest = self._run("stats")
        numbers = {name: int(number) for name, number in _pairs(totals).items()}
        count = {name.removeprefix("count:"): numbers[name] for name in numbers if name.startswith("count:")}
        return CallStats(
            count=count,
            size=sum(numbers[name] for name in numbers if name.startswith("size:")),
            oldest_at=float(oldest) if oldest else None,
        )

    def groups(self, limit: int) -> list[CallGroup]:
        found = []
        for name, count, oldest, newest in self._run("groups"):
            purpose, state, kind, route = _text(name).split("\n", 3)
            what = cast("Purpose", purpose), cast("State", state)  # as they were stored
            found.append(CallGroup(route, kind or None, *what, count, float(oldest), float(newest)))
        return sorted(found, key=lambda group: (-group.count, group.route, group.kind or "", group.state))[:limit]

    def begin(self, now: float, limit: int, lease_s: float, purpose: Purpose | None = None) -> list[StoredCall]:
        bodies = self._bodies  # another thread may replace it
        self._settle_doubts(now)
        try:
            alive_until = now + HOME_S if self._is_home else 0.0
            args = (now, limit, now + lease_s, self._runner, purpose or _ANY, alive_until, *_list(bodies.keys))
            found = self._run("begin", *args)
        except RefusedError:
            raise
        except StoreError:
            self._is_begin_in_doubt = True
            raise
        if found:
            self._note_work()
        begun = [_pairs(fields) for fields in found]
        for fields in begun:
            round_name = f"{self._runner}/{_text(fields['rounds'])}"
            self._running[_text(fields["id"])] = _purpose(fields["purpose"]), round_name
        calls = [self._begun(fields, bodies, now) for fields in begun]
        return [call for call in calls if call is not None]

    def extend(self, ids: Sequence[str], now: float, lease_s: float) -> list[str]:
        """Returns the calls that no longer run here: taken over by another gateway, or deleted."""
        gone = [_text(one) for one in self._run("extend", now + lease_s, self._runner, *_list(ids))]
        for call_id in gone:
            self._running.pop(call_id, None)
        return gone

    def reschedule(self, times: Mapping[str, tuple[float, float]]) -> None:
        if times:
            self._run("reschedule", *(part for call_id, both in times.items() for part in (call_id, *both)))

    def put_back(self, call_id: str, ended: CallFailure | None, now: float, due_at: float) -> bool:
        return self._leave(call_id, "queued", now, ended, due_at=due_at)

    def answer(self, call_id: str, answer: StoredResponse, attempts: int, now: float) -> bool:
        """Deletes the request, which is no longer needed."""
        return self._leave(call_id, "answered", now, None, answer=answer, attempts=attempts)

    def dead_letter(self, call_id: str, ended: CallFailure, now: float) -> bool:
        return self._leave(call_id, "dead", now, ended)

    def requeue(self, wanted: CallFilter, now: float, pace_s: float) -> list[str]:
        """Queues the oldest first (of each 300, if there are more ids), behind dead letters that wait already, and
        without a deadline. Calls without a readable request stay dead."""
        queued: list[str] = []
        ahead: int | str = ""
        for part in _parts(wanted):
            while True:
                args = (now, pace_s, ahead, _AT_ONCE, *_list(self._bodies.keys), *_filter(part))
                ahead, ids = self._run("requeue", *args)
                queued += [_text(one) for one in ids]
                if len(ids) < _AT_ONCE:
                    break
        return queued

    def delete(self, wanted: CallFilter, *, running: bool = False) -> int:
        count = 0
        for part in _parts(wanted):
            count += _repeated(partial(self._delete_some, part, int(running)), _MOST - count)
        return count

    def _delete_some(self, wanted: CallFilter, running: int, limit: int) -> int:
        return int(self._run("delete", limit, running, *_filter(wanted)))

    def mark_notified(self, call_id: str, state: State) -> None:
        self._run("mark_notified", call_id, state)

    def unnotified(self, webhook: str, limit: int) -> list[StoredCall]:
        return self._bare(self._run("unnotified", webhook, limit))

    def recover(self, now: float) -> int:
        self._settle_doubts(now)
        ended = [] if self._lock is None else self._lock.ended()
        count = 0
        alive_until = now + HOME_S if self._is_home else 0.0
        for call_id, runner, purpose, is_repeatable in self._run("lost", now, self._runner, alive_until, *_list(ended)):
            by = _text(runner)
            until = None if by in ended else now  # its lease may have been extended meanwhile
            if is_repeatable == b"1":
                done = self._move(_text(call_id), by, "queued", now, None, _purpose(purpose), until=until, due_at=now)
            else:
                done = self._move(_text(call_id), by, "dead", now, INTERRUPTED, _purpose(purpose), until=until)
            count += done
        if self._lock is not None:
            for by in ended:
                self._lock.forget(by)
        return count

    def sweep(self, now: float, answered_for_s: float, max_age_s: float, max_bytes: int) -> int:
        """Deletes some thousands at most; the next sweep goes on. `max_bytes`: of the dead calls. Queued calls that are
        too old and past their deadline are deleted too, since no gateway processes them any more. Those that this
        gateway has no key for are marked dead at their deadline."""
        count = _repeated(
            lambda limit: self._run("sweep", now - answered_for_s, now - max_age_s, now, max_bytes, limit), _MOST
        )
        for call_id, purpose in self._run("overdue", now, *_list(self._bodies.keys)):
            self._move(_text(call_id), "", "dead", now, OVERDUE, _purpose(purpose), of="queued")
        return count

    def close(self) -> None:
        if self._is_home:
            with contextlib.suppress(StoreError):
                self._run("leave", self._runner)
        self._script.close()
        if self._lock is not None:
            self._lock.release()

    def _run(self, operation: str, *args: str | bytes | float) -> Any:
        try:
            return self._script.run(operation, *(repr(arg) if isinstance(arg, float) else arg for arg in args))
        except RefusedError:
            raise
        except StoreError:
            self._has_failed = True
            raise

    def _note_work(self) -> None:
        """Shows to later processes of this gateway that this one lives."""
        if self._lock is not None:
            self._lock.hold()

    def _settle_doubts(self, now: float) -> None:
        """To be called before calls are begun or taken over."""
        if self._has_failed:
            self._run("resume", now)
            self._has_failed = False
        if self._added_in_doubt:
            self.delete(CallFilter(ids=self._added_in_doubt))
            self._added_in_doubt = []
        if self._is_begin_in_doubt:
            self._run("unbegin", now, self._runner, *_list(sorted(self._running)))
            self._is_begin_in_doubt = False

    def _bare(self, found: Iterable[Sequence[bytes]]) -> list[StoredCall]:
        return [call_in(_pairs(fields), self._bodies) for fields in found]

    def _begun(self, fields: Mapping[str, bytes], bodies: Bodies, now: float) -> StoredCall | None:
        """Returns None for a damaged call, and marks it as dead, so that it does not block the others."""
        try:
            return call_in(fields, bodies)
        except Unreadable as error:
            self._leave(_text(fields["id"]), "dead", now, CallFailure(kind="damaged", detail=str(error)))
            return None

    def _leave(self, call_id: str, state: State, now: float, ended: CallFailure | None, **facts: Any) -> bool:
        """Ends a call. False: it does not run here."""
        if call_id not in self._running:
            return False
        purpose, round_name = self._running[call_id]
        is_ours = self._move(call_id, self._runner, state, now, ended, purpose, name=f"{round_name}/{state}", **facts)
        self._running.pop(call_id, None)
        return is_ours

    def _move(
        self, call_id: str, runner: str, state: State, now: float, ended: CallFailure | None, purpose: Purpose, *,
        of: State = "running", until: float | None = None, due_at: float | None = None,
        answer: StoredResponse | None = None, attempts: int = 0, name: str = "",
    ) -> bool:  # fmt: skip
        """Changes the state of a call, if it is `of`, runs at `runner` (empty: any), and its lease has ended at
        `until`. A change that is repeated under one `name` is done once."""
        fields: HashFields = {"state": state, "due_at": due_at, "runner": None}
        fields |= {"leased_until": None, "answer": as_text(answer), "answered_at": None if answer is None else now}
        if ended is not None:
            fields["kind"] = ended.kind
            fields |= sealed_text("ended", as_text(ended), call_id, self._bodies)
        for part, content in self._bodies.after(purpose, state, ended, answer).items():
            fields |= sealed_body(part, content, call_id, purpose, self._bodies)
        done = self._run(
            "move", call_id, of, runner, "" if until is None else until, attempts if ended is None else ended.attempts,
            "" if ended is None else now, name, *_list(_flat(fields)),
            *_list([name for name, value in fields.items() if value is None]),
        )  # fmt: skip
        return bool(done)


def _flat(fields: HashFields) -> list[str | bytes | float]:
    return [part for name, value in fields.items() if value is not None for part in (name, value)]


def _pairs(found: Sequence[bytes]) -> dict[str, bytes]:
    return {_text(name): value for name, value in zip(found[::2], found[1::2], strict=True)}


def _list(values: Sequence[str | bytes | float]) -> list[str | bytes | float]:
    return [len(values), *values]


def _filter(wanted: CallFilter) -> list[str | bytes | float]:
    terms: list[str | bytes | float] = [
        _ANY if value is None else value
        for value in (wanted.purpose, wanted.state, wanted.route, wanted.kind, wanted.since, wanted.until)
    ]
    return [*terms, -1] if wanted.ids is None else [*terms, *_list(sorted(wanted.ids))]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _purpose(value: bytes) -> Purpose:
    return "deferred" if value == b"deferred" else "dead_letter"


def _parts(wanted: CallFilter) -> Iterator[CallFilter]:
    """Splits a filter with many ids, so that no script takes long."""
    if wanted.ids is None:
        yield wanted
        return
    ids = sorted(set(wanted.ids))
    for at in range(0, len(ids), _AT_ONCE):
        yield msgspec.structs.replace(wanted, ids=ids[at : at + _AT_ONCE])


def _repeated(delete: Callable[[int], int], most: int) -> int:
    """Deletes until nothing is left or `most` are deleted; returns their number."""
    count = 0
    while count < most:
        done = delete(_AT_ONCE)
        count += done
        if done < _AT_ONCE:
            break
    return count
