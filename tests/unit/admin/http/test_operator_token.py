"""Which token a gateway uses when its config has none."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from llm_guard.admin.http import operator_token
from llm_guard.admin.http.credentials import credentials_of, needs_generated
from llm_guard.admin.http.operator_token import Generated, OperatorToken
from llm_guard.clock import SystemClock
from llm_guard.config import Ops

VIC = {"name": "vic", "token": "the-token-of-vic", "role": "viewer"}
ANN = {"name": "ann", "token": "the-token-of-ann", "role": "operator"}


def prepared(token: OperatorToken, rules: Ops) -> Generated:
    token.prepare(rules)
    assert token.generated is not None
    return token.generated


@pytest.mark.parametrize(
    ("rules", "is_needed"),
    [({}, True), ({"token": "x"}, False), ({"tokens": [VIC]}, True), ({"tokens": [VIC, ANN]}, False)],
)
def test_token_is_generated_where_none_is_configured_to_change_anything(
    tmp_path: Path, rules: dict[str, object], is_needed: bool
) -> None:
    ops = Ops.model_validate({**rules, "store": str(tmp_path / "s")})
    token = OperatorToken()
    token.prepare(ops)
    assert needs_generated(ops) is (token.generated is not None) is (tmp_path / "s").exists() is is_needed


def test_generated_token_is_no_credential_in_addition_to_a_configured_one() -> None:
    assert [credential.name for credential in credentials_of(Ops(), "generated")] == ["operator"]
    for rules in (Ops(token="chosen"), Ops.model_validate({"tokens": [ANN]})):
        credentials = credentials_of(rules, "generated")
        assert len(credentials) == 1
        assert credentials == credentials_of(rules, None)


def test_usual_folder_is_that_of_the_environment(tmp_path: Path) -> None:
    found = prepared(OperatorToken({"XDG_STATE_HOME": str(tmp_path)}), Ops())
    assert found.file == tmp_path / "llm-guard" / "ops-token"
    assert found.is_new
    assert not prepared(OperatorToken({"XDG_STATE_HOME": str(tmp_path)}), Ops()).is_new


def test_token_stays_while_its_disk_fails_and_is_never_shown(tmp_path: Path) -> None:
    rules = Ops(store=str(tmp_path / "s"))
    token = OperatorToken()
    first = prepared(token, rules)
    (tmp_path / "s" / "ops-token").write_text("")
    with capture_logs() as log:
        assert prepared(token, rules) == first
    assert [line["log_level"] for line in log] == ["error"]
    assert first.token not in str(log) + repr(first) + repr(token)


async def test_disk_that_does_not_answer_does_not_hold_up_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hang(_folder: Path) -> tuple[str, bool]:
        answers.wait(10)
        return "a" * 43, False

    monkeypatch.setattr(operator_token, "shared_token", hang)
    token = OperatorToken()
    with capture_logs() as log:
        await token.prepare_within(0.02, Ops(), SystemClock())
    answers.set()
    assert token.generated is not None
    assert token.generated.file is None  # even if the disk responds later: the token shown at the start stays valid
    assert "has not responded within 0.02 s" in log[0]["error"]
