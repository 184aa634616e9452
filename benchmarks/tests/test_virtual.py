"""The gateway on a virtual clock: an instrument that errs would praise or blame without reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest

from benchmarks.virtual import answers
from benchmarks.virtual.clients import Load
from benchmarks.virtual.loop import VirtualClock, WouldBlockError, run_virtual
from benchmarks.virtual.provider import Answer, Request
from benchmarks.virtual.world import Act, Played, play
from llm_guard.dialects import DialectName
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.classification.classify import classify_answer

MODEL = "gpt-4o"
CONFIG = """
upstreams:
  provider: {{dialect: {dialect}, base_url: "https://provider.example/{base}", api_key: sk-provider}}
models:
  gpt-4o: {{deployments: [{{upstream: provider}}]{rules}}}
"""
FIRST = Load(MODEL, 1.0, 1.0, arrivals="even")
"""One call, after half a second."""


@dataclass
class By:
    """A provider that answers with this function."""

    answer: Callable[[Request], Answer]


def config(rules: str = "", dialect: DialectName = "openai") -> str:
    base = "v1" if dialect == "openai" else ""
    return CONFIG.format(dialect=dialect, base=base, rules=f", {rules}" if rules else "")


def well(request: Request) -> Answer:
    return answers.right("openai", request.model, 0.2)


def always(answer: Answer) -> By:
    return By(lambda _: answer)


def one_call(answer: Answer, rules: str = "retry: {max_attempts: 1}", load: Load = FIRST) -> Played:
    return play(config(rules, load.dialect), always(answer), [load])


# the loop


def test_an_hour_takes_no_time() -> None:
    async def main(clock: VirtualClock) -> float:
        since = clock.now()
        await clock.sleep(3600.0)
        return clock.now() - since

    began_at = time.monotonic()
    assert run_virtual(main) == pytest.approx(3600.0)
    assert time.monotonic() - began_at < 60.0


def test_timers_ring_in_the_order_of_their_instants_and_at_them() -> None:
    rung: list[tuple[str, float]] = []

    async def main(clock: VirtualClock) -> None:
        since = clock.now()
        for name, at in (("c", 3.0), ("a", 1.0), ("b", 1.5)):
            clock.call_at(since + at, lambda name=name: rung.append((name, clock.now() - since)))  # type: ignore[misc]
        await clock.sleep(5.0)

    run_virtual(main)
    assert [name for name, _ in rung] == ["a", "b", "c"]
    assert [at for _, at in rung] == pytest.approx([1.0, 1.5, 3.0])


def test_wall_time_follows_the_clock() -> None:
    async def main(clock: VirtualClock) -> float:
        wall = clock.wall()
        await clock.sleep(10.0)
        return clock.wall() - wall

    assert run_virtual(main) == pytest.approx(10.0)


def test_a_limit_ends_its_scope_on_time() -> None:
    async def main(clock: VirtualClock) -> tuple[float, str]:
        since, limit = clock.now(), clock.limit()
        try:
            with limit:
                limit.set(since + 120.0, "attempt")
                await asyncio.Event().wait()
        except TimeoutError:
            return clock.now() - since, limit.name
        raise AssertionError("the event is never set")

    took_s, name = run_virtual(main)
    assert took_s == pytest.approx(120.0)
    assert name == "attempt"


def test_a_wait_without_end_is_an_error() -> None:
    async def main(_: VirtualClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(WouldBlockError):
        run_virtual(main)


# clients


def test_even_arrivals_have_their_rate() -> None:
    assert list(Load(MODEL, 2.0, 2.0, arrivals="even").times(Random(1))) == pytest.approx([0.25, 0.75, 1.25, 1.75])


def test_poisson_arrivals_have_their_rate_and_spread() -> None:
    times = list(Load(MODEL, 50.0, 300.0, begins_at=100.0).times(Random(1)))
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert 100.0 < times[0] < times[-1] < 300.0
    gaps = [after - before for before, after in pairwise(times)]
    assert sum(gap > 0.02 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)


def test_a_served_call_is_noted_with_its_deployment_and_times() -> None:
    played = play(config(), By(well), [FIRST])
    (call,), (request,) = played.calls, played.requests
    assert (call.outcome, call.status, call.deployment, call.attempts) == ("served", 200, "provider/gpt-4o", 1)
    assert (call.arrived_at, call.took_s) == pytest.approx((0.5, 0.2))
    assert (request.call, request.model, request.status, request.is_cut) == (0, MODEL, 200, False)
    assert (request.at, request.ended_at) == pytest.approx((0.5, 0.7))


def test_an_error_is_a_refusal_with_the_providers_message() -> None:
    (call,) = one_call(answers.error("openai", "quota", MODEL, None)).calls
    assert (call.outcome, call.status, call.deployment) == ("refused", 429, "provider/gpt-4o")
    assert "exceeded your current quota" in call.code


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_both_dialects_are_served(dialect: DialectName) -> None:
    load = Load(MODEL, 1.0, 1.0, arrivals="even", dialect=dialect)
    (call,) = one_call(answers.right(dialect, MODEL, 0.2), load=load).calls
    assert call.outcome == "served"


def test_a_stream_is_served_when_it_has_ended() -> None:
    load = Load(MODEL, 1.0, 1.0, arrivals="even", is_stream=True)
    answer = answers.right_stream(MODEL, head_s=0.2, first_token_s=1.0, tokens=5, gap_s=0.1)
    (call,) = one_call(answer, load=load).calls
    assert call.outcome == "served"
    assert call.took_s == pytest.approx(0.2 + 1.0 + 5 * 0.1)


def test_a_stream_that_ends_too_early_is_broken() -> None:
    load = Load(MODEL, 1.0, 1.0, arrivals="even", is_stream=True)
    whole = answers.right_stream(MODEL, head_s=0.2, first_token_s=1.0)
    cut = Answer(200, whole.headers, b"", whole.delay_s, whole.pieces[:-1])
    (call,) = one_call(cut, load=load).calls
    assert call.outcome == "broken"


def test_a_client_that_times_out_disconnects_and_its_request_is_cut() -> None:
    """The silence is in the middle of a stream, and the gateway would wait for longer."""
    load = Load(MODEL, 1.0, 1.0, arrivals="even", is_stream=True, patience_s=5.0)
    silent = answers.right_stream(MODEL, head_s=0.2, first_token_s=0.5, gap_s=20.0)
    played = play(config(), always(silent), [load])
    (call,), (request,) = played.calls, played.requests
    assert (call.outcome, request.is_cut) == ("left", True)
    assert (call.took_s, request.ended_at) == pytest.approx((0.2 + 0.5 + 5.0, call.ended_at))


def test_the_client_timeout_reaches_the_gateway() -> None:
    load = Load(MODEL, 1.0, 1.0, arrivals="even", patience_s=10.0)
    (call,) = one_call(answers.right("openai", MODEL, 30.0), load=load).calls
    assert (call.outcome, call.status) == ("refused", 504)
    assert call.took_s < 10.0, "the gateway answers before the client leaves"


# the provider


def test_requests_are_counted_with_retries_and_by_call() -> None:
    fails = answers.error("openai", "503", MODEL, None, 0.05)
    provider = By(lambda request: fails if request.at < 0.52 else well(request))
    played = play(config(), provider, [FIRST])
    assert [(request.call, request.status) for request in played.requests] == [(0, 503), (0, 200)]
    assert (played.calls[0].outcome, played.calls[0].attempts) == ("served", 2)


@pytest.mark.parametrize(
    ("dialect", "name", "kind"),
    [
        ("openai", "429", "rate_limit"),
        ("openai", "503", "overloaded"),
        ("openai", "quota", "quota_exhausted"),
        ("anthropic", "529", "overloaded"),
        ("anthropic", "429", "rate_limit"),
    ],
)
def test_errors_mean_what_they_are_called(dialect: DialectName, name: answers.ErrorName, kind: str) -> None:
    for hint in (None, "30"):
        answer = answers.error(dialect, name, MODEL, hint)
        verdict = classify_answer(answer.status, dict(answer.headers), answer.body, 1.8e9)
        assert (verdict.kind.label, verdict.retry_after_s) == (kind, None if hint is None else 30.0)


def test_limits_of_the_gateway_hold_on_the_virtual_clock() -> None:
    rules = "timeout: {attempt: 7s}, retry: {max_attempts: 1}"
    played = one_call(answers.right("openai", MODEL, 8.0), rules)
    (call,), (request,) = played.calls, played.requests
    assert (call.status, request.is_cut, request.status) == (504, True, None)
    assert call.took_s == pytest.approx(7.0)


# the whole gateway


def test_the_same_seed_plays_the_same() -> None:
    def played(seed: int) -> Played:
        random = Random(seed)
        fails = answers.error("openai", "429", MODEL, "1", 0.05)
        provider = By(lambda request: fails if random.random() < 0.3 else well(request))
        return play(config(), provider, [Load(MODEL, 10.0, 6.0)], seed=seed)

    assert played(1) == played(1)
    assert played(1) != played(2)


def test_action_of_an_operator_happens_at_its_instant() -> None:
    seen: list[int] = []

    def look(gateway: Handler) -> None:
        seen.append(gateway.running)

    play(config(), always(answers.right("openai", MODEL, 10.0)), [FIRST], acts=[Act(5.0, look), Act(11.0, look)])
    assert seen == [1, 0]


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    one_call(answers.error("openai", "503", MODEL, None))
    assert capfd.readouterr() == ("", "")
