"""Successful responses that take minutes, with no timeout configured: is a call lost, or sent twice?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.virtual import answers
from benchmarks.virtual.clients import ClientCall, Load
from benchmarks.virtual.provider import Answer, Request
from benchmarks.virtual.world import play

COUNT = 200
"""Slow calls in each case."""
_QUICK_S = 0.3
_MODEL = "reasoner"
_CONFIG = """
upstreams:
  provider: {dialect: openai, base_url: "https://provider.example/v1", api_key: sk-provider}
models:
  reasoner: {deployments: [{upstream: provider}]}
"""


@dataclass(frozen=True, slots=True)
class SlowCase:
    """Calls to one model, some or all of which are answered slowly."""

    name: str
    is_stream: bool
    answer: Callable[[int], Answer]
    """Answer to the slow call of this number, from 0."""
    quick_per_slow: int = 0
    """Quick calls of the same model between two slow ones."""
    quick_first: int = 0
    """Quick calls before the first slow one."""
    patience_s: float | None = None
    """Timeout that clients state in their headers; None: not stated."""

    def is_slow(self, number: int) -> bool:
        """True if the call of this number is answered slowly."""
        after = number - self.quick_first
        return after >= 0 and after % (self.quick_per_slow + 1) == 0

    @property
    def calls(self) -> int:
        """Number of calls, quick and slow."""
        return self.quick_first + COUNT * (self.quick_per_slow + 1)


@dataclass(frozen=True, slots=True)
class Slowness:
    """One case, measured."""

    case: SlowCase
    slow: int
    slow_lost: int
    """Slow calls that did not succeed."""
    slow_repeated: int
    """Slow calls that were sent more than once."""
    quick_lost: int
    quick_repeated: int
    lost_to: dict[str, int]

    @property
    def in_words(self) -> str:
        lost = ", ".join(f"{count} {how}" for how, count in self.lost_to.items())
        return (
            f"{self.slow_lost} of {self.slow} slow ones lost, {self.slow_repeated} sent twice; {self.quick_lost} quick "
            f"ones lost, {self.quick_repeated} sent twice{f' ({lost})' if lost else ''}"
        )

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        lost, repeated = self.slow_lost + self.quick_lost, self.slow_repeated + self.quick_repeated
        return [f"{self.case.name}: {lost} lost, {repeated} sent twice"] if lost or repeated else []

    def as_dict(self) -> dict[str, Any]:
        return {"case": self.case.name} | {key: value for key, value in asdict(self).items() if key != "case"}


def _unary(number: int) -> Answer:
    """A response after 150 to 500 s, in no particular order."""
    return answers.right("openai", _MODEL, 150.0 + 350.0 * (number * 79 % COUNT) / (COUNT - 1))


def _late_head(_: int) -> Answer:
    return answers.right_stream(_MODEL, head_s=100.0, first_token_s=0.0)


def _silent(_: int) -> Answer:
    return answers.right_stream(_MODEL, head_s=0.2, first_token_s=99.8, opens_with_role=False)


def _silent_after_role(_: int) -> Answer:
    return answers.right_stream(_MODEL, head_s=0.2, first_token_s=99.8)


CASES = (
    SlowCase("answers of 150 to 500 s", False, _unary),
    SlowCase("answers of 150 to 500 s, clients that wait 600 s", False, _unary, patience_s=600.0),
    SlowCase("answers of 150 to 500 s among nine quick ones each", False, _unary, quick_per_slow=9),
    SlowCase("answers of 150 to 500 s after 300 quick ones", False, _unary, quick_first=300),
    SlowCase("streams, head after 100 s", True, _late_head),
    SlowCase("streams, head at once, silent for 100 s", True, _silent),
    SlowCase("streams, head and role at once, silent for 100 s", True, _silent_after_role),
    SlowCase("streams silent for 100 s among nine quick ones each", True, _silent, quick_per_slow=9),
    SlowCase("streams silent for 100 s after 300 quick ones", True, _silent, quick_first=300),
)


def measure(case: SlowCase, rate_per_s: float = 2.0, seed: int = 7) -> Slowness:
    """Plays evenly spaced calls, all of which the provider answers successfully."""
    load = Load(
        _MODEL, rate_per_s, case.calls / rate_per_s, arrivals="even", is_stream=case.is_stream,
        patience_s=case.patience_s,
    )  # fmt: skip
    played = play(_CONFIG, _Slow(case), [load], seed=seed)
    slow = [call for call in played.calls if case.is_slow(call.number)]
    quick = [call for call in played.calls if not case.is_slow(call.number)]
    sent = Counter(request.call for request in played.requests)
    lost = Counter(f"{call.outcome} {call.status or ''}".strip() for call in played.calls if call.outcome != "served")
    return Slowness(
        case,
        len(slow),
        _lost(slow),
        sum(sent[call.number] > 1 for call in slow),
        _lost(quick),
        sum(sent[call.number] > 1 for call in quick),
        dict(lost),
    )


def _lost(calls: list[ClientCall]) -> int:
    return sum(call.outcome != "served" for call in calls)


class _Slow:
    """Answers every request successfully, the slow calls slowly."""

    def __init__(self, case: SlowCase) -> None:
        self._case = case

    def answer(self, request: Request) -> Answer:
        case = self._case
        if case.is_slow(request.call):
            return case.answer((request.call - case.quick_first) // (case.quick_per_slow + 1))
        if case.is_stream:
            return answers.right_stream(_MODEL, head_s=_QUICK_S / 2, first_token_s=_QUICK_S / 2)
        return answers.right("openai", _MODEL, _QUICK_S)
