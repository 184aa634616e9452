from __future__ import annotations

import pytest

from llm_guard.outcome import FailureKind, Scope, Signal, Source


def test_labels_are_distinct_and_lower_case() -> None:
    labels = [kind.label for kind in FailureKind]
    assert labels == [kind.name.lower() for kind in FailureKind]
    assert len(set(labels)) == len(FailureKind)


@pytest.mark.parametrize("kind", FailureKind)
def test_only_what_an_upstream_did_counts_against_it(kind: FailureKind) -> None:
    assert kind.signal is not Signal.HEALTHY
    if kind.signal is Signal.UNHEALTHY:
        assert kind.source is Source.UPSTREAM
        assert kind.scope in (Scope.DEPLOYMENT, Scope.HOST)


@pytest.mark.parametrize("kind", FailureKind)
def test_what_counts_against_a_deployment_is_retried_and_can_be_cured_elsewhere(kind: FailureKind) -> None:
    if kind.signal is Signal.UNHEALTHY:
        assert kind.is_retriable
        assert kind.can_fall_back


@pytest.mark.parametrize("kind", FailureKind)
def test_what_concerns_the_call_alone_is_asked_of_nobody_else(kind: FailureKind) -> None:
    assert kind.can_fall_back is (kind.scope is not Scope.CALL)


def test_what_a_client_or_the_gateway_did_is_never_repeated() -> None:
    for kind in (FailureKind.CLIENT_CANCELLED, FailureKind.INTERNAL):
        assert kind.source is not Source.UPSTREAM
        assert not kind.is_retriable


def test_rate_limit_is_no_evidence_of_bad_health() -> None:
    assert FailureKind.RATE_LIMIT.signal is Signal.NO_EVIDENCE
