"""How well retries are spread: a herd that failed at once, and writers that contend for one row.

For the gateway's own methods, its own code draws the wait.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.storm.row import Row, promised, reference
from benchmarks.storm.simulate import Timeline
from llm_guard.outcome import FailureKind, Signal
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.retry.backoff import RetrySettings, delay_s
from llm_guard.resilience.retry.limits import RetryBudget

HERD = 1000
BUCKET_S = 0.1
WRITERS = (10, 50, 100, 190)
Draw = Callable[[float], float]
"""Maps a uniform draw from [0, 1) to a wait in seconds."""


@dataclass(frozen=True, slots=True)
class Herd:
    """Waits of 1,000 clients that failed at 0."""

    name: str
    is_ours: bool
    waits_s: tuple[float, ...]
    worst: int
    """Maximum number of retries within one bucket of 100 ms."""


@dataclass(frozen=True, slots=True)
class Contention:
    """Means over trials of one kind of wait."""

    name: str
    writers: int
    calls: float
    seconds: float


def ours(base_s: float = 1.0, retry_after_s: float | None = None, **settings: object) -> Draw:
    """The gateway's first wait after a server error."""
    retry = RetrySettings(base_delay=base_s, **settings)  # type: ignore[arg-type]  # settings only change the jitter
    return lambda u: delay_s(
        retry, retry=1, kind=FailureKind.SERVER_ERROR, retry_after_s=retry_after_s, previous_s=None, u=u
    )


HERDS: tuple[tuple[str, bool, Draw, float | None], ...] = (
    ("no jitter", False, ours(jitter=0.0), 1000),
    ("OpenAI SDK, 0.5 s × U(0.75, 1)", False, lambda u: 0.5 * (0.75 + 0.25 * u), 805),
    ("gRPC, ±20 %", False, lambda u: 0.8 + 0.4 * u, 263),
    ("llm_guard, ±30 % (default)", True, ours(), None),
    ("llm_guard, equal", True, ours(jitter="equal"), 221),
    ("llm_guard, full", True, ours(jitter="full"), 117),
    ("llm_guard, decorrelated", True, ours(jitter="decorrelated"), None),
    ("Retry-After: 10, obeyed exactly", False, lambda _: 10.0, 1000),
    ("Retry-After: 10, + U(0, 50 %)", False, lambda u: 10.0 * (1 + 0.5 * u), 29),
    ("llm_guard, Retry-After: 10", True, ours(retry_after_s=10.0), None),
)
"""Name, whether it is the gateway's, the wait, and the figure expected by A26; the base is 1 s unless the name says
otherwise.
"""


def herds(seed: int = 7) -> list[Herd]:
    """Measures every kind of wait, with the same 1,000 draws each."""
    dice = random.Random(seed)
    draws = [dice.random() for _ in range(HERD)]
    found = []
    for name, is_ours, wait_s, _ in HERDS:
        waits = tuple(wait_s(u) for u in draws)
        found.append(Herd(name, is_ours, waits, busiest(waits)))
    return found


def busiest(waits_s: tuple[float, ...]) -> int:
    """Maximum number of waits that end in one bucket."""
    return max(Counter(int(wait_s / BUCKET_S + 1e-9) for wait_s in waits_s).values(), default=0)


def herd_rows(found: list[Herd]) -> list[Row]:
    """Rows of A26."""
    expected = {name: figure for name, _, _, figure in HERDS}
    rows = []
    for herd in found:
        figure = expected[herd.name]
        if figure is not None:
            row = reference("A26", f"herd, {herd.name}", figure, herd.worst, 0.12)
            if herd.is_ours and row.verdict == "reference":
                row = promised("A26", row.what, row.expected, row.measured, holds=True)
            rows.append(row)
    by_name = {herd.name: herd.worst for herd in found}
    proportional, hinted = by_name["llm_guard, ±30 % (default)"], by_name["llm_guard, Retry-After: 10"]
    return [
        *rows,
        promised("A26", "herd, ±30 %, our default", "< gRPC's 263", f"{proportional}", proportional < 263),
        promised("A26", "herd, decorrelated", "< full's 117", f"{by_name['llm_guard, decorrelated']}",
                 by_name["llm_guard, decorrelated"] < 117),
        Row("A26", "herd, our Retry-After: 10", "29 at + U(0, 50 %)", f"{hinted}", "differs",
            "up to a tenth is added, not a half: seven times fewer at once than obeyed exactly, for 0.5 s of mean "
            "wait instead of 2.5 s"),
        *_configured_rows(),
    ]  # fmt: skip


