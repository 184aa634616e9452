"""Overrides as the gateways of a fleet exchange them: what is published after a change, and what is applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import pytest
from msgspec.structs import replace

from llm_guard.admin.persistence.operator_state import (
    OperatorState,
    SavedBreakerOverride,
    SavedHold,
    SavedMode,
    SavedOverride,
    SavedSilence,
)
from llm_guard.admin.persistence.shared_overrides import SharedOverrides
from llm_guard.fleet.overrides import Applied
from llm_guard.storage.shared.exchange_store import Override, StoredOverride
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
        self.knows_all, self.is_full = True, False

    def overrides(self) -> list[SavedOverride]:
        return list(self.all)

    def put(self, kept: SavedOverride) -> None:
        self.all.append(kept)

    def try_put(self, kept: SavedOverride) -> bool:
        self.all = [*(one for one in self.all if type(one) is not type(kept)), kept]
        return not self.is_full

    def knows(self, _kept: SavedOverride) -> bool:
        return self.knows_all

    def end(self, kept: SavedOverride, _why: str) -> None:
        self.all.remove(kept)


class Gateway:
    def __init__(self, clock: ManualClock) -> None:
        self.state, self.acted = State(), ActedOn()
        self.published: dict[str, Override] = {}
        self.shared = SharedOverrides(cast("OperatorState", self.state), self.publish, self.acted.changes, clock)

    def publish(self, changed: Mapping[str, Override]) -> None:
        self.published |= changed

    def apply(self, key: str, change: Override) -> Applied:
        """Applies a change of another gateway, as the store returns it."""
        entry = StoredOverride(change.age_s, change.content, change.is_ended, change.left_s, since_ms=1)
        return self.shared.apply([(key, entry)])[key]


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
    assert two.apply(key, change) == "yes"
    assert two.state.all == [saved]
    assert two.apply(key, change) == "yes"
    assert (two.state.all, len(two.acted.notes)) == ([saved], 1), "once"

    one.state.all.clear()
    one.shared.note_change("bob", "it was mended")
    assert one.published[key].is_ended
    assert two.apply(key, one.published[key]) == "yes"
    assert two.state.all == []
    assert [note[0] for note in two.acted.notes] == ["ann", "bob"]
    assert two.acted.notes[1][3] == "it was mended"
    assert two.apply(key, one.published[key]) == "yes"
    assert len(two.acted.notes) == 2, "there was nothing to end"


def test_override_that_is_set_again_at_once_is_published(pair: tuple[Gateway, Gateway]) -> None:
    """Another operator may have lifted the first one meanwhile."""
    one, _ = pair
    one.state.put(DRAIN)
    one.shared.note_change("ann", "why")
    one.published.clear()
    one.state.all = [replace(DRAIN, since=DRAIN.since + 0.3)]
    one.shared.note_change("ann", "why")
    assert len(one.published) == 1


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


def test_target_that_a_reload_removes_is_named(pair: tuple[Gateway, Gateway]) -> None:
    one, _ = pair
    one.state.all = [DRAIN, ALL[3]]
    assert one.shared.follow() == []
    one.state.all.clear()
    one.state.knows_all = False
    assert len(one.shared.follow()) == 2
    assert one.shared.follow() == []


def test_clock_that_is_set_publishes_nothing(pair: tuple[Gateway, Gateway], clock: ManualClock) -> None:
    """What another operator has lifted meanwhile would come back."""
    one, _ = pair
    one.state.all = [ALL[1], ALL[3]]
    one.shared.note_change("ann", "why")
    one.published.clear()
    clock._wall_offset_s += 3600
    one.state.all = [replace(saved, until=saved.until + 3600) for saved in (ALL[1], ALL[3]) if saved.until]
    one.shared.note_change("ann", "something else")
    assert one.published == {}


def test_end_does_not_depend_on_the_clock_of_the_other_gateway(
    pair: tuple[Gateway, Gateway], clock: ManualClock
) -> None:
    one, two = pair
    one.state.put(ALL[1])
    one.shared.note_change("ann", "why")
    ((key, change),) = one.published.items()
    assert change.left_s == pytest.approx(600.0)
    clock._wall_offset_s += 3600  # the other gateway's clock is an hour ahead
    assert two.apply(key, change) == "yes"
    assert two.state.all[0].until == pytest.approx(clock.wall() + 600)


def test_override_of_an_unknown_target_is_not_put_into_effect(pair: tuple[Gateway, Gateway]) -> None:
    one, two = pair
    one.state.put(DRAIN)
    one.shared.note_change("ann", "why")
    ((key, change),) = one.published.items()
    two.state.knows_all = False
    assert two.apply(key, change) == "not here"
    assert (two.state.all, two.acted.notes) == ([], [])


def test_silence_beyond_the_limit_is_not_noted(pair: tuple[Gateway, Gateway]) -> None:
    one, two = pair
    one.state.put(ALL[3])
    one.shared.note_change("ann", "why")
    ((key, change),) = one.published.items()
    two.state.is_full = True
    assert two.apply(key, change) == "not here"
    assert two.acted.notes == []


def test_age_of_what_was_restored_counts_from_its_beginning(pair: tuple[Gateway, Gateway]) -> None:
    one, _ = pair
    one.state.all = [DRAIN, ALL[3]]
    assert sorted(change.age_s for change in one.shared.current().values()) == pytest.approx([60.0, 1e6])


@pytest.mark.parametrize(
    ("key", "changed", "left_s"),
    [
        ("", {}, None),
        ('["hold","one/other"]', {}, None),
        ('["hold"]', {}, None),
        ('["hold","one/gpt"]', {"since": -1.0}, None),
        ('["hold","one/gpt"]', {"since": 1e18}, None),
        ('["hold","one/gpt"]', {"until": 1e18}, None),
        ('["hold","one/gpt"]', {}, 60.0),
        ('["hold","one/gpt"]', {"until": 2e9}, 1e12),
        ('["hold","one/gpt"]', {"kind": "lost"}, None),
        ('["hold","one/gpt"]', {"label": None}, None),
        ("[" * 100_000, {}, None),
    ],
)
def test_nonsense_is_not_applied(
    pair: tuple[Gateway, Gateway], key: str, changed: dict[str, object], left_s: float | None
) -> None:
    _, two = pair
    values = {name: getattr(DRAIN, name) for name in DRAIN.__struct_fields__}
    content = json.dumps(values | changed).encode()
    assert two.apply(key, Override(0.0, content, is_ended=False, left_s=left_s)) == "unreadable"
    assert two.apply(key, Override(0.0, b"nonsense", is_ended=True)) == "unreadable"
    assert two.state.all == []
