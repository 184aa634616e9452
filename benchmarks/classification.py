"""How often the classifier is right, where it is wrong, and what it costs.

Measures against files of labelled errors (`tests/data/*.jsonl`, or one given by path). The held-out figures cannot be
measured again, since what was held out has been learned from; they stand here as they were found.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from llm_guard.explain import evidence_of, report
from llm_guard.policy.classify import classify, classify_answer

DATA = Path(__file__).parent.parent / "tests" / "data"
COLLECTIONS = (DATA / "corpus.jsonl", DATA / "errors.jsonl")
PROMISED = {
    "retriable": 0.99,
    "category": 0.97,
    "counts_against_breaker": 0.99,
    "other_deployment_may_help": 0.97,
    "retry_after_s": 0.99,
}
TYPICAL_S = 50e-6
HOSTILE_S = 10e-3
_WALL = 1_800_000_000.0
_HOSTILE_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Figures that were taken once, before what they were taken on had been looked at."""

    name: str
    how: str
    cases: int
    shares: dict[str, float]


HELD_OUT = (
    HeldOut(
        "corpus.jsonl, 15 of its 32 providers",
        "The stricter figure. Providers in a seeded shuffle, first a third of them (59 cases), then, still unread, "
        "more in the same order until a third of the cases was out too (openai, openrouter, vllm, bedrock, xai, "
        "deepseek, llama.cpp, sglang, fireworks, vertex, perplexity and four small ones). The tables were written from "
        "the other 17 providers, from public code and issues, and from the error reference, which had been written "
        "with the whole collection in sight and names some of what was held out: so it flatters. Measured once, then "
        "learned from.",
        121,
        dict(zip(PROMISED, (0.992, 0.868, 0.967, 0.967, 1.0), strict=True)),
    ),
    HeldOut(
        "errors.jsonl, 193 of its 215",
        "Weaker evidence: bodies from public code, issues and documentation, labelled by whoever had written the "
        "tables, in part from the same sources, after all of corpus.jsonl had been learned from. 22 are left out of "
        "the figure, because they had served as spot checks before or repeat a sentence of the corpus; with them "
        "category was 96.3 %. Measured once, then learned from.",
        193,
        dict(zip(PROMISED, (0.995, 0.959, 0.995, 0.990, 1.0), strict=True)),
    ),
)


@dataclass(slots=True)
class Score:
    """What came of one collection."""

    name: str
    cases: int = 0
    right: Counter[str] = field(default_factory=Counter)
    by_provider: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    confusion: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    wrong: list[str] = field(default_factory=list)

    def share(self, name: str) -> float:
        """Of right answers, 0 to 1."""
        return self.right[name] / self.cases if self.cases else 1.0

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        return [
            f"{self.name}: {name} {self.share(name):.1%} against {promised:.0%}"
            for name, promised in PROMISED.items()
            if self.share(name) < promised
        ]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: of a typical body the median and the 95th percentile, of hostile text the worst, by its name."""

    median_s: float
    p95_s: float
    hostile: dict[str, float]

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        worst = max(self.hostile, key=self.hostile.__getitem__)
        found = [f"a typical body costs {self.median_s * 1e6:.0f} us"] if self.median_s >= TYPICAL_S else []
        if self.hostile[worst] >= HOSTILE_S:
            found.append(f"{worst} costs {self.hostile[worst] * 1e3:.1f} ms")
        return found


def run(say: Callable[[str], None], files: tuple[Path, ...] = COLLECTIONS) -> tuple[list[Score], Cost]:
    """Scores each file and measures the cost on the first."""
    read = [(file.name, [json.loads(line) for line in file.read_text("utf-8").splitlines() if line]) for file in files]
    scores = [score(name, records) for name, records in read]
    for each in scores:
        say(f"{each.name:16} {each.cases} cases: " + ", ".join(f"{name} {each.share(name):.1%}" for name in PROMISED))
        for line in each.wrong:
            say(f"  {line}")
    measured = cost(read[0][1])
    say(f"cost: median {measured.median_s * 1e6:.0f} us, hostile {max(measured.hostile.values()) * 1e3:.1f} ms at most")
    return scores, measured


def score(name: str, records: list[dict[str, Any]]) -> Score:
    """How often the answers agree with the labels; a wait is right within 1 %."""
    result = Score(name)
    for record in records:
        expected, found = record["expect"], report(record, _WALL)
        result.cases += 1
        provider = result.by_provider[record["provider"]]
        provider["cases"] += 1
        result.confusion[expected["category"]][found["category"]] += 1
        for each in PROMISED:
            is_right = _is_right(found[each], expected[each])
            result.right[each] += is_right
            provider[each] += is_right
            if not is_right:
                result.wrong.append(f"{record['id']}: {each} is {expected[each]}, found {found[each]}")
    return result


def cost(records: list[dict[str, Any]]) -> Cost:
    """The best of several runs each, so that a busy machine tells the same as an idle one."""
    answers = [evidence_of(record) for record in records if record["transport"] == "http"]
    typical = sorted(_best_s(partial(classify, each, _WALL)) for each in answers)
    hostile = {name: _hostile_s(text) for name, text in _hostile_texts().items()}
    return Cost(median(typical), typical[int(len(typical) * 0.95)], hostile)


def _is_right(found: object, expected: object) -> bool:
    if isinstance(found, float) and isinstance(expected, int | float):
        return abs(found - expected) <= max(0.01, 0.01 * expected)
    return found == expected


def _best_s(classified: Callable[[], object], times: int = 15) -> float:
    def once() -> float:
        begun = time.perf_counter()
        classified()
        return time.perf_counter() - begun

    return min(once() for _ in range(times))


def _hostile_s(text: bytes) -> float:
    return max(_best_s(partial(classify_answer, status, {}, text, _WALL), 5) for status in (400, 429, 500))


def _hostile_texts() -> dict[str, bytes]:
    size = _HOSTILE_BYTES
    inner = json.dumps({"error": {"message": "{" * size}})
    return {
        "braces": b"{" * size,
        "brackets": b"[" * size,
        "nesting": b'{"error":' * (size // 9),
        "quotes": b'"' * size,
        "backslashes": b'{"error":"' + b"\\" * size,
        "escaped quotes": b'{"error":{"message":"' + b'\\" x ' * (size // 5),
        "a Python repr": b"{'a': " * (size // 6),
        "tags": b"<title>" * (size // 7),
        "phrases": b'{"error":{"message":"' + b"rate limit " * (size // 11),
        "digits": b'{"error":{"message":"try again in ' + b"1" * size,
        "quoted answers": b"Error code: 429 - {" * (size // 19),
        "JSON in JSON": json.dumps({"error": {"message": inner}}).encode(),
    }