def as_configured(seed: int = 7, *, has_breaker: bool) -> tuple[int, int]:
    """Retries that reach the provider when 1,000 calls begin together and all fail a second later, after a minute
    without failures; and the maximum of them within 100 ms. With default waits and budget, and optionally the breaker.
    """
    dice, settings = random.Random(seed), RetrySettings()
    breaker, budget = Breaker(BreakerSettings()), RetryBudget(settings.budget, -60.0)
    for number in range(-6000, 0):
        _answered_well(breaker, budget, number / 100)
    permits = [breaker.try_acquire(0.0) for _ in range(HERD)]
    for _ in permits:
        budget.deposit(0.0)
    due_s = []
    for permit in permits:
        if permit is not None and has_breaker:
            breaker.settle(permit, Signal.UNHEALTHY, 1.0)
        budget.recent.note(True, 1.0)
        if budget.try_spend(1.0):
            share = budget.recent.failure_share(1.0)
            due_s.append(1.0 + delay_s(settings, retry=1, kind=FailureKind.SERVER_ERROR, retry_after_s=None,
                                       previous_s=None, u=dice.random(), failure_share=share))  # fmt: skip
    sent = tuple(due for due in sorted(due_s) if breaker.try_acquire(due) is not None)
    return len(sent), busiest(sent)


def contentions(seed: int = 7, trials: int = 8, writers: tuple[int, ...] = WRITERS) -> list[Contention]:
    """AWS's simulation of optimistic writers: each reads a version, writes it, and waits if another one was faster."""
    found = []
    for name, settings in _WAYS:
        for contenders in writers:
            dice = random.Random(seed)
            results = [_contend(settings, contenders, dice) for _ in range(trials if name != "none" else 3)]
            found.append(
                Contention(
                    name,
                    contenders,
                    statistics.fmean(calls for calls, _ in results),
                    statistics.fmean(seconds for _, seconds in results),
                )
            )
    return found


# AWS's code counts retries from 1, so its first wait is twice the base; the gateway's counts from 0.
_WAYS: tuple[tuple[str, RetrySettings | None], ...] = (
    ("expo", RetrySettings(base_delay=0.01, max_delay=2.0, jitter=0.0)),
    ("full", RetrySettings(base_delay=0.01, max_delay=2.0, jitter="full")),
    ("equal", RetrySettings(base_delay=0.01, max_delay=2.0, jitter="equal")),
    ("decorrelated", RetrySettings(base_delay=0.005, max_delay=2.0, jitter="decorrelated")),
    ("±30 %", RetrySettings(base_delay=0.01, max_delay=2.0, jitter=0.3)),
    ("none", None),
)
_EXPECTED_CALLS = {
    "expo": (51, 616, 1862, 5174),
    "full": (39, 333, 793, 1775),
    "equal": (42, 347, 806, 1762),
    "decorrelated": (38, 376, 996, 2440),
    "none": (51, 695, 2444, 8033),
}


def contention_rows(found: list[Contention]) -> list[Row]:
    """Rows of A27."""
    at = {(each.name, each.writers): each for each in found}
    rows = []
    for name, expected in _EXPECTED_CALLS.items():
        measured = [at[name, writers].calls for writers in WRITERS]
        agrees = all(abs(m - e) <= 0.15 * e for m, e in zip(measured, expected, strict=True))
        shown = " / ".join(f"{value:.0f}" for value in measured)
        rows.append(
            Row("A27", f"contention, {name}: calls at N = 10, 50, 100, 190", " / ".join(map(str, expected)), shown,
                "reference" if agrees else "broken")
        )  # fmt: skip
    full, expo, spread = at["full", 100], at["expo", 100], at["±30 %", 100]
    share = full.calls / expo.calls
    times = f"{full.seconds:.1f} s against {expo.seconds:.0f} s"
    return [
        *rows,
        promised("A27", "contention, full over no jitter at N = 100", "≤ 0.45", f"{share:.2f}", share <= 0.45),
        promised("A27", "contention, completion at N = 100", "5.1 s against 64 s", times, full.seconds < 8),
        promised("A27", "contention, ±30 %, our default, at N = 100", "< 0.6 of no jitter",
                 f"{spread.calls / expo.calls:.2f} ({spread.calls:.0f} calls, {spread.seconds:.1f} s)",
                 spread.calls < 0.6 * expo.calls),
    ]  # fmt: skip


