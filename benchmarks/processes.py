"""Runs modules of the benchmarks as separate processes, each pinned to a given processor; measures what a
process uses.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_ROOT = Path(__file__).parent.parent
_STOP_WITHIN_S = 10.0
_ANSWER_WITHIN_S = 30.0
_STRAY_LINES = 100


class NotStartedError(Exception):
    """A program did not start; the message is its output."""

    def __init__(self, program: str, code: int | None, said: str) -> None:
        super().__init__(f"{program} did not start: {said}")
        self.code = code
        """Its exit code; None: it is running, but does not serve."""


@dataclass(frozen=True, slots=True)
class Way:
    """One of the compared targets."""

    name: str
    url: str
    process: psutil.Process | None = None
    """None: unknown, or there is no proxy."""

    def cpu_s(self) -> float:
        """Processor seconds used since its start; nan if the process is unknown."""
        return float("nan") if self.process is None else cpu_s(self.process)

    def rss_bytes(self) -> float:
        """Resident memory; nan if the process is unknown."""
        return float("nan") if self.process is None else float(self.process.memory_info().rss)


class Started:
    """A running module. A thread reads its standard error all the time: a full pipe would block it."""

    def __init__(self, url: str, popen: subprocess.Popen[str]) -> None:
        self.url = url
        self.process = psutil.Process(popen.pid)
        self.stray: list[str] = []
        """The first lines that it wrote by itself, such as asyncio's about exceptions that were never retrieved."""
        self._popen = popen
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read_all, daemon=True).start()

    def ask(self) -> str:
        """Sends an empty line; returns the JSON object that comes back. Raises queue.Empty if none does."""
        assert self._popen.stdin is not None
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()
        return self._answers.get(timeout=_ANSWER_WITHIN_S)

    def _read_all(self) -> None:
        assert self._popen.stderr is not None
        with self._popen.stderr as lines:
            for line in lines:
                if line.startswith("{"):
                    self._answers.put(line)
                elif len(self.stray) < _STRAY_LINES:
                    self.stray.append(line.rstrip())


@contextmanager
def started(
    module: str,
    *arguments: str,
    cpu: int | None = None,
    package: Path | None = None,
    env: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
) -> Iterator[Started]:
    """Runs `python -m module`, which prints `... on URL` on standard error once it serves; raises NotStartedError.

    `cpu`: the processor to pin it to; None: this process's. `package`: the folder of another llm_guard than this one.
    `env` adds to this process's environment. `under`: the command of a program that runs it, such as a profiler."""
    # Otherwise the working directory would precede it.
    other = {} if package is None else {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(package)}
    popen = subprocess.Popen(
        [*under, sys.executable, "-m", module, *arguments],
        cwd=_ROOT,
        env={**os.environ, **other, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if cpu is not None:
            pin(popen.pid, cpu)
        assert popen.stderr is not None
        line = popen.stderr.readline()
        if " on http" not in line:
            with popen.stderr as lines:
                line += lines.read()
            raise NotStartedError(module, popen.wait(_STOP_WITHIN_S), line)
        yield Started(line.split(" on ")[-1].split()[0], popen)
    finally:
        stop(popen)


def pin(pid: int, cpu: int) -> None:
    """Pins a process if there are several processors and the system supports it."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(pid, {cpu})


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds used by its current threads, from the scheduler's own statistics on Linux. Elsewhere in ticks
    of 10 ms, with which a process that wakes for microseconds, like a relay, is charged for many of them or for none.
    """
    accounts = list(Path(f"/proc/{process.pid}/task").glob("*/schedstat"))
    if accounts:
        return sum(int(account.read_text().split()[0]) for account in accounts) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


def stop(popen: subprocess.Popen[str]) -> None:
    """Terminates it, and kills it if it does not end."""
    popen.terminate()
    try:
        popen.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
    if popen.stdin is not None:
        popen.stdin.close()  # stderr is closed by its reader
