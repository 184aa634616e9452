"""The classifier against three collections of errors, which include their labels and sources.

`corpus.jsonl`: 306 labelled errors of 32 providers. `errors.jsonl`: 215 more, from public code, issues and
documentation. `unseen.jsonl`: 220, labelled before the classifier had seen them. Its rules have since been derived from
all of them: this detects regressions, and does not measure accuracy (`benchmarks/results/classification.md`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_guard.cli.classify_report import report
from llm_guard.resilience.classification.classify import MAX_BODY_BYTES, classify_answer, classify_event

WALL = 1_800_000_000.0
DATA = Path(__file__).parents[3] / "data"
NAMES = ("corpus", "errors", "unseen")
NEEDED = {
    "retriable": 0.99,
    "category": 0.97,
    "counts_against_breaker": 0.99,
    "other_deployment_may_help": 0.97,
    "retry_after_s": 0.99,
}


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def is_right(field: str, found: Any, expected: Any) -> bool:
    if field != "retry_after_s" or found is None or expected is None:
        return bool(found == expected)
    return bool(found == pytest.approx(expected, rel=0.01, abs=0.01))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", NEEDED)
def test_share_of_right_classifications_meets_its_target(name: str, field: str) -> None:
    wrong = [
        record["id"]
        for record in records(name)
        if not is_right(field, found := report(record, WALL)[field], record["expect"][field])
        if not (field == "category" and found in record.get("also", ()))
    ]
    assert len(wrong) <= (1 - NEEDED[field]) * len(records(name)), wrong


@pytest.mark.parametrize("name", NAMES)
def test_collection_states_where_each_error_was_seen(name: str) -> None:
    found = records(name)
    assert all(record["source"] for record in found)
    assert len({record["id"] for record in found}) == len(found)


# hostile text (the benchmark measures its cost)

N = 200_000
HOSTILE = {
    "braces": b"{" * N,
    "brackets": b"[" * N,
    "nesting": b'{"error":' * (N // 9),
    "quotes": b'"' * N,
    "apostrophes": b"'" * N,
    "backslashes": b'{"error":"' + b"\\" * N,
    "escaped quotes": b'{"error":{"message":"' + b'\\" x ' * (N // 5),
    "repr": b"{'a': " * (N // 6),
    "tags": b"<title>" * (N // 7),
    "words": b'{"error":{"message":"' + b"rate limit " * (N // 11),
    "digits": b'{"error":{"message":"try again in ' + b"1" * N,
    "durations": b'{"error":{"message":"try again in ' + b"1m" * N,
    "quotations": b"Error code: 429 - {" * (N // 19),
    "JSON in JSON": json.dumps({"error": {"message": json.dumps({"error": {"message": "{" * N}})}}).encode(),
    "spaces": b" " * N,
    "colons": b'{"a":' + b":" * N,
}


@pytest.mark.timeout(5)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_classified_without_a_hang(text: bytes) -> None:
    assert len(text) > MAX_BODY_BYTES * 4
    for status in (400, 429, 500):
        assert classify_answer(status, {}, text, WALL).why
    assert classify_event(text).why
