"""Which deployment the attempt loop chooses to resume a stream that died after commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.resume.transcript import ResumeMode
from llm_guard.dialects.sse import Usage
from llm_guard.outcome import Exhausted, Failure, FailureKind, Signal, UpstreamErrorResponse
from llm_guard.proxy.attempts.admission import settle
from llm_guard.proxy.call import Attempt, Delivered
from llm_guard.proxy.streams.decoder import PlainStreamDecoder
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.limits import BudgetSettings
from llm_guard.routing.route_table import Target
from tests.fakes.script import SERVER_ERROR, Outcome, new_target, open_stream
from tests.unit.proxy.attempts.plays import Play, open_breaker, play, two

CUT = Failure(FailureKind.TRUNCATED, "the stream ended without its terminal event")
BAD = Failure(FailureKind.INVALID_REQUEST, "answered 400", answer=UpstreamErrorResponse(400, "", (), b"{}"))


class FakeRecovery:
    """A stand-in for `proxy.call.StreamResumer` that resumes by prefill unless a test sets another mode."""

    def __init__(self) -> None:
        self.resume_modes: dict[str, ResumeMode] = {}

    def resume_mode(self, target: Target) -> ResumeMode:
        return self.resume_modes.get(target.deployment.label, "prefill")

    def body(self, target: Target, resume_mode: ResumeMode) -> bytes:
        raise AssertionError("nothing is sent by a script")

    @property
    def tokens(self) -> tuple[Usage, int]:
        raise AssertionError("no tokens are noted")

    def adopt(self, served: Delivered) -> bool:
        raise AssertionError("nothing is relayed")

    def may_go_on(self, served: Delivered, failure: Failure) -> bool:
        raise AssertionError("the test decides that")

    def is_refused(self, attempt: Attempt, failure: Failure) -> bool:
        label = attempt.target.deployment.label
        if failure is not BAD or self.resume_modes.get(label) == "instruction":
            return False
        self.resume_modes[label] = "instruction"
        return True


async def dead(*outcomes: Outcome, **facts: Any) -> Play:
    """Returns a call with a stream that was cut after its first token."""
    this = play(*outcomes, **facts)
    served = await this.serves()
    this.call.recovery = FakeRecovery()
    die(this, served)
    return this


def die(this: Play, served: Delivered) -> None:
    served.attempt.failure = CUT
    settle(served.attempt, served.lease, Signal.UNHEALTHY, this.script.clock)


async def resumed(this: Play, failure: Failure = CUT) -> Delivered | Exhausted:
    return await this.loop.next_response(this.selector, failure)


async def test_another_deployment_is_tried_first() -> None:
    this = await dead(open_stream(), open_stream(), targets=two())
    after = await resumed(this)
    assert isinstance(after, Delivered)
    assert this.script.transcript == ["asked a/x", "asked b/y"]
    assert [(attempt.resume_mode, attempt.is_fallback, attempt.outcome) for attempt in this.call.attempts] == [
        (None, False, "truncated"), ("prefill", True, "ok"),
    ]  # fmt: skip


async def test_same_deployment_is_tried_again_without_another() -> None:
    this = await dead(open_stream(), open_stream())
    assert isinstance(await resumed(this), Delivered)
    assert this.script.transcript == ["asked a/x", "asked a/x"]
    assert this.call.attempts[1].is_retry


async def test_same_deployment_is_tried_again_after_the_others_have_failed() -> None:
    retry = RetrySettings(jitter=0.0, adaptive=False, max_attempts=2)
    targets = new_target("a/x", retry=retry), new_target("b/y", retry=retry)
    this = await dead(open_stream(), SERVER_ERROR, SERVER_ERROR, open_stream(), targets=targets)
    after = await resumed(this)
    assert isinstance(after, Delivered)
    assert [each for each in this.script.transcript if each.startswith("asked")] == [
        "asked a/x", "asked b/y", "asked a/x", "asked b/y",
    ]  # fmt: skip


async def test_deaths_count_as_attempts() -> None:
    this = await dead(*[open_stream()] * 3)
    for _ in range(2):
        after = await resumed(this)
        assert isinstance(after, Delivered)
        die(this, after)
    end = await resumed(this)
    assert isinstance(end, Exhausted)
    assert (end.failure, end.why) == (CUT, "max_attempts reached")


async def test_failing_deployment_is_not_tried() -> None:
    front, back = two()
    open_breaker(back)
    this = await dead(open_stream(), open_stream(), targets=(front, back))
    assert isinstance(await resumed(this), Delivered)
    assert [each for each in this.script.transcript if each.startswith("asked")] == ["asked a/x", "asked a/x"]
    assert [skipped.deployment for skipped in this.call.skipped] == ["b/y"]


async def test_first_token_is_that_of_the_stream_that_died() -> None:
    streams = [
        replace(open_stream(), view=PlainStreamDecoder(DIALECTS["openai"].stream_reader("/v1/chat/completions", 1)))
        for _ in range(2)
    ]
    this = await dead(*streams, targets=two())
    this.script.clock.advance(5.0)
    assert isinstance(await resumed(this), Delivered)
    assert this.call.first_token_at == 1000.0


async def test_no_retry_is_made_without_a_token() -> None:
    poor = RetrySettings(jitter=0.0, adaptive=False, budget=BudgetSettings(ratio=0.0, min_per_second=0.0))
    this = await dead(open_stream(), targets=(new_target("a/x", retry=poor),))
    end = await resumed(this)
    assert isinstance(end, Exhausted)
    assert end.why == "retry budget empty"


async def test_deadline_ends_it() -> None:
    this = await dead(open_stream(), targets=two(), deadline_at=1010.0)
    this.script.clock.advance(11.0)
    end = await resumed(this)
    assert isinstance(end, Exhausted)
    assert end.why == "deadline"


async def test_call_that_may_have_been_executed_is_not_sent_again() -> None:
    this = await dead(open_stream(), targets=two(), is_repeatable=False)
    end = await resumed(this)
    assert isinstance(end, Exhausted)
    assert end.why == "not idempotent: it may have been executed"


async def test_refused_resume_mode_leads_to_the_next_one_at_once() -> None:
    this = await dead(open_stream(), BAD, open_stream(), targets=two())
    assert isinstance(await resumed(this), Delivered)
    assert this.script.transcript == ["asked a/x", "asked b/y", "asked b/y"]
    assert [attempt.resume_mode for attempt in this.call.attempts] == [None, "prefill", "instruction"]


async def test_refusal_in_every_resume_mode_is_the_end() -> None:
    this = await dead(open_stream(), BAD, BAD, targets=two())
    end = await resumed(this)
    assert isinstance(end, Exhausted)
    assert (end.failure, end.why) == (BAD, "final error")
