from __future__ import annotations

from dataclasses import replace

from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.resilience.circuit_breaker.caller_evidence import CallerEvidence, CallersSummary, lone_callers
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary, without_lone_callers


def failing(caller: str = "a", failures: float = 3.0, run_began_s: float | None = 2.0) -> CallersSummary:
    """Returns the evidence of a gateway at which all calls of one caller have failed."""
    return CallersSummary((CallerEvidence(caller, failures, failures, run_began_s, int(failures)),), failures, failures)


def succeeding(caller: str = "b", began_s: float | None = 1.0) -> CallersSummary:
    return CallersSummary(ok_caller=caller, ok_began_s=began_s)


def summary(callers: CallersSummary, counted: int = 3, calls: int = 4, failures: int = 3) -> BreakerSummary:
    found = SharedBreaker(BreakerSettings()).summary(0.0, callers)
    assert found is not None
    ages = tuple(0.1 * (n + 1) for n in range(counted))
    return replace(found, counted=counted, latest_sent_s=ages, first_sent_s=2.0, calls=calls, failures=failures)


def test_caller_that_fails_at_some_gateways_while_another_succeeds_elsewhere_fails_alone() -> None:
    assert lone_callers([failing(), failing(), succeeding()]) == {"a"}
    assert lone_callers([failing(), succeeding()]) == frozenset(), "three failures may be chance"

    served = replace(succeeding(), calls=100.0)
    assert lone_callers([failing(failures=30.0), failing("c", 30.0), served]) == {"a", "c"}


def test_no_caller_fails_alone_unless_another_has_succeeded_since() -> None:
    assert lone_callers([failing(), failing()]) == frozenset()
    assert lone_callers([failing(), failing(), succeeding(began_s=None)]) == frozenset()
    assert lone_callers([failing(), failing(), succeeding(began_s=2.0)]) == frozenset()
    assert lone_callers([failing(), failing(), succeeding("a")]) == frozenset(), "one caller only"
    assert lone_callers([failing(), failing(run_began_s=0.9), succeeding()]) == frozenset(), "its youngest run counts"
    assert lone_callers([failing(run_began_s=None), failing(run_began_s=None), succeeding()]) == frozenset()


def test_caller_that_fails_like_the_others_does_not_fail_alone() -> None:
    brownout = replace(succeeding(), calls=30.0, failures=15.0)
    assert lone_callers([failing(), failing(), brownout]) == frozenset()
    assert lone_callers([failing(failures=20.0), brownout]) == {"a"}


def test_failures_of_a_caller_that_fails_alone_are_left_out() -> None:
    mixed = CallersSummary(
        (CallerEvidence("a", 9.0, 9.0, 2.0, 9), CallerEvidence("c", 1.0, 1.0, 0.5, 1)), calls=12.0, failures=10.0
    )
    found = without_lone_callers([summary(mixed, counted=10, calls=24, failures=20), summary(succeeding(), 0, 5, 0)])
    assert (found[0].counted, found[0].latest_sent_s) == (1, (0.1,))
    assert (found[0].calls, found[0].failures) == (6, 2)
    assert found[1] == summary(succeeding(), 0, 5, 0)


def test_evidence_ages() -> None:
    found = replace(failing(run_began_s=2.0), ok_began_s=1.0, looks={"a": 30.0}).aged(0.5)
    assert (found.failing[0].run_began_s, found.ok_began_s, found.looks) == (2.5, 1.5, {"a": 29.5})
    assert failing(run_began_s=None).aged(1.0) == failing(run_began_s=None)
