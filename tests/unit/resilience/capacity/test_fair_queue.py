from __future__ import annotations

import random
from collections import Counter

import pytest

from llm_guard.resilience.capacity.fair_queue import Caller, FairQueue, SourceFilter, Ticket
from llm_guard.resilience.capacity.wait_queue import WaitQueue

HOG, VICTIM = Caller("hog"), Caller("victim")


def ticket(caller: Caller, priority: int = 1) -> Ticket:
    return Ticket(priority, lambda: None, caller)


def queue_of(*callers: Caller) -> FairQueue:
    queue = FairQueue()
    for caller in callers:
        queue.add(ticket(caller))
    return queue


def order(queue: FairQueue) -> list[str]:
    return [queue.take().caller.name for _ in range(len(queue))]


def test_one_caller_is_served_in_its_order() -> None:
    queue, tickets = FairQueue(), [ticket(HOG) for _ in range(100)]
    for one in tickets:
        queue.add(one)
    assert [queue.take() for _ in tickets] == tickets
    assert len(queue) == 0


def test_caller_of_one_call_does_not_wait_for_all_of_a_heavy_caller() -> None:
    assert order(queue_of(*[HOG] * 5, VICTIM)) == ["hog", "victim", "hog", "hog", "hog", "hog"]


def test_turns_follow_the_weights() -> None:
    light, heavy = Caller("light", 1.0), Caller("heavy", 3.0)
    queue = queue_of(*[light] * 1000, *[heavy] * 1000)
    taken = Counter(queue.take().caller.name for _ in range(400))
    assert taken == {"light": 100, "heavy": 300}


def test_caller_that_was_idle_has_no_credit() -> None:
    queue = queue_of(*[HOG] * 100)
    for _ in range(50):
        queue.take()
    for _ in range(20):
        queue.add(ticket(VICTIM))
    assert Counter(queue.take().caller.name for _ in range(20)) == {"hog": 10, "victim": 10}


def test_caller_that_returns_after_each_turn_has_no_more_than_its_share() -> None:
    """It has one call in the queue at a time, so the queue keeps no state of it in between."""
    queue = queue_of(*[HOG] * 1000)
    queue.add(ticket(VICTIM))
    taken: Counter[str] = Counter()
    for _ in range(400):
        caller = queue.take().caller
        taken[caller.name] += 1
        if caller is VICTIM:
            queue.add(ticket(VICTIM))
    assert 199 <= taken["victim"] <= 201


def test_calls_that_leave_cost_the_caller_no_turn() -> None:
    """Clients with short timeouts disconnect and retry; the calls behind them move up."""
    queue = queue_of(*[HOG] * 100)
    for _ in range(500):
        gone, kept = ticket(VICTIM), ticket(VICTIM)
        queue.add(gone)
        queue.add(kept)
        assert queue.remove(gone)
        assert not queue.remove(gone)
        assert queue.remove(kept)
    queue.add(ticket(VICTIM))
    assert queue.count_ahead(VICTIM) <= 4
    assert "victim" in [queue.take().caller.name for _ in range(2)]


def test_calls_move_up_when_one_leaves() -> None:
    queue = queue_of(*[HOG] * 4)
    gone, *others = [ticket(VICTIM) for _ in range(3)]
    for one in (gone, *others):
        queue.add(one)
    assert queue.remove(gone)
    assert order(queue) == ["hog", "victim", "hog", "victim", "hog", "hog"]


def test_newest_call_of_a_caller_takes_its_next_turn() -> None:
    queue, tickets = FairQueue(), [ticket(HOG) for _ in range(3)]
    for one in tickets:
        queue.add(one)
    victim = ticket(VICTIM)
    queue.add(victim)
    assert [queue.take(newest_first=True) for _ in range(4)] == [tickets[2], victim, tickets[1], tickets[0]]


def test_newest_first_displaces_the_oldest_of_the_same_caller() -> None:
    queue, tickets = WaitQueue(), [ticket(HOG) for _ in range(10)]
    for one in tickets:
        queue.add(one)
    assert queue.displaced_by(1, HOG, 10) is None
    assert queue.displaced_by(1, HOG, 10, newest_first=True) is tickets[0]
    assert queue.displaced_by(1, VICTIM, 10, newest_first=True) is tickets[0]


