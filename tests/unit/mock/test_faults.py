from __future__ import annotations

import pytest

from llm_guard.mock.faults import GRAMMAR, BadFaultError, Fault, TokenBucket, parse_fault, parse_plan


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("status:503", Fault("status", status=503)),
        ("status:429:2.5", Fault("status", status=429, retry_after="2.5")),
        ("status:529@10%", Fault("status", share=0.1, status=529)),
        ("latency:50ms", Fault("latency", delay_s=0.05)),
        ("latency:2s~500ms", Fault("latency", delay_s=2.0, spread_s=0.5)),
        ("silence", Fault("silence")),
        ("headers", Fault("headers")),
        ("reset@0.5%", Fault("reset", share=0.005)),
        ("close", Fault("close")),
        ("cut:0", Fault("cut")),
        ("stall:3", Fault("stall", after_tokens=3)),
        ("error:1", Fault("error", after_tokens=1)),
        ("malformed:2", Fault("malformed", after_tokens=2)),
        ("truncated", Fault("truncated")),
        ("limit:5/s", Fault("limit", rate_per_s=5.0)),
        ("limit:5/s:bare", Fault("limit", rate_per_s=5.0, is_bare=True)),
        ("capacity:20", Fault("capacity", places=20)),
        ("quota@50%", Fault("quota", share=0.5)),
        ("noprefill", Fault("noprefill")),
        ("overlap:3", Fault("overlap", words=3)),
        ("overlap:0", Fault("overlap")),
        ("another@50%", Fault("another", share=0.5)),
    ],
)
def test_every_fault_of_the_grammar_is_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        "", "explode", "status", "status:", "status:200", "status:50x", "status:503:", "latency", "latency:fast",
        "latency:5ms~", "silence:1", "cut", "cut:", "cut:-1", "cut:1.5", "limit:5", "limit:0/s", "reset@",
        "reset@10", "reset@101%", "reset@x%", "@10%", "limit:5/s:", "limit:5/s:shy", "capacity", "capacity:0",
        "capacity:-1", "quota:1", "noprefill:1", "another:1", "overlap", "overlap:", "overlap:-1", "overlap:x",
    ],
)  # fmt: skip
def test_a_bad_fault_is_named_and_the_grammar_shown(text: str) -> None:
    with pytest.raises(BadFaultError) as caught:
        parse_fault(text)
    assert repr(text) in str(caught.value)
    assert GRAMMAR in str(caught.value)


def test_faults_are_those_of_the_model_and_then_of_the_header() -> None:
    plan = parse_plan("gpt-4o+status:503@10%+latency:50ms", "reset, cut:3")
    assert plan.model == "gpt-4o"
    assert [fault.kind for fault in plan.faults] == ["status", "latency", "reset", "cut"]


def test_model_without_faults_has_its_plain_name() -> None:
    plan = parse_plan("org/model:free@2024")
    assert (plan.model, plan.faults) == ("org/model:free@2024", ())


def test_a_share_strikes_about_that_many_requests_and_the_same_ones_again() -> None:
    plan = parse_plan("m+status:503@10%")
    struck = [bool(plan.draw(7, number).faults) for number in range(2000)]
    assert 150 < sum(struck) < 250
    assert struck == [bool(plan.draw(7, number).faults) for number in range(2000)]


def test_seed_and_model_change_which_calls_fail() -> None:
    def who(model: str, seed: int) -> list[bool]:
        plan = parse_plan(model)
        return [bool(plan.draw(seed, number).faults) for number in range(200)]

    assert who("m+reset@50%", 1) != who("m+reset@50%", 2)
    assert who("m+reset@50%", 1) != who("n+reset@50%", 1)


def test_the_draw_is_the_same_in_every_process() -> None:
    plan = parse_plan("m+reset@50%")
    assert [bool(plan.draw(0, number).faults) for number in range(8)] == [
        True,
        False,
        False,
        False,
        False,
        False,
        False,
        True,
    ]


def test_shares_of_one_plan_are_independent() -> None:
    plan = parse_plan("m+reset@50%+close@50%")
    seen = {tuple(f.kind for f in plan.draw(0, number).faults) for number in range(200)}
    assert seen == {(), ("reset",), ("close",), ("reset", "close")}


def test_latencies_add_up_and_spread_in_both_directions() -> None:
    assert parse_plan("m+latency:50ms+latency:1s").draw(0, 1).latency_s == pytest.approx(1.05)
    plan = parse_plan("m+latency:50ms~20ms")
    drawn = [plan.draw(0, number).latency_s for number in range(200)]
    assert 0.03 <= min(drawn) < 0.035
    assert 0.065 < max(drawn) <= 0.07


def test_capacity_combines_with_other_faults() -> None:
    struck = parse_plan("m+capacity:2+latency:1s+status:503").draw(0, 1)
    assert (struck.places, struck.latency_s, [fault.kind for fault in struck.faults]) == (2, 1.0, ["status"])
    assert parse_plan("m+status:503").draw(0, 1).places is None


def test_text_option_combines_with_other_faults() -> None:
    struck = parse_plan("m+another+overlap:2+cut:3").draw(0, 1)
    assert (struck.is_another, struck.overlap, [fault.kind for fault in struck.faults]) == (True, 2, ["cut"])
    assert parse_plan("m+preamble").draw(0, 1).has_preamble
    plain = parse_plan("m+cut:3").draw(0, 1)
    assert (plain.is_another, plain.overlap, plain.has_preamble) == (False, None, False)


def test_other_text_is_sent_as_often_as_its_share() -> None:
    plan = parse_plan("m+another@50%")
    assert 60 < sum(plan.draw(3, number).is_another for number in range(200)) < 140


def test_a_spread_wider_than_the_latency_is_never_negative() -> None:
    plan = parse_plan("m+latency:1ms~1s")
    assert min(plan.draw(0, number).latency_s for number in range(50)) == 0


def test_bucket_holds_a_second_and_reports_when_it_has_room_again() -> None:
    bucket = TokenBucket(2.0)
    assert [bucket.take(10.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert bucket.take(10.25) == pytest.approx(0.25)
    assert bucket.take(10.5) == 0.0
    assert [bucket.take(60.0) for _ in range(3)] == [0.0, 0.0, 0.5]


def test_a_slow_bucket_still_holds_one() -> None:
    bucket = TokenBucket(0.5)
    assert [bucket.take(0.0), bucket.take(0.0)] == [0.0, 2.0]
