"""Runs the targets of `tests/fuzz` for minutes or hours: inputs that reach new lines of the package are mutated
further.

Chooses the inputs, keeps the useful ones and reports. An input that breaks a target is minimised and kept in
`tests/data/fuzz`, where the test command runs it again.
"""

from __future__ import annotations

import random
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import llm_guard
from tests.fuzz.mutation import DICE_BYTES, minimal, mutated, random_steps
from tests.fuzz.seeds import DATA
from tests.fuzz.targets import TARGETS, Target

CASES = DATA / "fuzz"
LONGEST_S = 60.0
"""Maximum wall-clock time of one input; more is a hang."""
_PACKAGE = str(Path(llm_guard.__file__).parent)
_TELL_EVERY_S = 10.0
_WATCHED_SHARE = 1 / 16
"""Share of the inputs that are traced: a trace function in Python takes some 20 times as long."""
_MOST_KINDS = 20
"""Maximum kinds of failures of one target: further ones are usually the same failure seen from elsewhere."""


def run(say: Callable[[str], None], minutes: float, only: Sequence[str] = (), seed: int | None = None) -> list[str]:
    """Runs these targets, or all, for an equal share of the time; returns the failures, and where their inputs are
    kept.

    `seed`: of the random generator; None: a different one each time."""
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    names = [name for name in TARGETS if name in only or not only]
    say(f"seed {seed}")
    broken = []
    for name in names:
        course = Course(name, TARGETS[name], random.Random(f"{seed} {name}"), CASES)
        course.run(say, minutes * 60 / len(names))
        broken += [f"{name}: {what}" for what in course.broken.values()]
    return broken


class Course:
    """The run of one target."""

    def __init__(self, name: str, target: Target, dice: random.Random, cases: Path) -> None:
        self.name = name
        self.broken: dict[object, str] = {}
        """The message and the file with the smallest input, by exception and location."""
        self.tried = 0
        self.lines = Lines()
        self._target = target
        self._dice = dice
        self._cases = cases / name
        self._kept = [dice.randbytes(DICE_BYTES) + seed for seed in target.seeds]

    def run(self, say: Callable[[str], None], seconds: float) -> None:
        began_at = told_at = time.perf_counter()
        tried_then = 0
        for data in tuple(self._kept):
            self.try_one(data, is_watched=True)
        while (now := time.perf_counter()) < began_at + seconds and len(self.broken) < _MOST_KINDS:
            if now >= told_at + _TELL_EVERY_S:
                say(self._tell(now - began_at, (self.tried - tried_then) / (now - told_at)))
                told_at, tried_then = now, self.tried
            self.try_one(self._next(), is_watched=self._dice.random() < _WATCHED_SHARE)
        passed_s = time.perf_counter() - began_at
        say(self._tell(passed_s, self.tried / passed_s))

    def try_one(self, data: bytes, *, is_watched: bool) -> None:
        """Runs the target on an input; keeps it if it reaches a new line, or minimises and writes it if it breaks the
        target."""
        self.tried += 1
        lines = self.lines.count
        try:
            with _not_longer_than(LONGEST_S):
                if is_watched and not self._target.is_timed:
                    self.lines.watch(lambda: self._target.run(data))
                else:
                    self._target.run(data)
        except Exception as error:  # noqa: BLE001  # any exception is a finding
            self._note(data, error)
        if self.lines.count > lines:
            self._kept.append(data)

    def _next(self) -> bytes:
        """A kept input, newer ones more likely, with mutations; sometimes with other random bytes."""
        dice, kept = self._dice, self._kept
        seed = kept[-1 - int(len(kept) * dice.random() ** 2)]
        if dice.random() < 0.5:
            seed = dice.randbytes(DICE_BYTES) + seed[DICE_BYTES:]
        rest = mutated(seed[DICE_BYTES:], random_steps(dice), self._target.seeds, self._target.words)
        return seed[:DICE_BYTES] + rest

    def _note(self, data: bytes, error: Exception) -> None:
        kind = _kind_of(error)
        if kind in self.broken:
            return

        def breaks(shorter: bytes) -> bool:
            try:
                with _not_longer_than(LONGEST_S):
                    self._target.run(shorter)
            except Exception as again:  # noqa: BLE001  # any exception counts
                return _kind_of(again) == kind
            return False

        self.broken[kind] = ""
        small = data if isinstance(error, TimeoutError) else minimal(data, breaks)
        self._cases.mkdir(parents=True, exist_ok=True)
        file = self._cases / f"{type(error).__name__}-{zlib.crc32(small):08x}"
        file.write_bytes(small)
        said = str(error).partition("\n")[0][:200]
        self.broken[kind] = f"{type(error).__name__} {said} at {kind[1]}:{kind[2]}, {len(small)} bytes in {file.name}"

    def _tell(self, passed_s: float, per_s: float) -> str:
        return (
            f"{self.name:14} {passed_s:6.0f} s {per_s:8.0f} inputs/s {self.tried:9} tried {self.lines.count:5} lines "
            f"{len(self._kept):5} kept {len(self.broken):3} broken"
        )


class Lines:
    """Counts the lines of the package that have run. Stops tracing a function when all of its lines have."""

    def __init__(self) -> None:
        self.count = 0
        self._unseen: dict[CodeType, set[int]] = {}

    def watch(self, work: Callable[[], None]) -> None:
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, *_: object) -> Any:
        code = frame.f_code
        unseen = self._unseen.get(code)
        if unseen is None:
            unseen = self._unseen[code] = _lines_of(code)
        return self._step if unseen else None

    def _step(self, frame: FrameType, *_: object) -> Any:
        unseen = self._unseen[frame.f_code]
        if frame.f_lineno in unseen:
            unseen.discard(frame.f_lineno)
            self.count += 1
        return self._step


def _lines_of(code: CodeType) -> set[int]:
    if not code.co_filename.startswith(_PACKAGE):
        return set()
    return {line for _, _, line in code.co_lines() if line is not None}


def _kind_of(error: Exception) -> tuple[str, str, int]:
    """Identifies a failure: the exception, and the innermost location in the package."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if _PACKAGE in frame.filename or "fuzz" in frame.filename]
    place = (ours or frames)[-1]
    return type(error).__name__, Path(place.filename).name, place.lineno or 0


@contextmanager
def _not_longer_than(seconds: float) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
