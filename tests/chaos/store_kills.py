"""Kills processes while they write to a store of calls, and checks what they leave behind.

Run as `python -m tests.chaos.store_kills PLACE SEED KILLS` in a process of its own: it has imported all that its
writers need, so that forking takes only a few milliseconds. PLACE is the folder of a file, or the URL of a Redis
server. Two writers share the store at a time. Each reports what it is about to do, does it, and reports the result, so
what it has reported as done must be stored. Between two generations the store is compared with the reports, allowing
for the operations that were interrupted. Kills only processes that it has started.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from llm_guard.clock import SystemClock
from llm_guard.storage.calls.bodies import Bodies
from llm_guard.storage.calls.redis_store import RedisCallStore
from llm_guard.storage.calls.sqlite_store import SqliteCallStore
from llm_guard.storage.calls.store import CallFilter, CallStore, StoredCall
from tests.fakes.stored_calls import ANSWER, FAILED, deferred_call, new_dead_letter, stored_request

LEASE_S = 50.0
_GENERATION_S = 100.0
"""Wall time in seconds: leases outlive a generation's writers but not the next generation."""
_ALL = 100_000
_OLD = 3
"""Generations after which answered calls may be swept."""
_LEADS_TO = {
    "add": ("absent", "queued"), "add_dead": ("absent", "dead"), "begin": ("queued", "running"),
    "put_back": ("running", "queued"), "answer": ("running", "answered"), "dead_letter": ("running", "dead"),
    "requeue": ("dead", "queued"), "delete": ("dead", "absent"),
}  # fmt: skip
_QUEUING = tuple(deed for deed, (_, after) in _LEADS_TO.items() if after == "queued")


def body_of(call_id: str) -> bytes:
    return call_id.encode() * (Random(call_id).randrange(5000))


# a writer


class Writer:
    """A process that writes to the store until it is killed."""

    def __init__(self, store: CallStore, name: str, now: float, ends: tuple[int, int], dice: Random) -> None:
        """Takes in `ends` the write ends of two pipes: one for its reports, one to signal that it is ready."""
        self.store = store
        self.name = name
        self.now = now
        self.out, self.ready = ends
        self.dice = dice
        self.mine: list[str] = []
        """Calls that this writer has leased."""
        self.dead: list[str] = []
        """Dead letters that this writer has stored."""
        self.added = 0

    def write(self) -> None:
        deeds = [self.add, self.add, self.add_dead_letter, self.begin, self.begin, self.end, self.end, self.end]
        deeds += [self.requeue, self.delete, self.extend, self.sweep]
        self.store.stats()  # opens it
        os.write(self.ready, b"!")
        while True:
            self.dice.choice(deeds)()

    def say(self, mark: str, *what: object) -> None:
        """Writes a report in one system call, so that it is not torn or mixed with the other writer's."""
        os.write(self.out, json.dumps([mark, self.name, *what]).encode() + b"\n")

    def do(self, deed: str, ids: list[str], act: Callable[[], Any]) -> Any:
        self.say("?", deed, ids)
        result = act()
        self.say("!", result if isinstance(result, bool | list) else None)
        return result

    def new_id(self) -> str:
        self.added += 1
        return f"{self.name}-{self.added}"

    def add(self) -> None:
        ids = [self.new_id() for _ in range(self.dice.randint(1, 3))]
        self.do("add", ids, lambda: self.store.add(*map(self.deferred_call, ids)))

    def deferred_call(self, call_id: str) -> StoredCall:
        request = stored_request(body_of(call_id), is_repeatable=Random(call_id).randrange(4) > 0)
        return deferred_call(call_id, self.now, self.now, request=request)

    def add_dead_letter(self) -> None:
        call_id = self.new_id()
        request = stored_request(body_of(call_id))
        self.do("add_dead", [call_id], lambda: self.store.add(new_dead_letter(call_id, self.now, request=request)))
        self.dead.append(call_id)

    def begin(self) -> None:
        limit = self.dice.randint(1, 4)
        self.mine += self.do("begin", [], lambda: [c.id for c in self.store.begin(self.now, limit, LEASE_S)])

    def end(self) -> None:
        if not self.mine:
            return
        call_id = self.mine.pop(self.dice.randrange(len(self.mine)))
        answer = msgspec.structs.replace(ANSWER, body=b"answer to " + body_of(call_id))
        how = self.dice.choice(["answer", "put_back", "dead_letter"])
        if how == "answer":
            self.do(how, [call_id], lambda: self.store.answer(call_id, answer, 1, self.now))
        elif how == "put_back":
            self.do(how, [call_id], lambda: self.store.put_back(call_id, FAILED, self.now, self.now))
        else:
            self.do(how, [call_id], lambda: self.store.dead_letter(call_id, FAILED, self.now))
            self.dead.append(call_id)

    def requeue(self) -> None:
        ids, self.dead = self.dead[:3], self.dead[3:]
        self.do("requeue", ids, lambda: self.store.requeue(CallFilter(ids=ids), self.now, 0))

    def delete(self) -> None:
        ids, self.dead = self.dead[:1], self.dead[1:]
        self.do("delete", ids, lambda: self.store.delete(CallFilter(ids=ids)))

    def extend(self) -> None:
        self.do("extend", self.mine, lambda: self.store.extend(self.mine, self.now, LEASE_S))

    def sweep(self) -> None:
        keep_s = (_OLD - 0.5) * _GENERATION_S
        self.do("sweep", [], lambda: self.store.sweep(self.now, keep_s, 1e9, 1 << 40))


