from __future__ import annotations

from math import inf

import pytest

from llm_guard.policy.itinerary import Itinerary, Stop
from llm_guard.policy.next_step import FallBack, Retry


def three() -> tuple[Itinerary, Stop, Stop, Stop]:
    """Returns two deployments of one model, then one of another."""
    a, b, c = Stop(0, "gpt"), Stop(1, "gpt"), Stop(2, "claude")
    return Itinerary([a, b, c]), a, b, c


def test_all_may_be_asked_at_once_in_their_order() -> None:
    line, *stops = three()
    assert line.next() == tuple(stops)
    assert {(each.not_before, each.waited_for, each.retries, each.is_paid) for each in stops} == {(-inf, "", 0, False)}


def test_retried_one_stands_alone_until_its_wait_is_over() -> None:
    line, a, _, _ = three()
    line.retry(a, Retry(0.5), now=10.0)
    assert line.next() == (a,)
    assert (a.not_before, a.previous_s, a.retries, a.waited_for, a.is_paid) == (10.5, 0.5, 1, "backoff", True)


def test_one_that_is_asked_with_another_key_stands_alone_and_counts_no_retry() -> None:
    line, a, _, _ = three()
    line.retry(a, Retry(0.5), now=10.0)
    line.release()
    line.ask_again(a)
    assert line.next() == (a,)
    assert (a.not_before, a.retries, a.is_paid) == (-inf, 1, True)


def test_retry_that_the_upstream_asked_for_says_so() -> None:
    line, a, _, _ = three()
    line.retry(a, Retry(7.0, is_hint=True), now=10.0)
    assert a.waited_for == "retry-after"


def test_one_that_is_fallen_back_from_is_asked_no_more() -> None:
    line, a, b, c = three()
    line.fall_back(a, FallBack(), now=10.0)
    assert line.next() == (b, c)
    assert a.retries == 0


def test_one_that_is_put_back_stands_behind_those_of_its_model_and_has_not_paid() -> None:
    line, a, b, c = three()
    line.fall_back(a, FallBack(back_after_s=2.0, is_hint=True), now=10.0)
    assert line.next() == (b, a, c)
    assert (a.not_before, a.previous_s, a.retries, a.waited_for, a.is_paid) == (12.0, 2.0, 1, "retry-after", False)


def test_one_that_is_put_back_as_the_last_stands_behind_all_others() -> None:
    line, a, b, c = three()
    line.fall_back(a, FallBack(back_after_s=2.0, is_last=True), now=10.0)
    assert line.next() == (b, c, a)


def test_those_that_are_put_back_stand_in_the_order_in_which_they_failed() -> None:
    line, a, b, c = three()
    line.fall_back(b, FallBack(back_after_s=0.0), now=10.0)
    line.fall_back(a, FallBack(back_after_s=0.0), now=10.0)
    assert line.next() == (b, a, c)
    line.fall_back(b, FallBack(back_after_s=0.0, is_last=True), now=10.0)
    line.fall_back(a, FallBack(back_after_s=0.0, is_last=True), now=10.0)
    assert line.next() == (c, b, a)


def test_one_whose_peers_come_after_another_model_stands_before_that_model() -> None:
    line, a, b, c = three()
    line.fall_back(a, FallBack(back_after_s=0.0, is_last=True), now=10.0)
    line.fall_back(b, FallBack(back_after_s=0.0), now=10.0)
    assert line.next() == (b, c, a)


def test_peers_are_the_others_of_the_same_model() -> None:
    line, a, b, c = three()
    assert (line.peers(a), line.peers(b), line.peers(c)) == ((b,), (a,), ())


def test_one_that_paid_for_its_last_retry_has_to_pay_for_the_next() -> None:
    line, a, _, _ = three()
    line.retry(a, Retry(0.5), now=10.0)
    line.fall_back(a, FallBack(back_after_s=1.0), now=11.0)
    assert (a.is_paid, a.retries) == (False, 2)


def test_fall_back_to_another_model_drops_all_of_this_one() -> None:
    line, a, b, c = three()
    line.fall_back(b, FallBack(back_after_s=1.0), now=10.0)
    line.fall_back(a, FallBack(to_other_model=True), now=11.0)
    assert line.next() == (c,)


def test_fall_back_after_a_retry_lets_the_others_in() -> None:
    line, a, b, c = three()
    line.retry(a, Retry(0.5), now=10.0)
    line.fall_back(a, FallBack(), now=11.0)
    assert line.next() == (b, c)


def test_dropping_the_one_that_was_retried_lets_the_others_in() -> None:
    line, a, b, c = three()
    line.retry(a, Retry(0.5), now=10.0)
    line.drop(a)
    assert line.next() == (b, c)


def test_when_all_are_dropped_nobody_is_left() -> None:
    line, *stops = three()
    for stop in stops:
        line.drop(stop)
    assert line.next() == ()


def test_others_are_all_but_one_also_while_that_one_is_retried() -> None:
    line, a, b, c = three()
    line.retry(b, Retry(0.5), now=10.0)
    assert line.others(b) == (a, c)


def test_release_lets_the_others_in_once_and_keeps_the_order() -> None:
    line, a, b, c = three()
    line.retry(b, Retry(0.5), now=10.0)
    assert line.release()
    assert line.next() == (a, b, c)
    assert not line.release()
    assert b.is_paid


@pytest.mark.parametrize("is_retried", [True, False])
def test_release_changes_nothing_where_there_is_nobody_else(is_retried: bool) -> None:
    only = Stop(0, "gpt")
    line = Itinerary([only])
    if is_retried:
        line.retry(only, Retry(0.5), now=10.0)
    assert not line.release()
    assert line.next() == (only,)
