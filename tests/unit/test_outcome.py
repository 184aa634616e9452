from __future__ import annotations

import pickle

from llm_guard.outcome import FailureKind, Signal, Source


def test_labels_are_distinct_and_lower_case() -> None:
    labels = [kind.label for kind in FailureKind]
    assert labels == [kind.name.lower() for kind in FailureKind]
    assert len(set(labels)) == len(FailureKind)


def test_failure_of_client_or_gateway_is_never_repeated() -> None:
    for kind in (FailureKind.CLIENT_CANCELLED, FailureKind.INTERNAL):
        assert kind.source is not Source.UPSTREAM
        assert not kind.is_retriable


def test_rate_limit_is_no_evidence_of_bad_health() -> None:
    assert FailureKind.RATE_LIMIT.signal is Signal.NO_EVIDENCE


def test_kind_can_be_pickled_by_its_label() -> None:
    assert [kind.value for kind in FailureKind] == [kind.label for kind in FailureKind]
    assert [pickle.loads(pickle.dumps(kind)) for kind in FailureKind] == list(FailureKind)
