from __future__ import annotations

from llm_guard.webhooks.rate_limit import BURST, SendRate


def test_burst_is_sent_at_once_and_then_one_at_a_time() -> None:
    rate = SendRate(0.5)
    for _ in range(BURST):
        assert rate.wait_s(0) == 0
        rate.take(0)
    assert rate.wait_s(0) == 2
    assert rate.wait_s(1.5) == 0.5
    rate.take(2)
    assert rate.snapshot(2).wait_s == 2


def test_idle_time_saves_no_more_than_a_burst() -> None:
    rate = SendRate(0.5)
    rate.take(0)
    for _ in range(BURST):
        rate.take(10_000)
    assert rate.wait_s(10_000) == 2


def test_send_out_of_turn_delays_the_next() -> None:
    rate = SendRate(1)
    for _ in range(BURST + 3):
        rate.take(0)
    assert rate.wait_s(0) == 4
