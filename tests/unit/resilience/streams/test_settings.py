from __future__ import annotations

import pytest

from llm_guard.outcome import Failure, FailureKind
from llm_guard.resilience.streams.settings import ResumePolicy, effective_recover, may_recover, parse_recover


@pytest.mark.parametrize(
    ("written", "meant"),
    [(False, "off"), ("off", "off"), ("auto", "auto"), ("continue", "continue"), ("restart", "restart")],
)
def test_recovery_is_named(written: object, meant: str) -> None:
    """YAML parses a bare `off` as false."""
    assert parse_recover(written) == meant


@pytest.mark.parametrize("written", [True, None, 1, "on", "Continue"])
def test_unknown_values_are_refused(written: object) -> None:
    with pytest.raises(ValueError, match="off, auto, continue or restart"):
        parse_recover(written)


@pytest.mark.parametrize("recover", ["off", "auto", "continue", "restart"])
def test_by_itself_a_stream_is_recovered_only_where_a_deployment_takes_a_beginning(recover: ResumePolicy) -> None:
    assert effective_recover(recover, takes_prefill=True) == recover
    assert effective_recover(recover, takes_prefill=False) == ("off" if recover == "auto" else recover)


@pytest.mark.parametrize(
    ("failure", "may"),
    [
        (Failure(FailureKind.TRUNCATED, ""), True),
        (Failure(FailureKind.TIMEOUT, "", limit="idle"), True),
        (Failure(FailureKind.OVERLOADED, ""), True),
        (Failure(FailureKind.DIVERGED, ""), True),
        (Failure(FailureKind.QUOTA_EXHAUSTED, ""), True),
        (Failure(FailureKind.TIMEOUT, "", limit="total"), False),
        (Failure(FailureKind.CONTENT_POLICY, ""), False),
        (Failure(FailureKind.INVALID_REQUEST, ""), False),
        (Failure(FailureKind.CLIENT_CANCELLED, ""), False),
        (Failure(FailureKind.INTERNAL, ""), False),
    ],
)
def test_stream_that_died_of_what_another_may_survive_is_resumed(failure: Failure, may: bool) -> None:
    assert may_recover(failure) is may
