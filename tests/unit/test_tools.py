from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest

from tests import tools


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Makes every program appear to be missing."""
    monkeypatch.setattr(shutil, "which", lambda program, **_: "/usr/bin/apt-get" if program == "apt-get" else None)
    monkeypatch.delenv("LLM_GUARD_TEST_TOOLS", raising=False)
    return monkeypatch


def test_test_without_its_program_is_skipped_and_states_how_to_get_it(absent: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.skip.Exception, match="apt-get install prometheus"):
        tools.need("promtool")


def test_test_without_its_program_fails_where_every_test_must_run(absent: pytest.MonkeyPatch) -> None:
    absent.setenv("LLM_GUARD_TEST_TOOLS", "required")
    with pytest.raises(pytest.fail.Exception, match="there is no promtool"):
        tools.need("promtool")


def test_program_of_another_group_names_its_group(absent: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"tests.tools engines.* apt-get install docker.io"):
        tools.need("dockerd")


def test_test_that_needs_root_is_skipped_for_other_users_or_fails(absent: pytest.MonkeyPatch) -> None:
    absent.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="only root"):
        tools.need_root()
    absent.setenv("LLM_GUARD_TEST_TOOLS", "required")
    with pytest.raises(pytest.fail.Exception, match="only root"):
        tools.need_root()


@pytest.mark.parametrize(("is_root", "codes", "asked"), [
    (True, [0], ["install"]),
    (True, [100, 0, 0], ["install", "update", "install"]),
    (False, [], []),
])  # fmt: skip
def test_missing_program_is_installed_by_root_alone(
    absent: pytest.MonkeyPatch, is_root: bool, codes: list[int], asked: list[str]
) -> None:
    lines: list[list[str]] = []

    def run(line: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        lines.append(line)
        return subprocess.CompletedProcess(line, codes[len(lines) - 1], "", "")

    absent.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    absent.setattr(subprocess, "run", run)
    assert tools.install() == list(tools.PACKAGES)
    assert [next(word for word in line if word in ("install", "update")) for line in lines] == asked
    assert all(set(tools.PACKAGES.values()) <= set(line) for line in lines if "install" in line)
