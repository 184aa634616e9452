"""The commit on a page of figures, and the detection of outdated pages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.provenance import age, computed_line, current_commit, machine, measured_line

MACHINE: dict[str, str | int | None] = {
    "commit": "abc1234", "python": "3.11.7", "system": "x86_64", "processors": 2, "processor": "EPYC",
    "kernel": "Linux 6.1",
}  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path, "llm_guard/proxy/response/delivery.py")
    return tmp_path


def _git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(("git", *identity, *arguments), cwd=root, check=True, capture_output=True)


def _commit(root: Path, changed: str) -> None:
    path = root / changed
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.read_text() + "\n" if path.exists() else "\n")
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "--message", f"Change {changed}")


def _page(root: Path, commit: str | None) -> Path:
    page = root.parent / f"{root.name}-page.md"
    page.write_text(f"# Figures\n\n{computed_line(MACHINE | {'commit': commit})}\n")
    return page


def test_page_names_commit_and_machine() -> None:
    line = measured_line(MACHINE)
    assert line == "Measured at commit `abc1234`, on 2 shared processors (EPYC, x86_64), Linux 6.1, Python 3.11.7."


def test_uncommitted_changes_are_named() -> None:
    assert computed_line(MACHINE | {"commit": "abc1234+"}) == "Measured at commit `abc1234` with uncommitted changes."


def test_commit_of_a_clean_checkout_and_of_a_changed_one(checkout: Path) -> None:
    clean = current_commit(checkout)
    assert clean is not None
    (checkout / "llm_guard/proxy/response/delivery.py").write_text("changed = True\n")
    assert current_commit(checkout) == f"{clean}+"


def test_outside_of_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert current_commit(tmp_path) is None
    assert computed_line(MACHINE | {"commit": None}) == "Measured outside of a git checkout."


def test_page_is_out_of_date_once_the_path_of_a_call_changes(checkout: Path) -> None:
    page = _page(checkout, current_commit(checkout))
    _commit(checkout, "docs/index.md")
    assert age(page, checkout).is_current, "a change elsewhere leaves the figures as they are"
    _commit(checkout, "llm_guard/resilience/circuit_breaker/breaker.py")
    _commit(checkout, "llm_guard/proxy/response/delivery.py")
    found = age(page, checkout)
    assert (found.changes, found.is_current) == (2, False)


def test_page_of_an_unknown_commit_is_not_current(checkout: Path) -> None:
    assert "not in this history" in str(age(_page(checkout, "0123456"), checkout))
    assert "measure it again" in str(age(_page(checkout, None), checkout))


def test_machine_names_what_the_line_needs() -> None:
    assert set(machine()) == set(MACHINE)
