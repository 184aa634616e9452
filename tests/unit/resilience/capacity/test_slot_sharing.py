"""Slots that several gateways share, without a store: who gets how many, and what each may use meanwhile."""

from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.slot_sharing import (
    SLOTS_HELD_S,
    SlotGrant,
    SlotRequest,
    SlotShare,
    fair_shares,
    granted,
)


@pytest.mark.parametrize(
    ("limit", "needs", "shares"),
    [
        (20, {"a": 0}, {"a": 20}),
        (20, {"a": 0, "b": 0, "c": 0}, {"a": 6, "b": 7, "c": 7}),
        (20, {"a": 50, "b": 50}, {"a": 10, "b": 10}),
        (20, {"a": 50, "b": 3}, {"a": 17, "b": 3}),
        (20, {"a": 1, "b": 5, "c": 99}, {"a": 1, "b": 5, "c": 14}),
        (20, {"a": 4, "b": 6}, {"a": 9, "b": 11}),
        (3, {"a": 9, "b": 1, "c": 9, "d": 9}, {"a": 1, "b": 1, "c": 1, "d": 0}),
        (1, {"a": 0, "b": 1}, {"a": 0, "b": 1}),
        (0, {"a": 1}, {"a": 0}),
    ],
)
def test_small_needs_are_met_first_and_the_rest_is_divided(
    limit: int, needs: dict[str, int], shares: dict[str, int]
) -> None:
    assert fair_shares(limit, needs, 0) == shares


def test_gateways_take_turns_where_there_are_fewer_slots_than_needs() -> None:
    turns = [fair_shares(1, {"a": 9, "b": 1, "c": 0, "d": 3}, turn) for turn in range(8)]
    had = [name for shares in turns for name, share in shares.items() if share]
    assert {name: had.count(name) for name in "abcd"} == {"a": 2, "b": 2, "c": 0, "d": 4}


def test_none_gets_more_than_its_part_until_all_known_gateways_have_asked() -> None:
    """The store may have lost what they hold."""
    assert granted(SlotRequest(20, 0, 9, gateways=4), "a", {}, 0) == SlotGrant(5, 5)
    assert granted(SlotRequest(20, 0, 9, gateways=2), "a", {"b": SlotRequest(20, 1, 1)}, 0) == SlotGrant(14, 14)
    assert granted(SlotRequest(20, 7, 9, gateways=4), "a", {}, 0) == SlotGrant(7, 5)


def test_smallest_limit_counts_where_gateways_disagree() -> None:
    assert granted(SlotRequest(20, 0, 20), "a", {"b": SlotRequest(8, 2, 2)}, 0) == SlotGrant(6, 6)
    assert granted(SlotRequest(8, 0, 0), "b", {"a": SlotRequest(20, 6, 6)}, 0) == SlotGrant(1, 1)


def test_gateway_gets_no_slot_that_another_one_holds() -> None:
    others = {"a": SlotRequest(20, 15, 2), "b": SlotRequest(20, 4, 1)}
    assert granted(SlotRequest(20, 0, 10), "c", others, 0) == SlotGrant(1, 13)
    others = {"a": SlotRequest(20, 2, 2), "b": SlotRequest(20, 1, 1)}
    assert granted(SlotRequest(20, 1, 10), "c", others, 0) == SlotGrant(13, 13)


def test_slots_in_use_are_not_taken_away() -> None:
    assert granted(SlotRequest(10, 10, 10), "a", {"b": SlotRequest(10, 0, 10)}, 0) == SlotGrant(10, 5)


