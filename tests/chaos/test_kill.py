"""After kill -9 in the middle of a write, everything acknowledged is still there and nothing runs twice."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.chaos.store_kills import Ledger
from tests.effort import repeated
from tests.fakes.redis_server import redis_server

KILLS = repeated(200, least=50)
SEEDS = (1, 2)
"""One process each, run at the same time; the instants of the kills depend on the machine."""


def kill_writers(place: str, seed: int, kills: int) -> dict[str, Any]:
    line = [sys.executable, "-m", "tests.chaos.store_kills", place, str(seed), str(kills)]
    ran = subprocess.run(line, capture_output=True, cwd=Path(__file__).parents[2], timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def check(reports: list[dict[str, Any]], kills: int) -> None:
    assert [(report["seed"], report["problems"]) for report in reports] == [(report["seed"], []) for report in reports]
    said, interrupted = Counter[str](), Counter[str]()
    for report in reports:
        said.update(report["said"])
        interrupted.update(report["interrupted"])
    # A run in which the writers did little proves nothing.
    deeds = ("add", "add_dead", "begin", "answer", "put_back", "dead_letter", "requeue", "delete", "extend", "sweep")
    assert min(said[deed] for deed in deeds) >= kills / 10, said
    assert sum(interrupted.values()) > kills / 2, interrupted


def test_nothing_acknowledged_is_lost_or_run_twice_by_kill_9_at_many_moments() -> None:
    # In memory where possible: data that a process has written outlives it there too, and more writes happen.
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="killed-", dir=memory if memory.is_dir() else None) as folder,
        ThreadPoolExecutor(len(SEEDS)) as threads,
    ):
        reports = list(threads.map(lambda seed: kill_writers(f"{folder}/{seed}", seed, KILLS // len(SEEDS)), SEEDS))
    check(reports, KILLS)


def test_nothing_acknowledged_is_lost_or_run_twice_on_a_server(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        check([kill_writers(server.url, 3, KILLS)], KILLS)


def test_ledger_follows_a_call_that_another_writer_ends_before_it_is_reported_as_queued() -> None:
    ledger = Ledger()
    reports: list[list[object]] = [
        ["?", "b", "add", ["b-1"]], ["?", "a", "begin", []], ["!", "a", ["b-1"]],
        ["?", "a", "dead_letter", ["b-1"]], ["!", "a", True], ["!", "b", None],
    ]  # fmt: skip
    for report in reports:
        ledger.hear(json.dumps(report).encode())
    assert (ledger.states, ledger.problems) == ({"b-1": "dead"}, [])
