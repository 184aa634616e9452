"""Modules of the benchmarks as processes of their own, each on the processor it is told.

Owns starting, asking and stopping them. Does not own what they answer.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_ROOT = Path(__file__).parent.parent
_STOP_WITHIN_S = 10.0
_ANSWER_WITHIN_S = 30.0
_STRAY_LINES = 100


class NotStartedError(Exception):
    """A module that does not serve; the message is what it said."""

    def __init__(self, module: str, code: int, said: str) -> None:
        super().__init__(f"{module} did not start: {said}")
        self.code = code
        """Of its exit."""


class Started:
    """A module that serves. What it writes to standard error is always read: a full pipe would stop it."""

    def __init__(self, url: str, popen: subprocess.Popen[str]) -> None:
        self.url = url
        self.process = psutil.Process(popen.pid)
        self.stray: list[str] = []
        """The first lines that it wrote unasked, as asyncio does of exceptions that nobody has looked at."""
        self._popen = popen
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read_all, daemon=True).start()

    def cpu_s(self) -> float:
        """Processor seconds used since its start."""
        return cpu_s(self.process)

    def ask(self) -> str:
        """Sends an empty line; returns the JSON object that comes back. Raises queue.Empty when none does."""
        assert self._popen.stdin is not None
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()
        return self._answers.get(timeout=_ANSWER_WITHIN_S)

    def _read_all(self) -> None:
        assert self._popen.stderr is not None
        for line in self._popen.stderr:
            if line.startswith("{"):
                self._answers.put(line)
            elif len(self.stray) < _STRAY_LINES:
                self.stray.append(line.rstrip())


@contextmanager
def started(module: str, *arguments: str, cpu: int | None = None) -> Iterator[Started]:
    """Runs `python -m module`, which says `... on URL` on standard error once it serves; raises NotStartedError.
    `cpu`: the processor it has to itself as far as we are concerned; None: ours."""
    popen = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if cpu is not None and hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(popen.pid, {cpu})
        assert popen.stderr is not None
        line = popen.stderr.readline()
        if " on http" not in line:
            line += popen.stderr.read()
            raise NotStartedError(module, popen.wait(_STOP_WITHIN_S), line)
        yield Started(line.split(" on ")[-1].split()[0], popen)
    finally:
        _stop(popen)


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds used by the threads that it has, by the scheduler's own account where Linux keeps one.
    Elsewhere in ticks of 10 ms: who wakes for microseconds, as a relay does, pays for many of them or for none."""
    accounts = list(Path(f"/proc/{process.pid}/task").glob("*/schedstat"))
    if accounts:
        return sum(int(account.read_text().split()[0]) for account in accounts) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


def _stop(popen: subprocess.Popen[str]) -> None:
    popen.terminate()
    try:
        popen.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
    if popen.stdin is not None:
        popen.stdin.close()  # the other pipe is at its end, and its reader's