# expected states


@dataclass(slots=True)
class Ledger:
    """Expected state of the store, from the writers' reports."""

    states: dict[str, str] = field(default_factory=dict)
    answered_in: dict[str, int] = field(default_factory=dict)
    """Generation in which each call was answered, by id."""
    pending: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """The operation that each writer is about to do."""
    overtaken: set[tuple[str, str]] = field(default_factory=set)
    """Writers and the calls of their pending operation that the other writer has already begun and reported."""
    said: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    generation: int = 0

    def hear(self, line: bytes) -> None:
        mark, writer, *what = json.loads(line)
        if mark == "?":
            self.pending[writer] = (what[0], what[1])
        elif mark == "!":
            deed, ids = self.pending.pop(writer)
            self.said[deed] += 1
            self._settle(writer, deed, ids, what[0])
        else:
            self.problems.append(f"{writer}: {what}")

    def _settle(self, writer: str, deed: str, ids: list[str], result: Any) -> None:
        if deed == "begin":
            for call_id in result:
                self._begun(writer, call_id)
        elif deed == "requeue" and sorted(result) != sorted(ids):
            self.problems.append(f"{writer}: requeued {result} of {ids}")
        elif deed == "extend" and result:
            self.problems.append(f"{writer}: does not run {result}")
        elif deed in ("put_back", "answer", "dead_letter") and result is not True:
            self.problems.append(f"{writer}: could not {deed} {ids}")
        elif deed in _LEADS_TO:
            for call_id in ids:
                self._moved(writer, call_id, _LEADS_TO[deed][1])

    def _begun(self, writer: str, call_id: str) -> None:
        queuing = [name for name, (deed, ids) in self.pending.items() if call_id in ids and deed in _QUEUING]
        if self.states.get(call_id, "absent") != "queued" and not queuing:
            self.problems.append(f"{writer}: began {call_id}, which was {self.states.get(call_id)}")
        self.overtaken.update((name, call_id) for name in queuing)
        self.states[call_id] = "running"

    def _moved(self, writer: str, call_id: str, after: str) -> None:
        if (writer, call_id) in self.overtaken:
            self.overtaken.remove((writer, call_id))
            return
        self.states[call_id] = after
        if after == "answered":
            self.answered_in[call_id] = self.generation

    def may_be(self, call_id: str) -> set[str]:
        """Returns the states a call may be in: the last reported one, or one that an interrupted operation may have
        left."""
        states = {self.states.get(call_id, "absent")}
        deeds = [(deed, ids) for deed, ids in self.pending.values() if deed in _LEADS_TO]
        for _ in range(len(deeds)):
            for deed, ids in deeds:
                before, after = _LEADS_TO[deed]
                if before in states and (call_id in ids or deed == "begin"):
                    states.add(after)
        if self.generation - self.answered_in.get(call_id, self.generation) >= _OLD - 1:
            states.add("absent")
        return states

    def compare(self, found: dict[str, StoredCall]) -> None:
        known = {*self.states, *(call_id for _, ids in self.pending.values() for call_id in ids)}
        for call_id in known | found.keys():
            state = found[call_id].state if call_id in found else "absent"
            if state not in (may := self.may_be(call_id)):
                self.problems.append(f"{call_id} is {state}, not {' or '.join(sorted(may))}")


