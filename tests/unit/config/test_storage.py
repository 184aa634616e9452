"""The encryption key in the config's `store`. The other keys of the section have no special parsing."""

from __future__ import annotations

import base64

import pytest

from llm_guard.config import parse_config
from llm_guard.config.storage import encryption_keys
from tests.unit.config.test_config import BASE, MODELS, problem

KEY = base64.b64encode(bytes(range(32))).decode()
ASK = "store.encryption_key: must be 32 random bytes, as `openssl rand -base64 32` prints them; "


def test_key_is_32_bytes_in_either_base64() -> None:
    raw = b"\xfb\xff" * 16
    assert encryption_keys(base64.b64encode(raw).decode()) == (raw,)
    assert encryption_keys(base64.urlsafe_b64encode(raw).decode()) == (raw,)
    assert encryption_keys(f"{KEY},{base64.b64encode(raw).decode()}") == (bytes(range(32)), raw)


def test_key_is_read_from_a_variable_and_absent_if_unset() -> None:
    text = BASE + MODELS + 'store: {encryption_key: "${STORE_KEY:-}"}'
    assert parse_config(text, env={"STORE_KEY": KEY}).store.encryption_key == KEY
    assert parse_config(text, env={}).store.encryption_key is None


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("correct-horse-battery-staple", "it is not"),
        (base64.b64encode(b"short").decode(), "it is not"),
        (base64.b64encode(bytes(range(33))).decode(), "it is not"),
        (KEY[:-1], "it is not"),
        (f"{KEY},", "entry 2 is not"),
        (f"{KEY},{KEY[:-5]}", "entry 2 is not"),
    ],
)
def test_invalid_key_is_reported_and_not_quoted(key: str, said: str) -> None:
    told = problem(MODELS + "store:\n  encryption_key: ${STORE_KEY}", STORE_KEY=key)
    assert told == f"6: {ASK}{said}"


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_guard.config.storage.find_spec", lambda name: None)
    told = problem(MODELS + f"store:\n  encryption_key: {KEY}")
    assert told == (
        "6: store.encryption_key: needs cryptography, which is not installed: pip install 'llm-guard-proxy[encryption]'"
    )
    assert parse_config(BASE + MODELS).store.encryption_key is None


def test_bodies_that_are_to_be_encrypted_need_a_key() -> None:
    told = problem(MODELS + "store:\n  dead_letters: {bodies: encrypted}")
    assert told == (
        "6: store.dead_letters.bodies: cannot be encrypted: set store.encryption_key to the output of "
        "`openssl rand -base64 32`, through a variable"
    )
    config = parse_config(BASE + MODELS + f"store: {{encryption_key: {KEY}, dead_letters: {{bodies: encrypted}}}}")
    assert config.store.dead_letters.bodies == "encrypted"
