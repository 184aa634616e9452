from __future__ import annotations

import pytest

from llm_guard.storage.calls.encryption import _NONCE_BYTES, _TAG_BYTES, BodyEncryption

ONE, OTHER = b"1" * 32, b"2" * 32
CONTENT = b"why is the sky blue?"


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_guard.storage.calls.encryption._PIECE_BYTES", 8)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 8, b"x" * 9, CONTENT * 10])
def test_sealed_data_is_opened_by_the_same_key(content: bytes) -> None:
    sealing = BodyEncryption([ONE])
    assert sealing.open(sealing.seal(content, "a"), "a", sealing.newest) == content


def test_it_is_never_sealed_the_same_twice_and_shows_nothing() -> None:
    sealing = BodyEncryption([ONE])
    sealed = [sealing.seal(CONTENT, "a") for _ in range(2)]
    assert sealed[0] != sealed[1]
    assert all(CONTENT[at : at + 4] not in each for each in sealed for at in range(len(CONTENT) - 4))


def test_newest_key_seals_and_all_open() -> None:
    old = BodyEncryption([OTHER])
    sealed = old.seal(CONTENT, "a")
    both = BodyEncryption([ONE, OTHER])
    assert both.newest == BodyEncryption([ONE]).newest
    assert both.names == (BodyEncryption([ONE]).newest, old.newest)
    assert both.open(sealed, "a", old.newest) == CONTENT
    assert BodyEncryption([ONE]).open(both.seal(CONTENT, "a"), "a", both.newest) == CONTENT
    with pytest.raises(KeyError):
        BodyEncryption([ONE]).open(sealed, "a", old.newest)


def test_name_of_a_key_does_not_reveal_it() -> None:
    name = BodyEncryption([ONE]).newest
    assert len(name) == 16
    assert ONE.hex() not in name


def test_changed_or_moved_it_is_not_opened() -> None:
    sealing = BodyEncryption([ONE])
    sealed = sealing.seal(CONTENT, "a")
    size = _NONCE_BYTES + 8 + _TAG_BYTES
    wrong = [
        sealed[:-1],
        sealed[:size],
        sealed[size:],
        sealed[size : 2 * size] + sealed[:size] + sealed[2 * size :],
        sealed + sealed[:size],
        bytes([sealed[0] ^ 1]) + sealed[1:],
        sealed[:20] + bytes([sealed[20] ^ 1]) + sealed[21:],
        b"",
        b"x",
    ]
    for each in wrong:
        with pytest.raises(ValueError, match=r"damaged|it is empty"):
            sealing.open(each, "a", sealing.newest)
    with pytest.raises(ValueError, match="damaged"):
        sealing.open(sealed, "b", sealing.newest)
