"""The share of a provider's capacity that a caller gets beside one that demands all of it, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.manual import ManualProvider, after
from tests.chaos.stand import Stand, config_of, standing
from tests.chaos.wire import ask

CAPACITY = 4
ANSWER_S = 0.02
MEASURED_S = 2.0


@asynccontextmanager
async def sharing(queue: int = 1000, **hog: Any) -> AsyncIterator[Stand]:
    """Runs a gateway in front of a provider that answers four calls at once, each in 20 ms."""
    keys = [{"name": "hog", "key": "k-hog", **hog}, {"name": "victim", "key": "k-victim"}]
    models = {
        "gpt": {
            "deployments": [{"upstream": "one"}],
            "capacity": {"concurrency": CAPACITY, "max_queue": queue},
        }
    }
    async with (
        ManualProvider(after(ANSWER_S, *CHAT.ok)) as provider,
        standing(
            config_of(provider.url, models=models, server={"client_keys": keys}, timeout={"total": "60s"})
        ) as stand,
    ):
        yield stand


async def keep_calling(stand: Stand, name: str, priority: str, until: float, answers: Counter[tuple[str, int]]) -> None:
    headers = {"authorization": f"Bearer k-{name}", "x-llm-guard-priority": priority}
    while time.monotonic() < until:
        reply = await ask(stand.url, CHAT.path, CHAT.body(), headers)
        if time.monotonic() < until:
            answers[name, reply.status] += 1


async def answers_of(stand: Stand, *, hogs: int, victims: int, hog_priority: str) -> Counter[tuple[str, int]]:
    """Counts responses by caller and status, while both callers send without a pause over so many connections each."""
    answers: Counter[tuple[str, int]] = Counter()
    until = time.monotonic() + MEASURED_S
    hog = [keep_calling(stand, "hog", hog_priority, until, answers) for _ in range(hogs)]
    victim = [keep_calling(stand, "victim", "normal", until, answers) for _ in range(victims)]
    await asyncio.gather(*hog, *victim)
    return answers


def share(answers: Counter[tuple[str, int]]) -> float:
    return answers["victim", 200] / (answers["victim", 200] + answers["hog", 200])


@pytest.mark.parametrize(("hog_priority", "least"), [("high", 0.2), ("normal", 0.4)])
async def test_heavy_caller_leaves_another_its_share_of_the_capacity(hog_priority: str, least: float) -> None:
    async with sharing(priority="high") as stand:
        answers = await answers_of(stand, hogs=40, victims=4, hog_priority=hog_priority)
        assert share(answers) >= least, answers
        assert {status for _, status in answers} == {200}


async def test_heavy_caller_that_fills_the_queue_does_not_starve_another() -> None:
    async with sharing(queue=20, priority="high") as stand:
        answers = await answers_of(stand, hogs=40, victims=2, hog_priority="high")
        assert answers["victim", 200] >= 20
        assert answers["hog", 429] > answers["victim", 429] == 0


async def test_weight_gives_a_caller_more_turns() -> None:
    async with sharing(weight=3) as stand:
        answers = await answers_of(stand, hogs=20, victims=20, hog_priority="normal")
        assert 0.2 <= share(answers) <= 0.3, answers