@pytest.mark.parametrize("newest_first", [False, True])
def test_count_ahead_is_the_number_served_before(newest_first: bool) -> None:
    dice = random.Random(1)
    callers = [Caller(name, weight) for name, weight in zip("abcde", (1.0, 1.0, 0.5, 3.0, 2.0), strict=True)]
    for _ in range(200):
        queue = queue_of(*dice.choices(callers, k=dice.randrange(60)))
        for _ in range(dice.randrange(len(queue) + 1)):
            queue.take(newest_first=newest_first)
        newcomer = ticket(dice.choice(callers))
        ahead = queue.count_ahead(newcomer.caller, newest_first=newest_first)
        queue.add(newcomer)
        assert [queue.take(newest_first=newest_first) for _ in range(len(queue))].index(newcomer) == ahead


def test_thousand_callers_wait_for_one_turn_of_each() -> None:
    callers = [Caller(str(number)) for number in range(1000)]
    queue = queue_of(*(caller for caller in callers for _ in range(3)))
    for _ in range(3):
        assert len({queue.take().caller.name for _ in callers}) == 1000
    assert queue._flows == {}, "nothing is remembered of those that wait no more"


# priorities


def line_of(*waiting: tuple[Caller, int]) -> WaitQueue:
    queue = WaitQueue()
    for caller, priority in waiting:
        queue.add(ticket(caller, priority))
    return queue


@pytest.mark.parametrize(("slots", "next_priority"), [(4, 2), (3, 0)])
def test_priority_that_holds_none_of_four_slots_has_the_next_one_at_once(slots: int, next_priority: int) -> None:
    """Of fewer slots none can be a priority's own: their time is shared, and the others first have three turns."""
    queue = line_of((HOG, 0), (VICTIM, 2))
    for _ in range(slots - 1):
        queue.hold(0, HOG.name, 0.0)
    assert queue.take(slots, now=1.0).priority == next_priority


def test_heavy_caller_of_high_priority_leaves_a_quarter_of_the_turns() -> None:
    queue = line_of(*[(HOG, 0)] * 1000, *[(VICTIM, 1)] * 1000)
    assert Counter(queue.take().caller.name for _ in range(400)) == {"hog": 300, "victim": 100}


def test_every_priority_that_waits_has_its_share() -> None:
    queue = line_of(*[(HOG, 0)] * 1000, *[(VICTIM, 1)] * 1000, *[(VICTIM, 2)] * 1000)
    assert Counter(queue.take().priority for _ in range(402)) == {0: 202, 1: 100, 2: 100}


def test_lower_priority_that_returns_after_each_turn_has_its_share() -> None:
    """One call at a time beside a hog: it does not wait for three turns each time if it was passed over meanwhile."""
    queue = line_of(*[(HOG, 0)] * 1000)
    taken: Counter[int] = Counter()
    for turn in range(1000):
        if turn % 4 == 0:
            queue.add(ticket(VICTIM, 1))
        taken[queue.take().priority] += 1
    assert taken == {0: 750, 1: 250}


def test_of_two_passed_over_equally_often_the_higher_priority_is_first() -> None:
    queue = line_of((Caller("a", 1.0), 0), (Caller("a", 1.0), 0), (Caller("a", 1.0), 0), (Caller("a", 1.0), 2))
    queue.add(Ticket(1, lambda: None, Caller("a", 1.0)))
    assert [queue.take().priority for _ in range(5)] == [0, 0, 0, 1, 2]


def test_calls_that_take_equally_long_share_one_slot_by_turns() -> None:
    """Earlier calls have shown how long calls of each priority take."""
    queue = line_of(*[(HOG, 0)] * 50, *[(HOG, 1)] * 50, *[(HOG, 2)] * 50)
    priorities = []
    for now in range(60):
        taken = queue.take(1, now=float(now))
        queue.release(queue.hold(taken.priority, now=float(now)), now + 1.0)
        priorities.append(taken.priority)
    assert priorities[:6] == [0, 0, 0, 1, 2, 0]
    assert Counter(priorities[20:]) == {0: 20, 1: 10, 2: 10}