def test_gateway_gives_up_slots_before_it_says_so() -> None:
    share = SlotShare()
    share.request(20, 0, 0, 2, 0.0)
    share.grant(SlotGrant(20, 20))
    share.request(20, 8, 0, 2, 0.1)
    share.grant(SlotGrant(20, 5))
    assert share.usable(20, 2, 0.15, is_connected=True) == 20
    assert share.request(20, 8, 0, 2, 0.2) == SlotRequest(20, 8, 8, gateways=2)
    assert share.usable(20, 2, 0.2, is_connected=True) == 8
    assert share.request(20, 3, 0, 2, 0.3).holds == 5
    assert share.request(20, 3, 0, 2, 0.2 + SLOTS_HELD_S).holds == 3, "the others may have them by now"
    share.grant(SlotGrant(9, 9))
    assert share.request(4, 7, 0, 2, 5.3).holds == 7, "calls that are running use their slots under any limit"


def test_need_of_the_past_keeps_no_slot_where_there_are_few() -> None:
    share = SlotShare()
    assert share.request(2, 1, 1, 2, 0.0).need == 2
    assert share.request(2, 0, 0, 2, 0.1).need == 0


def test_idle_limit_is_asked_for_less_often() -> None:
    share = SlotShare()
    assert share.is_due(0, 0, 0.0, 2.0)
    share.request(20, 0, 0, 2, 0.0)
    assert share.is_due(0, 0, 0.1, 2.0), "there was no answer"
    share.grant(SlotGrant(3, 10))
    assert share.is_due(0, 0, 0.1, 2.0), "there is more to get"
    share.grant(SlotGrant(10, 10))
    assert not share.is_due(0, 0, 1.9, 2.0)
    assert share.is_due(1, 0, 0.1, 2.0)
    assert share.is_due(0, 1, 0.1, 2.0)
    assert share.is_due(0, 0, 2.0, 2.0)


def test_need_of_a_moment_ago_counts() -> None:
    share = SlotShare()
    assert share.request(20, 4, 5, 2, 0.0).need == 9
    assert share.request(20, 1, 0, 2, 2.0).need == 9
    assert share.request(20, 1, 0, 2, 4.0).need == 9
    assert share.request(20, 1, 0, 2, 7.0).need == 1
    assert share.request(20, 90, 0, 2, 8.0).need == 20
    assert share.request(20, 2, 0, 2, 60.0).need == 2


def test_limit_is_whole_until_a_store_has_answered() -> None:
    share = SlotShare()
    share.request(20, 0, 0, 2, 0.0)
    assert share.usable(20, 1, 0.0, is_connected=True) is None
    assert share.usable(20, 1, 9.0, is_connected=False) is None
    assert share.usable(20, 4, 0.0, is_connected=True) == 5, "others are known, and may have calls"
    assert share.usable(20, 4, 9.0, is_connected=False) == 5


@pytest.mark.parametrize(("held", "at_first", "later"), [(12, 12, 5), (0, 1, 5)])
def test_without_the_store_a_gateway_keeps_its_slots_and_then_has_an_equal_part(
    held: int, at_first: int, later: int
) -> None:
    share = SlotShare()
    share.request(20, 0, 0, 2, 100.0)
    share.grant(SlotGrant(held, held))
    assert share.usable(20, 4, 100.1, is_connected=False) == at_first
    assert share.usable(20, 4, 100.0 + SLOTS_HELD_S, is_connected=False) == later
    assert share.usable(20, 50, 100.0 + SLOTS_HELD_S, is_connected=False) == 1


def test_lowered_limit_holds_at_once() -> None:
    share = SlotShare()
    share.request(20, 0, 0, 2, 0.0)
    share.grant(SlotGrant(20, 20))
    assert share.request(5, 1, 0, 2, 1.0).holds == 5


def test_gateway_without_the_store_tells_what_it_uses() -> None:
    share = SlotShare()
    share.request(20, 0, 0, 2, 0.0)
    share.grant(SlotGrant(4, 4))
    assert share.request(20, 1, 0, 4, 3.0, is_alone=True).holds == 4
    assert share.request(20, 1, 0, 4, 9.0, is_alone=True).holds == 5
    assert share.request(20, 9, 0, 4, 9.1, is_alone=True).holds == 9
