from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from llm_guard.storage.errors import StoreError
from llm_guard.storage.token_file import FILE, read_token, shared_token
from llm_guard.storage.used_login_codes import UsedCodes

NOW = 1_800_000_000.0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# the token


def test_token_is_generated_once_and_no_other_user_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert read_token(folder) is None
    token, is_new = shared_token(folder)
    assert is_new
    assert len(token) == 43
    assert (mode(folder), mode(folder / FILE)) == (0o700, 0o600)
    assert shared_token(folder) == (token, False)
    assert read_token(folder) == token
    assert [each.name for each in folder.iterdir()] == [FILE]


def test_gateways_that_start_at_once_share_one_token(tmp_path: Path) -> None:
    for turn in range(20):
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: shared_token(tmp_path / str(turn)), range(8)))  # noqa: B023  # ends before
        assert len({token for token, _ in made}) == 1
        assert [is_new for _, is_new in made].count(True) == 1
        assert [each.name for each in (tmp_path / str(turn)).iterdir()] == [FILE]


def test_other_gateways_file_is_taken_where_it_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, theirs = os.link, "a" * 43

    def slow_link(source: Path, target: Path) -> None:
        target.write_text(theirs + "\n")
        link(source, target)

    monkeypatch.setattr(os, "link", slow_link)
    assert shared_token(tmp_path) == (theirs, False)
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("content", [b"", b"\n", b"a" * 42, b"a" * 44, b"a" * 42 + b"\xff", b"a" * 43 + b"\n\n", b"{}"])
def test_file_that_holds_no_whole_token_is_not_used_and_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    path.chmod(0o600)
    for read in (shared_token, read_token):
        with pytest.raises(StoreError, match=f"{path} has no complete token: rm {path}"):
            read(tmp_path)
    assert path.read_bytes() == content


def test_file_that_others_could_read_is_restricted_and_that_is_reported(tmp_path: Path) -> None:
    token, _ = shared_token(tmp_path)
    for wide in (0o644, 0o640, 0o660):
        (tmp_path / FILE).chmod(wide)
        with capture_logs() as log:
            assert shared_token(tmp_path) == (token, False)
        assert mode(tmp_path / FILE) == 0o600
        (line,) = log
        assert (line["event"], line["mode"]) == ("other users could read the operator token", f"{wide:o}")
        assert token not in str(log)


def test_file_that_any_user_could_have_written_is_not_trusted(tmp_path: Path) -> None:
    shared_token(tmp_path)
    (tmp_path / FILE).chmod(0o606)
    with pytest.raises(StoreError, match="all users can write to"):
        shared_token(tmp_path)


def test_file_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_token(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    if (tmp_path / FILE).stat().st_uid == 0:
        os.chown(tmp_path / FILE, 4712, -1)
    with pytest.raises(StoreError, match="belongs to another user"):
        shared_token(tmp_path)


def test_link_pipe_or_folder_of_that_name_is_not_followed(tmp_path: Path) -> None:
    token, _ = shared_token(tmp_path / "real")
    makers: tuple[Callable[[Path], None], ...] = (
        lambda path: path.symlink_to(tmp_path / "real" / FILE),
        os.mkfifo,
        Path.mkdir,
    )
    for number, make in enumerate(makers):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / FILE)
        with pytest.raises((OSError, StoreError)):
            shared_token(folder)
    assert shared_token(tmp_path / "real") == (token, False)


def test_disk_that_is_full_leaves_no_half_of_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        shared_token(tmp_path)
    assert [*tmp_path.iterdir()] == []


# used login codes


def test_code_is_used_once_by_all_gateways_of_a_folder_and_over_a_restart(tmp_path: Path) -> None:
    one, other = UsedCodes(lambda: tmp_path), UsedCodes(lambda: tmp_path)
    assert one.use("a", NOW + 600, NOW)
    assert not one.use("a", NOW + 600, NOW)
    assert not other.use("a", NOW + 600, NOW + 599)
    assert other.use("b", NOW + 600, NOW)
    assert not UsedCodes(lambda: tmp_path).use("b", NOW + 600, NOW)


def test_marks_are_forgotten_when_their_codes_are_too_old(tmp_path: Path) -> None:
    codes = UsedCodes(lambda: tmp_path)
    for number in range(5):
        assert codes.use(f"old{number}", NOW + 600, NOW)
    assert codes.use("new", NOW + 1300, NOW + 700)
    assert [each.name for each in (tmp_path / "ops-logins").iterdir()] == [f"{NOW + 1300:.0f}-new"]
    assert list(codes._known) == ["new"]


def test_without_a_folder_a_code_is_used_once_by_this_gateway(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    codes = UsedCodes(lambda: tmp_path / "file")
    with capture_logs() as log:
        assert [codes.use("a", NOW + 600, NOW) for _ in range(2)] == [True, False]
    assert [line["event"] for line in log] == [
        "a used login code could not be stored: other gateways would accept it again"
    ]
