"""Overrides as the gateways of a fleet exchange them: what is published after a change, and what is applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from llm_guard.admin.persistence.operator_state import (
    OperatorState,
    SavedBreakerOverride,
    SavedHold,
    SavedMode,
    SavedOverride,
    SavedSilence,
)
from llm_guard.admin.persistence.shared_overrides import SharedOverrides
from llm_guard.storage.shared.exchange_store import ChangedOverride
from tests.fakes.clock import ManualClock
from tests.unit.admin.overrides.override_world import ActedOn

WALL = ManualClock().wall()
DRAIN = SavedHold("one/gpt", "drained", "it leaks", "ann", WALL - 60, None)
ALL = (
    DRAIN,
    SavedBreakerOverride("one/gpt", None, None, "forced_open", "it leaks", "ann", WALL - 5, WALL + 600),
    SavedMode(None, True, "a storm", "ann", WALL - 5, None),
    SavedSilence("latency", "gpt", WALL + 600, "known", "ann"),
)


class State:
    """Overrides of a gateway, without their effects."""

    def __init__(self) -> None:
        self.all: list[SavedOverride] = []

    def overrides(self) -> list[SavedOverride]:
        return list(self.all)

    def put(self, kept: SavedOverride) -> None:
        self.all.append(kept)

    def end(self, kept: SavedOverride, _why: str) -> None:
        self.all.remove(kept)


class Gateway:
    def __init__(self, clock: ManualClock) -> None:
        self.state, self.acted = State(), ActedOn()
        self.published: dict[str, ChangedOverride] = {}
        self.shared = SharedOverrides(cast("OperatorState", self.state), self.publish, self.acted.changes, clock)

    def publish(self, changed: Mapping[str, ChangedOverride]) -> None:
        self.published |= changed


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pair(clock: ManualClock) -> tuple[Gateway, Gateway]:
    return Gateway(clock), Gateway(clock)


@pytest.mark.parametrize("saved", ALL, ids=lambda saved: type(saved).__name__)
def test_change_is_applied_elsewhere_as_it_was_made(pair: tuple[Gateway, Gateway], saved: SavedOverride) -> None:
    one, two = pair
    one.state.put(saved)
    one.shared.note_change("ann", "why")
    ((key, change),) = one.published.items()
    assert two.shared.apply(key, change.content, is_ended=change.is_ended)
    assert two.state.all == [saved]
    assert two.shared.apply(key, change.content, is_ended=False)
    assert two.state.all == [saved], "once"

    one.state.all.clear()
    one.shared.note_change("bob", "it was mended")
    assert one.published[key].is_ended
    assert two.shared.apply(key, one.published[key].content, is_ended=True)
    assert two.state.all == []
    assert [note[0] for note in two.acted.notes] == ["ann", "bob"]
    assert two.acted.notes[1][3] == "it was mended"
    assert two.shared.apply(key, one.published[key].content, is_ended=True)
    assert len(two.acted.notes) == 2, "there was nothing to end"


def test_expired_override_is_not_published_as_ended(pair: tuple[Gateway, Gateway], clock: ManualClock) -> None:
    one, _ = pair
    one.state.put(ALL[1])
    one.shared.note_change("ann", "why")
    one.published.clear()
    clock.advance(601.0)
    one.state.all.clear()
    one.shared.note_change("ann", "something else")
    assert one.published == {}


def test_override_that_a_reload_has_ended_is_not_published_as_ended(pair: tuple[Gateway, Gateway]) -> None:
    one, _ = pair
    one.state.put(DRAIN)
    one.shared.note_change("ann", "why")
    one.published.clear()
    one.state.all.clear()
    one.shared.follow()
    one.shared.note_change("ann", "something else")
    assert one.published == {}


def test_expired_override_is_not_put_into_effect(pair: tuple[Gateway, Gateway], clock: ManualClock) -> None:
    one, two = pair
    one.state.put(ALL[1])
    one.shared.note_change("ann", "why")
    ((key, change),) = one.published.items()
    clock.advance(601.0)
    assert two.shared.apply(key, change.content, is_ended=False)
    assert (two.state.all, two.acted.notes) == ([], [])


def test_age_of_what_was_restored_counts_from_its_beginning(pair: tuple[Gateway, Gateway]) -> None:
    one, _ = pair
    one.state.all = [DRAIN, ALL[3]]
    assert sorted(change.age_s for change in one.shared.current().values()) == pytest.approx([0.0, 60.0])


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("", b"{}"),
        ('["hold","one/other"]', DRAIN),
        ('["hold"]', DRAIN),
        ('["hold","one/gpt"]', {"since": -1.0}),
        ('["hold","one/gpt"]', {"until": 1e18}),
        ('["hold","one/gpt"]', {"kind": "lost"}),
        ('["hold","one/gpt"]', {"label": None}),
        ("[" * 100_000, b"{}"),
    ],
)
def test_nonsense_is_not_applied(pair: tuple[Gateway, Gateway], key: str, content: Any) -> None:
    _, two = pair
    if not isinstance(content, bytes):
        values = {name: getattr(DRAIN, name) for name in DRAIN.__struct_fields__}
        content = json.dumps(values | (content if isinstance(content, dict) else {})).encode()
    assert not two.shared.apply(key, content, is_ended=False)
    assert two.state.all == []
