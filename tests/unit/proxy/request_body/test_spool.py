from __future__ import annotations

import errno
import shutil
import tempfile
from types import SimpleNamespace
from typing import Any

import pytest

from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.request_body.spool import Spool, default_max_bytes

GIB = 1 << 30


def refusal(act: Any, *args: Any) -> tuple[int, str, bool, float | None]:
    with pytest.raises(BadRequest) as caught:
        act(*args)
    bad = caught.value
    return bad.status, bad.code, bad.should_retry, bad.retry_after_s


NO_ROOM = (503, "no_room_for_body", True, 5.0)
TOO_LARGE = (413, "body_too_large", False, None)


@pytest.mark.parametrize(("free", "limit"), [(100 * GIB, 4 * GIB), (8 * GIB, 4 * GIB), (6 * GIB, 3 * GIB), (0, 0)])
def test_default_is_half_of_the_free_disk_and_four_gibibytes_at_most(
    free: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert default_max_bytes() == limit


def test_default_without_a_usable_directory_leaves_the_refusal_to_each_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def gettempdir() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", gettempdir)
    assert default_max_bytes() == 4 * GIB


def test_files_together_may_take_exactly_the_limit() -> None:
    spool = Spool(100)
    first, second = spool.new_file(), spool.new_file()
    first.append(b"x" * 60)
    second.append(b"y" * 40)
    assert (spool.used_bytes, first.size, second.size) == (100, 60, 40)
    assert refusal(second.append, b"z") == NO_ROOM
    assert (spool.used_bytes, second.size) == (100, 40)
    second.seek(0)
    assert second.read(100) == b"y" * 40
    first.close()
    assert spool.used_bytes == 40
    second.append(b"z" * 60)
    assert spool.used_bytes == 100
    second.close()
    assert spool.used_bytes == 0


def test_second_close_frees_nothing() -> None:
    spool = Spool(100)
    one, other = spool.new_file(), spool.new_file()
    one.append(b"x" * 10)
    other.append(b"x" * 10)
    one.close()
    one.close()
    assert (spool.used_bytes, one.closed, other.closed) == (10, True, False)
    other.close()


def test_body_that_never_fits_is_too_large_and_one_that_does_not_fit_now_may_be_sent_again() -> None:
    spool = Spool(100)
    assert refusal(spool.check, 101) == TOO_LARGE
    spool.check(100)
    file = spool.new_file()
    file.append(b"x" * 30)
    spool.check(70)
    assert refusal(spool.check, 71) == NO_ROOM
    assert refusal(file.append, b"x" * 71) == TOO_LARGE
    file.close()
    spool.check(100)


def test_announced_body_reserves_nothing() -> None:
    spool = Spool(100)
    for _ in range(10):
        spool.check(100)
    assert spool.used_bytes == 0


def test_write_that_fails_releases_its_bytes_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk:
        closed = False

        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FullDisk())
    spool = Spool(100)
    file = spool.new_file()
    assert refusal(file.append, b"x" * 10) == NO_ROOM
    file.close()
    assert spool.used_bytes == 0


def test_lowered_limit_holds_for_new_bytes_and_none_is_the_default_again() -> None:
    spool = Spool(100)
    file = spool.new_file()
    file.append(b"x" * 80)
    spool.adopt(50)
    assert (spool.max_bytes, spool.used_bytes) == (50, 80)
    assert refusal(spool.check, 1) == NO_ROOM
    spool.adopt(None)
    spool.check(20)
    file.close()