def formula_rows() -> list[Row]:
    """Rows A24 and A25: the formulas of others, and why the gateway's differs."""
    default = RetrySettings()
    spread = f"±{float(default.jitter) * 100:g} %"
    shown = f"{default.base_delay:g} s × {default.multiplier:g}, {spread}, at most {default.max_delay:g} s"
    return [
        Row("A24", "gRPC: 0.1 s × 2, ±20 %, at most 1 s", "0.1 × 2^(n-1) × U(0.8, 1.2)", shown, "differs",
            "providers of models recover in seconds, not in tenths; ±20 % leaves the herd in 400 ms of each second; "
            "the ceiling is lowered by the spread, so that waits do not pile up at it"),
        Row("A25", "Envoy: U[0, (2^N - 1) × 25 ms), at most 250 ms", "0-24, 0-74, 0-174 ms", shown, "differs",
            "a mesh's scale; `jitter: full, base_delay: 25ms, max_delay: 250ms` comes near it. As in Envoy, "
            "retries and waits are inside the call's total limit"),
    ]  # fmt: skip


def _answered_well(breaker: Breaker, budget: RetryBudget, now: float) -> None:
    budget.deposit(now)
    budget.recent.note(False, now)
    permit = breaker.try_acquire(now)
    if permit is not None:
        breaker.settle(permit, Signal.HEALTHY, now)


def _configured_rows() -> list[Row]:
    (retries, worst), (alone, worst_alone) = as_configured(has_breaker=True), as_configured(has_breaker=False)
    return [
        promised("A26", "herd, our defaults all together: 0.2 s ±30 %, adaptive, budget, breaker", "≤ 29 in 100 ms",
                 f"{worst} ({retries} retries)", worst <= 29,
                 "the breaker is open when their wait is over, but for one probe"),
        Row("A26", "the same without the breaker", "-", f"{worst_alone} ({alone} retries)", "differs",
            "a first retry is quick, so its herd is tight whatever the jitter: it is the breaker that stops it"),
    ]  # fmt: skip


def _contend(settings: RetrySettings | None, writers: int, dice: random.Random) -> tuple[int, float]:
    row = _SharedRow(Timeline(), settings, dice)
    for _ in range(writers):
        row.read(0, None)
    row.timeline.run()
    return row.calls, row.timeline.now


class _SharedRow:
    """One row with a version, behind a network of 10 ± 2 ms each way."""

    def __init__(self, timeline: Timeline, settings: RetrySettings | None, dice: random.Random) -> None:
        self.timeline = timeline
        self.calls = 0
        self._settings = settings
        self._dice = dice
        self._version = 0

    def read(self, retry: int, waited_s: float | None) -> None:
        """Sends a read after the wait; the write follows its response."""
        self.timeline.after(self._network_s() + (waited_s or 0.0), lambda: self._answer_read(retry, waited_s))

    def _answer_read(self, retry: int, waited_s: float | None) -> None:
        seen = self._version
        self.timeline.after(self._network_s() + self._network_s(), lambda: self._write(seen, retry, waited_s))

    def _write(self, seen: int, retry: int, waited_s: float | None) -> None:
        self.calls += 1
        if seen == self._version:
            self._version += 1
            self.timeline.after(self._network_s(), lambda: None)
            return
        wait_s = self._wait_s(retry + 1, waited_s)
        self.timeline.after(self._network_s(), lambda: self.read(retry + 1, wait_s))

    def _wait_s(self, retry: int, waited_s: float | None) -> float:
        if self._settings is None:
            return 0.0
        u = self._dice.random()
        kind = FailureKind.CONFLICT
        return delay_s(self._settings, retry=retry, kind=kind, retry_after_s=None, previous_s=waited_s, u=u)

    def _network_s(self) -> float:
        return abs(self._dice.normalvariate(0.010, 0.002))
