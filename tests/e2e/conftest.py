"""Fixtures: one gateway in front of one mock provider for each test, and the official SDKs pointed at it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.e2e.stand import Stand, standing


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes variables from which the SDKs take keys, headers, addresses and proxies: a developer may have set
    some."""
    for name in os.environ:
        if name.startswith(("OPENAI_", "ANTHROPIC_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with standing() as stand:
        yield stand


@pytest.fixture
async def openai(stand: Stand) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="sk-caller", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
async def anthropic(stand: Stand) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=stand.url, api_key="sk-caller", max_retries=0, timeout=10) as client:
        yield client