def test_blocked_priority_takes_no_turn_from_the_others() -> None:
    queue = line_of(*[(HOG, 0)] * 40)
    queue.add(Ticket(2, lambda: None, VICTIM, source="limited"))
    for _ in range(10):
        queue.note_turn(0)
    for _ in range(10):
        queue.add(ticket(VICTIM, 1))
    others = SourceFilter(("limited",), is_among=False)
    assert Counter(queue.take_selected(others).priority for _ in range(20)) == {0: 15, 1: 5}


def test_newcomer_of_high_priority_may_not_pass_one_that_was_passed_too_often() -> None:
    queue = line_of((VICTIM, 1))
    for _ in range(3):
        assert queue.may_pass(0)
        queue.note_turn(0)
    assert not queue.may_pass(0)
    assert not queue.may_pass(1)
    queue.take()
    assert queue.may_pass(0)
    assert queue.may_pass(2)


@pytest.mark.parametrize("seed", range(20))
def test_count_ahead_over_two_priorities_is_the_number_served_before(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(100):
        waiting = [(dice.choice((HOG, VICTIM)), dice.choice((0, 1))) for _ in range(dice.randrange(40))]
        queue = line_of(*waiting)
        for _ in range(dice.randrange(queue.length + 1)):
            queue.take()
        newcomer = ticket(dice.choice((HOG, VICTIM)), dice.choice((0, 1)))
        ahead = queue.count_ahead(newcomer.priority, newcomer.caller)
        queue.add(newcomer)
        assert [queue.take() for _ in range(queue.length)].index(newcomer) == ahead


def test_victim_of_a_heavy_caller_expects_its_own_wait() -> None:
    queue = line_of(*[(HOG, 1)] * 900)
    assert (queue.count_ahead(1, VICTIM), queue.count_ahead(1, HOG)) == (1, 900)
    queue = line_of(*[(HOG, 0)] * 900)
    assert (queue.count_ahead(1, VICTIM), queue.count_ahead(0, HOG)) == (3, 900)


# full queue


def test_heavy_caller_that_fills_the_queue_loses_its_newest_slot_to_a_victim() -> None:
    queue = WaitQueue()
    tickets = [ticket(HOG) for _ in range(10)]
    for one in tickets:
        queue.add(one)
    assert queue.displaced_by(1, VICTIM, 10) is tickets[-1]
    assert queue.displaced_by(1, HOG, 10) is None


def test_two_callers_do_not_displace_each_other_in_turn() -> None:
    queue = line_of(*[(HOG, 1)] * 10)
    swaps = 0
    for _ in range(100):
        for caller in (VICTIM, HOG):
            displaced = queue.displaced_by(1, caller, 10)
            if displaced is not None:
                assert queue.remove(displaced)
                queue.add(ticket(caller))
                swaps += 1
    assert swaps <= 5


def test_heavy_caller_of_high_priority_leaves_a_fifth_of_the_slots() -> None:
    queue = line_of(*[(HOG, 0)] * 10)
    for _ in range(2):
        displaced = queue.displaced_by(1, VICTIM, 10)
        assert displaced is not None
        assert displaced.priority == 0
        queue.remove(displaced)
        queue.add(ticket(VICTIM))
    assert queue.displaced_by(1, VICTIM, 10) is None
    assert queue.displaced_by(0, HOG, 10) is None


def test_high_priority_displaces_only_calls_above_the_fifth_of_a_lower_one() -> None:
    queue = line_of(*[(HOG, 1)] * 10)
    for left in range(9, 1, -1):
        displaced = queue.displaced_by(0, VICTIM, 10)
        assert displaced is not None
        assert displaced.priority == 1
        queue.remove(displaced)
        queue.add(ticket(VICTIM, 0))
        assert queue.counts()[1] == left
    assert queue.displaced_by(0, VICTIM, 10) is None
