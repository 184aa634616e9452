from __future__ import annotations

from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.caller_evidence import NO_CALLERS, CallerEvidence, CallersSummary
from llm_guard.resilience.circuit_breaker.callers import MOST_LOOKS, Suspect
from llm_guard.resilience.circuit_breaker.shared_callers import SharedCallers
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget


def callers() -> SharedCallers:
    return SharedCallers(digest=lambda name: f"#{name}")


def elsewhere(found: SharedCallers, *names: str, seconds: float = 30.0, now: float = 0.0) -> SharedCallers:
    """Other gateways have seen these callers fail."""
    found.note_elsewhere([CallersSummary(looks={f"#{name}": seconds}) for name in names], now)
    return found


def test_summary_has_digests_of_callers_that_fail() -> None:
    found = callers()
    assert found.summary(0.0) == CallersSummary(ok_caller="#")
    found.note_failure("a", 1.0)
    found.note_failure("a", 1.5)
    summary = found.summary(2.0)
    (one,) = summary.failing
    assert (one.caller, one.run_began_s, one.in_run) == ("#a", 1.0, 2)
    assert 1.9 < one.failures == one.calls == summary.failures <= 2.0
    assert summary.looks == {"#a": 29.5}


def test_success_ends_the_run_of_all() -> None:
    found = callers()
    found.note_failure("a", 1.0)
    found.note_ok("b", 1.5, 2.0)
    summary = found.summary(2.5)
    assert (summary.failing, summary.ok_caller, summary.ok_began_s) == ((), "#b", 1.0)
    found.note_ok("c", 1.2, 3.0)
    assert found.summary(3.0).ok_caller == "#b", "its call began later"


def test_caller_that_is_judged_separately_is_left_out() -> None:
    found = callers()
    found.note_failure("c", 0.5)
    found.note_failure("a", 1.0)
    found.begin("a", Suspect(Breaker(BreakerSettings()), RetryBudget(BudgetSettings(), 0.0)))
    found.note_failure("a", 1.1)
    assert [one.caller for one in found.summary(2.0).failing] == ["#c"]
    found.note_ok("a", 1.5, 2.0)
    assert [(one.caller, one.in_run) for one in found.summary(2.0).failing] == [("#c", 1)], "not a success of all"


def test_only_the_worst_callers_are_published() -> None:
    found = callers()
    for number in range(20):
        for _ in range(number):
            found.note_failure(str(number), 1.0)
    assert [one.in_run for one in found.summary(2.0).failing] == list(range(19, 11, -1))


def test_other_caller_probes_at_once_though_the_failures_were_elsewhere() -> None:
    found = elsewhere(callers(), "a")
    assert not found.try_probe("a", 1.0, has_lease=True)
    assert found.try_probe("b", 1.0, has_lease=False)
    assert not found.try_probe("b", 1.1, has_lease=False), "its probe is in flight"
    assert found.try_probe("a", 31.0, has_lease=False)


def test_later_probe_of_a_caller_counts_if_gateways_disagree() -> None:
    found = callers()
    found.note_elsewhere([CallersSummary(looks={"#a": 30.0}), CallersSummary(looks={"#a": -5.0})], 0.0)
    assert not found.try_probe("a", 1.0)
    found.note_elsewhere([NO_CALLERS], 2.0)
    assert not found.try_probe("a", 2.0), "no caller has failed"


def test_of_many_failing_callers_those_with_the_lease_probe() -> None:
    found = elsewhere(callers(), *map(str, range(MOST_LOOKS - 1)))
    found.note_failure("a", 0.0)
    assert not found.try_probe("b", 1.0, has_lease=False)
    assert found.try_probe("b", 1.0, has_lease=True)


def test_successes_count_while_callers_fail_elsewhere() -> None:
    found = callers()
    found.note_ok("b", 0.5, 1.0)
    assert elsewhere(found, "a", now=1.0).summary(1.0).calls == 0.0
    found.note_ok("b", 1.5, 2.0)
    summary = found.summary(2.0)
    assert (summary.calls, summary.failures) == (1.0, 0.0)


def test_reset_forgets_the_run() -> None:
    found = callers()
    found.note_failure("a", 1.0)
    found.reset()
    found.note_failure("b", 2.0)
    assert [one.in_run for one in found.summary(2.0).failing] == [1]


def test_evidence_has_no_run_after_a_success_of_the_caller() -> None:
    found = callers()
    found.note_failure("a", 1.0)
    found.note_ok("a", 1.1, 1.2)
    found.note_failure("b", 1.3)
    assert found.summary(1.3).failing == (CallerEvidence("#b", 1.0, 1.0, 0.0, 1),)
