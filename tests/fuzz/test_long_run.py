"""The long run finds planted bugs, shrinks their inputs and saves them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks.fuzz import Course, Lines
from llm_guard.dialects.resume.text_join import seam
from tests.fuzz.targets import TARGETS, Target

SEED = b'data: {"a": 1}\n\n'


def planted(data: bytes) -> None:
    """Breaks in two ways on inputs that random bytes hardly ever produce."""
    if b"\n\n\n" in data[4:]:
        assert data.count(b"a") < 2, "two of them"
        raise KeyError("none")


def course(run: object, cases: Path, seeds: tuple[bytes, ...] = (SEED,)) -> Course:
    return Course("planted", Target(run, seeds, 1), random.Random(7), cases)  # type: ignore[arg-type]


def test_planted_bugs_are_found_minimized_and_stored_once_each(tmp_path: Path) -> None:
    found = course(planted, tmp_path)
    for _ in range(2000):
        found.try_one(found._next(), is_watched=False)
    files = sorted((tmp_path / "planted").iterdir())
    assert [file.name.partition("-")[0] for file in files] == ["AssertionError", "KeyError"]
    assert sorted(file.read_bytes()[4:].replace(b"\n", b"") for file in files) == [b"", b"aa"]
    assert all(file.name in "".join(found.broken.values()) for file in files)


def test_input_that_reaches_a_new_line_is_stored_and_another_is_not(tmp_path: Path) -> None:
    def joins(data: bytes) -> None:
        seam("prefill" if data[4:] == b"x" else "restart", "sent").feed("new")

    found = course(joins, tmp_path)
    for data, count in ((b"dicey", 2), (b"dicez", 2), (b"dicex", 3)):
        found.try_one(data, is_watched=True)
        assert len(found._kept) == count, data
    assert not found.broken


def test_lines_of_other_modules_are_not_counted() -> None:
    lines = Lines()
    lines.watch(lambda: random.Random(1).shuffle([1, 2]))
    assert lines.count == 0


def test_input_that_hangs_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(data: bytes) -> None:
        while data.startswith(b"dice"):
            pass

    monkeypatch.setattr(fuzz, "LONGEST_S", 0.05)
    found = course(hangs, tmp_path)
    found.try_one(b"dice", is_watched=True)
    assert [kind[0] for kind in found.broken if isinstance(kind, tuple)] == ["TimeoutError"]


def test_run_shares_its_time_and_reports_its_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuzz, "CASES", tmp_path)
    said: list[str] = []
    assert fuzz.run(said.append, 0.0, ["seam", "limits"], seed=1) == []
    assert said[0] == "seed 1"
    assert [line.split()[0] for line in said[1:]] == [name for name in TARGETS if name in ("seam", "limits")]
