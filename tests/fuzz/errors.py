"""Fuzz harnesses for error parsing: the classifier, its lenient JSON parser, and the headers for retry delays and rate
limits."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress

from llm_guard.outcome import FailureKind
from llm_guard.resilience.capacity.rate_limit_headers import rate_hint
from llm_guard.resilience.classification.classify import (
    Classification,
    Evidence,
    classify,
    classify_answer,
    classify_event,
    classify_network,
)
from llm_guard.resilience.classification.error_body import read_body
from llm_guard.resilience.classification.in_band_errors import error_in_answer
from llm_guard.resilience.classification.lenient_json import embedded, loads
from llm_guard.resilience.classification.retry_after import duration_s, reset_s, retry_after
from llm_guard.resilience.classification.rules import UserRule, user_rule
from llm_guard.resilience.classification.vocabulary.transport import OF_KIND
from tests.fuzz.mutation import cuts_of, rolled

FAMILIES = ("", "openai", "anthropic", "tgi", "vllm", "lmstudio", "bedrock", "local", "edge")
LONGEST_WAIT_S = 400 * 86400.0
HOSTILE_BYTES = 200_000
_HEADER_BYTES = 1 << 16
_MOST_CPU_S = 0.1
"""Processor seconds: ten times the promised cost of 200 kB, for a slow machine; superlinear code costs seconds."""
_WALL = 1_772_532_000.0


def parts_of(text: bytes) -> tuple[int, dict[str, str], bytes]:
    """Parses a response in the format of `seeds.answer`."""
    head, _, body = text.partition(b"\n\n")
    first, *lines = head.decode("utf-8", "surrogateescape").split("\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    return (int(first) if first.isascii() and first.isdigit() and len(first) == 3 else 429), headers, body


def fuzz_classify(data: bytes) -> None:
    """The classifier never raises, is deterministic, and every wait it returns is usable."""
    dice, text = rolled(data)
    status, headers, body = parts_of(text)
    family, wall = dice.choice(FAMILIES), dice.choice((_WALL, 0.0, 1e18))
    rules = _rules(dice, text)

    def verdicts() -> list[Classification | None]:
        said = body.decode("utf-8", "replace")
        pieces = said.replace("\r", "").split("\n\n")
        events = [*pieces, "<EOF>"] if status % 2 else pieces
        return [
            classify_answer(status, headers, body, wall, family, rules),
            classify_event(body, wall, family, rules),
            classify_network(dice.choice(["", *OF_KIND]), said),
            classify(Evidence(status, headers, body, family=family), wall, rules),
            classify(Evidence(200, headers, body, family=family), wall, rules),
            classify(Evidence(200, headers, events=events, family=family), wall, rules),
        ]

    state = dice.getstate()
    found = verdicts()
    dice.setstate(state)
    assert verdicts() == found
    for verdict in found:
        if verdict is not None:
            _is_usable(verdict)


def fuzz_loose_json(data: bytes) -> None:
    """Valid JSON is parsed as such; other text yields some value or a ValueError."""
    text = rolled(data)[1].decode("utf-8", "replace")
    try:
        found = loads(text)
    except ValueError:
        found = ValueError
    with suppress(ValueError, RecursionError):
        assert repr(found) == repr(json.loads(text))
    quoted = embedded(text)
    assert quoted is None or text.startswith(quoted[0])
    error_in_answer(text, 200)
    said = read_body(text)
    assert len(said.layers) <= 30
    for layer in said.layers:
        assert layer.status is None or 400 <= layer.status <= 599
        assert len(layer.code) <= 200
        assert len(layer.message) <= 9000


def fuzz_limits(data: bytes) -> None:
    """For any headers, a wait is finite and positive, and a rate limit window is consistent."""
    dice, text = rolled(data)
    headers = parts_of(b"429\n" + text)[1]
    wall = dice.choice((_WALL, 0.0, -1e18, 1e18))
    waits = [retry_after(headers, wall), *(duration_s(value) for value in headers.values())]
    waits += [reset_s(value, wall) for value in headers.values()]
    for wait_s in waits:
        assert wait_s is None or 0 < wait_s <= LONGEST_WAIT_S
    hint = rate_hint(headers, wall)
    for window in hint.windows if hint is not None else ():
        assert 0 <= window.remaining <= window.limit < math.inf
        assert 0 <= window.refill_per_s < math.inf
        assert window.limit > 0


def fuzz_classify_cost(data: bytes) -> None:
    """200 kB of body or 64 kB of headers cost milliseconds."""
    dice, text = rolled(data)
    status, headers, body = parts_of(text)
    at = dice.randrange(len(body) + 1)
    part = body[at : at + dice.choice((1, 3, 30, 3000))] or b"{"
    long_body = (body[:at] + part * (HOSTILE_BYTES // len(part) + 1))[:HOSTILE_BYTES]
    many = {f"{name[:-6] or 'x'}{number}{name[-6:]}": value for name, value in headers.items() for number in range(9)}
    while many and sum(map(len, many)) < _HEADER_BYTES:
        many |= {f"{len(many)}{name}": value for name, value in many.items()}
    wide = dict(list(many.items())[: _HEADER_BYTES // 20])
    family = dice.choice(FAMILIES)
    _is_cheap(lambda: classify_answer(status, headers, long_body, _WALL, family))
    _is_cheap(lambda: classify_event(long_body, _WALL, family))
    _is_cheap(lambda: classify(Evidence(200, headers, long_body, family=family), _WALL))
    _is_cheap(lambda: classify_answer(429, wide, body, _WALL, family))
    _is_cheap(lambda: rate_hint(wide, _WALL))


def _is_usable(verdict: Classification) -> None:
    wait_s = verdict.retry_after_s
    assert isinstance(verdict.kind, FailureKind)
    assert wait_s is None or 0 < wait_s <= LONGEST_WAIT_S
    assert verdict.why
    assert 100 <= verdict.status <= 999
    assert len(verdict.message) <= 9000
    assert not (verdict.is_final and verdict.is_retriable)
    assert not verdict.is_retriable or verdict.kind.is_retriable


def _rules(dice: random.Random, text: bytes) -> list[UserRule]:
    words = [piece.decode("utf-8", "replace")[:200] for piece in cuts_of(dice, text[:600], 3)]
    rules = []
    for kind in dice.sample(list(FailureKind), dice.choice((0, 0, 1, 2))):
        try:
            rules.append(user_rule(kind, code=dice.choice(words), message="*" + dice.choice(words)))
        except ValueError:
            continue
    return rules


def _is_cheap(work: Callable[[], object]) -> None:
    """Checks the best of up to three measurements, since other work on the machine adds to the others."""
    took = []
    for _ in range(3):
        begun = time.thread_time()
        work()
        took.append(time.thread_time() - begun)
        if took[-1] < _MOST_CPU_S:
            return
    raise AssertionError(f"it costs {min(took):.3f} s")
