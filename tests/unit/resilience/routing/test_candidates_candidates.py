from __future__ import annotations

from math import inf

import pytest

from llm_guard.resilience.retry.decision import FallBack, Retry
from llm_guard.resilience.routing.candidates import Candidate, Candidates


def three() -> tuple[Candidates, Candidate, Candidate, Candidate]:
    """Returns two deployments of one model, then one of another."""
    a, b, c = Candidate(0, "gpt"), Candidate(1, "gpt"), Candidate(2, "claude")
    return Candidates([a, b, c]), a, b, c


def test_all_may_be_tried_at_once_in_their_order() -> None:
    candidates, *stops = three()
    assert candidates.next() == tuple(stops)
    assert {(stop.not_before, stop.waited_for, stop.retries, stop.is_paid) for stop in stops} == {(-inf, "", 0, False)}


def test_retried_candidate_stands_alone_until_its_wait_is_over() -> None:
    candidates, a, _, _ = three()
    candidates.retry(a, Retry(0.5), now=10.0)
    assert candidates.next() == (a,)
    assert (a.not_before, a.previous_s, a.retries, a.waited_for, a.is_paid) == (10.5, 0.5, 1, "backoff", True)


def test_candidate_retried_with_another_key_stands_alone_and_counts_no_retry() -> None:
    candidates, a, _, _ = three()
    candidates.retry(a, Retry(0.5), now=10.0)
    candidates.release()
    candidates.ask_again(a)
    assert candidates.next() == (a,)
    assert (a.not_before, a.retries, a.is_paid) == (-inf, 1, True)


def test_retry_requested_by_the_upstream_is_marked() -> None:
    candidates, a, _, _ = three()
    candidates.retry(a, Retry(7.0, is_hint=True), now=10.0)
    assert a.waited_for == "retry-after"


def test_candidate_that_fell_back_is_not_tried_again() -> None:
    candidates, a, b, c = three()
    candidates.fall_back(a, FallBack(), now=10.0)
    assert candidates.next() == (b, c)
    assert a.retries == 0


def test_deferred_candidate_follows_those_of_its_model_and_has_not_paid() -> None:
    candidates, a, b, c = three()
    candidates.fall_back(a, FallBack(back_after_s=2.0, is_hint=True), now=10.0)
    assert candidates.next() == (b, a, c)
    assert (a.not_before, a.previous_s, a.retries, a.waited_for, a.is_paid) == (12.0, 2.0, 1, "retry-after", False)


def test_candidate_deferred_as_the_last_follows_all_others() -> None:
    candidates, a, b, c = three()
    candidates.fall_back(a, FallBack(back_after_s=2.0, is_last=True), now=10.0)
    assert candidates.next() == (b, c, a)


def test_deferred_candidates_are_in_the_order_in_which_they_failed() -> None:
    candidates, a, b, c = three()
    candidates.fall_back(b, FallBack(back_after_s=0.0), now=10.0)
    candidates.fall_back(a, FallBack(back_after_s=0.0), now=10.0)
    assert candidates.next() == (b, a, c)
    candidates.fall_back(b, FallBack(back_after_s=0.0, is_last=True), now=10.0)
    candidates.fall_back(a, FallBack(back_after_s=0.0, is_last=True), now=10.0)
    assert candidates.next() == (c, b, a)


def test_candidate_whose_peers_come_after_another_model_stands_before_that_model() -> None:
    candidates, a, b, c = three()
    candidates.fall_back(a, FallBack(back_after_s=0.0, is_last=True), now=10.0)
    candidates.fall_back(b, FallBack(back_after_s=0.0), now=10.0)
    assert candidates.next() == (b, c, a)


def test_peers_are_the_others_of_the_same_model() -> None:
    candidates, a, b, c = three()
    assert (candidates.peers(a), candidates.peers(b), candidates.peers(c)) == ((b,), (a,), ())


def test_one_that_paid_for_its_last_retry_has_to_pay_for_the_next() -> None:
    candidates, a, _, _ = three()
    candidates.retry(a, Retry(0.5), now=10.0)
    candidates.fall_back(a, FallBack(back_after_s=1.0), now=11.0)
    assert (a.is_paid, a.retries) == (False, 2)


def test_fall_back_to_another_model_drops_all_of_this_one() -> None:
    candidates, a, b, c = three()
    candidates.fall_back(b, FallBack(back_after_s=1.0), now=10.0)
    candidates.fall_back(a, FallBack(to_other_model=True), now=11.0)
    assert candidates.next() == (c,)


def test_fall_back_after_a_retry_readmits_the_others() -> None:
    candidates, a, b, c = three()
    candidates.retry(a, Retry(0.5), now=10.0)
    candidates.fall_back(a, FallBack(), now=11.0)
    assert candidates.next() == (b, c)


def test_dropping_the_retried_candidate_readmits_the_others() -> None:
    candidates, a, b, c = three()
    candidates.retry(a, Retry(0.5), now=10.0)
    candidates.drop(a)
    assert candidates.next() == (b, c)


def test_when_all_are_dropped_none_is_left() -> None:
    candidates, *stops = three()
    for candidate in stops:
        candidates.drop(candidate)
    assert candidates.next() == ()


def test_others_are_all_but_one_also_while_that_one_is_retried() -> None:
    candidates, a, b, c = three()
    candidates.retry(b, Retry(0.5), now=10.0)
    assert candidates.others(b) == (a, c)


def test_release_readmits_the_others_once_and_preserves_the_order() -> None:
    candidates, a, b, c = three()
    candidates.retry(b, Retry(0.5), now=10.0)
    assert candidates.release()
    assert candidates.next() == (a, b, c)
    assert not candidates.release()
    assert b.is_paid


@pytest.mark.parametrize("is_retried", [True, False])
def test_release_changes_nothing_without_another(is_retried: bool) -> None:
    only = Candidate(0, "gpt")
    candidates = Candidates([only])
    if is_retried:
        candidates.retry(only, Retry(0.5), now=10.0)
    assert not candidates.release()
    assert candidates.next() == (only,)