# the killer


def kill_writers(place: str, seed: int, kills: int) -> dict[str, Any]:
    """Runs the generations and returns the result; `problems` is empty if the store was always consistent."""
    dice, ledger, interrupted = Random(seed), Ledger(), Counter[str]()
    for generation in range(kills // 2):
        ledger.generation = generation
        now = (generation + 1) * _GENERATION_S
        for line in _run_and_kill(place, [f"{seed}.{generation}.{name}" for name in "ab"], now, dice):
            ledger.hear(line)
        interrupted.update(deed for deed, _ in ledger.pending.values())
        _check_store(place, ledger, now)
        if ledger.problems:
            break
    return {"problems": ledger.problems[:5], "seed": seed, "said": ledger.said, "interrupted": interrupted}


def _run_and_kill(place: str, names: list[str], now: float, dice: Random) -> list[bytes]:
    """Runs two writers, kills them, and returns their reports."""
    (reading, writing), (hearing, ready) = os.pipe(), os.pipe()
    writers = [_fork(place, name, now, (writing, ready), dice.randrange(1 << 30)) for name in names]
    for _ in writers:
        os.read(hearing, 1)
    for end in (writing, ready, hearing):
        os.close(end)
    for pid in writers:
        time.sleep(dice.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
    for pid in writers:
        os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as said:
        return said.readlines()


def _fork(place: str, name: str, now: float, ends: tuple[int, int], seed: int) -> int:
    if pid := os.fork():
        return pid
    writer = Writer(_opened(place, name), name, now, ends, Random(seed))
    try:
        writer.write()
    except BaseException as error:  # noqa: BLE001  # whatever it is, the killer must hear of it
        writer.say("x", repr(error))
    os._exit(1)


def _opened(place: str, name: str) -> CallStore:
    bodies = Bodies("plain", None)
    if place.startswith("/"):
        return SqliteCallStore(lambda: Path(place), name, bodies)
    return RedisCallStore(place, "prod", name, bodies, SystemClock())


def _check_store(place: str, ledger: Ledger, now: float) -> None:
    """Compares the store with the reports and ends the leases of the killed writers."""
    store = _opened(place, "killer")
    found = {call.id: call for call in store.find(CallFilter(), _ALL, None)}
    ledger.compare(found)
    ledger.problems += [f"{call_id}: its body is wrong" for call_id in found if not _is_whole(store.get(call_id))]
    if sum(store.stats().count.values()) != len(found):
        ledger.problems.append("the sums are wrong")
    store.recover(now + LEASE_S)
    ledger.states = {call.id: call.state for call in store.find(CallFilter(), _ALL, None)}
    ledger.pending, ledger.overtaken = {}, set()
    for call_id, state in ledger.states.items():
        if state == "answered":
            ledger.answered_in.setdefault(call_id, ledger.generation)
    store.close()
    if (file := Path(place, "calls.db")).exists():
        ledger.problems += _broken(file)


def _is_whole(call: StoredCall | None) -> bool:
    assert call is not None
    if call.answer is not None:
        return call.answer.body == b"answer to " + body_of(call.id)
    return call.request.body == body_of(call.id)


def _broken(path: Path) -> list[str]:
    database = sqlite3.connect(path)
    try:
        said = [row[0] for row in database.execute("PRAGMA integrity_check")]
        lost = database.execute("SELECT count(*) FROM bodies WHERE call NOT IN (SELECT number FROM calls)").fetchone()
    finally:
        database.close()
    return [each for each in said if each != "ok"] + ([f"{lost[0]} bodies of nobody"] if lost[0] else [])


if __name__ == "__main__":
    _, chosen, seed, kills = sys.argv
    print(json.dumps(kill_writers(chosen, int(seed), int(kills))))  # noqa: T201  # its report
