"""A gateway in front of two providers of the same models, which answer when a test makes them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.chaos.manual import Exchange, ManualProvider
from tests.chaos.stand import Stand, config_of, standing

OnRequest = Callable[[Exchange], None] | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A gateway and its two providers."""

    stand: Stand
    front: ManualProvider
    back: ManualProvider

    def in_flight(self) -> int:
        """Number of calls in flight and waiting at the gates of all deployments."""
        now = time.monotonic()
        gates = [gate for deployment in self.stand.app.gateway.deployments() for gate in deployment.gates.all()]
        return sum(gate.snapshot(now).in_flight + sum(gate.snapshot(now).waiting.values()) for gate in gates)


@asynccontextmanager
async def pair_of(front: OnRequest = None, back: OnRequest = None, **rules: Any) -> AsyncIterator[Pair]:
    """Starts a gateway with `front` as each model's first deployment and `back` as its second; None never answers."""
    async with ManualProvider(front) as one, ManualProvider(back) as two:
        upstreams = {
            "one-back": {"dialect": "openai", "base_url": f"{two.url}/v1"},
            "two-back": {"dialect": "anthropic", "base_url": two.url},
        }
        models = {
            "gpt": {"deployments": [{"upstream": "one"}, {"upstream": "one-back"}], **rules},
            "claude": {"deployments": [{"upstream": "two"}, {"upstream": "two-back"}], **rules},
        }
        async with standing(config_of(one.url, upstreams=upstreams, models=models)) as stand:
            yield Pair(stand, one, two)
