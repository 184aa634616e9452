from __future__ import annotations

from llm_guard.resilience.alerts.silences import MOST, Silence, Silences


def silence(alert: str = "latency", subject: str | None = None, until: float = 100.0) -> Silence:
    return Silence(alert, subject, until, "known", "anna")


def test_silence_covers_its_alert_until_it_ends() -> None:
    silences = Silences()
    assert silences.try_add(silence(), 0)
    assert silences.covers("latency", "gpt", 99.9)
    assert not silences.covers("latency", "gpt", 100)
    assert not silences.covers("success_rate", "gpt", 0)


def test_silence_of_a_subject_covers_no_other() -> None:
    silences = Silences()
    silences.try_add(silence(subject="gpt"), 0)
    assert silences.covers("latency", "gpt", 0)
    assert not silences.covers("latency", "claude", 0)


def test_star_covers_every_alert() -> None:
    silences = Silences()
    silences.try_add(silence("*", "gpt"), 0)
    assert silences.covers("loop_lag", "gpt", 0)
    assert not silences.covers("loop_lag", "gateway", 0)
    silences.try_add(silence("*"), 0)
    assert silences.covers("loop_lag", "gateway", 0)


def test_second_silence_takes_the_place_of_the_first() -> None:
    silences = Silences()
    silences.try_add(silence(until=100), 0)
    silences.try_add(silence(until=50), 0)
    assert not silences.covers("latency", "gpt", 60)
    assert len(silences.snapshot(0)) == 1


def test_silence_is_removed_only_by_its_exact_terms() -> None:
    silences = Silences()
    silences.try_add(silence(), 0)
    assert silences.try_remove("latency", "gpt", 0) is None
    assert silences.try_remove("*", None, 0) is None
    assert silences.try_remove("latency", None, 0) == silence()
    assert not silences.covers("latency", "gpt", 0)


def test_silence_that_is_over_cannot_be_removed() -> None:
    silences = Silences()
    silences.try_add(silence(until=100), 0)
    assert silences.try_remove("latency", None, 100) is None


def test_silences_are_bounded_and_make_room_when_they_end() -> None:
    silences = Silences()
    assert all(silences.try_add(silence(subject=f"{number}"), 0) for number in range(MOST))
    assert not silences.try_add(silence(subject="one more"), 99)
    assert silences.try_add(silence(subject="7", until=200), 99), "it takes the place of another"
    assert silences.try_add(silence(subject="one more", until=200), 100)
    assert [each.subject for each in silences.snapshot(100)] == ["7", "one more"]
