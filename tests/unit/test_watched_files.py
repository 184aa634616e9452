from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from llm_guard.clock import SystemClock
from llm_guard.watched_files import BadFile, Contents, WatchedFiles


def text_in(contents: Contents) -> str:
    (content,) = contents.values()
    if content.startswith(b"bad"):
        raise BadFile("it is bad")
    return content.decode()


def watched(file: Path, found: list[str]) -> WatchedFiles[str]:
    return WatchedFiles("the file", [str(file)], text_in, found.append, SystemClock())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_text("one")
    return file


def write(file: Path, text: str) -> None:
    file.write_text(text)


def problem_of(files: WatchedFiles[str]) -> str | None:
    """Wraps an attribute, because a type checker does not expect it to change between two assertions."""
    return files.problem


async def test_only_changed_content_is_adopted(file: Path) -> None:
    found: list[str] = []
    files = watched(file, found)
    assert files.load() == "one"
    await files.refresh()
    assert found == []
    write(file, "two")
    await files.refresh()
    await files.refresh()
    assert found == ["two"]


async def test_same_size_and_time_are_no_reason_to_miss_a_change(file: Path) -> None:
    found: list[str] = []
    files = watched(file, found)
    files.load()
    before = os.stat(file)
    write(file, "two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    await files.refresh()
    assert found == ["two"]


async def test_problem_is_reported_once_and_ends_with_it(file: Path) -> None:
    files = watched(file, [])
    files.load()
    with capture_logs() as log:
        write(file, "bad")
        for _ in range(3):
            await files.refresh()
        assert problem_of(files) == "it is bad"
        write(file, "bad in another way")
        await files.refresh()
        assert [line["log_level"] for line in log] == ["error"]
        write(file, "one")
        await files.refresh()
    assert problem_of(files) is None
    assert [line["event"] for line in log][1:] == ["changed files are in use"]


async def test_restored_file_ends_the_problem(file: Path) -> None:
    found: list[str] = []
    files = watched(file, found)
    files.load()
    os.unlink(file)
    await files.refresh()
    assert problem_of(files) == f"{file} does not exist"
    write(file, "one")
    await files.refresh()
    assert (problem_of(files), found) == (None, [])


async def test_check_that_is_given_up_leaves_the_change_to_the_next(file: Path) -> None:
    begun, go_on, found = threading.Event(), threading.Event(), list[str]()

    def slow(contents: Contents) -> str:
        begun.set()
        go_on.wait(5)
        return text_in(contents)

    files = WatchedFiles("the file", [str(file)], slow, found.append, SystemClock())
    go_on.set()
    files.load()
    go_on.clear()
    begun.clear()
    write(file, "two")
    look = asyncio.create_task(files.refresh())
    assert await asyncio.to_thread(begun.wait, 5)
    look.cancel()
    await asyncio.gather(look, return_exceptions=True)
    go_on.set()
    assert found == []
    await files.refresh()
    assert found == ["two"]
