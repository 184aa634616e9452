"""Fixtures of tests that run the gateway in their own process."""

from __future__ import annotations

import pytest

from llm_guard import watched_files


@pytest.fixture
def poll_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """Has watched files read ten times a second instead of once. Returns the seconds between two reads."""
    monkeypatch.setattr(watched_files, "POLL_S", 0.1)
    return watched_files.POLL_S
