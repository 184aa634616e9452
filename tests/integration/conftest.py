"""Fixtures of tests that run the gateway in their own process."""

from __future__ import annotations

import pytest

from llm_guard import watched_files
from llm_guard.admin.http import penalty


@pytest.fixture
def poll_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """Has watched files read ten times a second instead of once. Returns the seconds between two reads."""
    monkeypatch.setattr(watched_files, "POLL_S", 0.1)
    return watched_files.POLL_S


@pytest.fixture(autouse=True)
def _quick_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers a wrong token at once instead of after a second, which `tests.security.test_control_plane` measures."""
    monkeypatch.setattr(penalty, "WRONG_TOKEN_S", 0.0)
