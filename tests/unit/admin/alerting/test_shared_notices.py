"""Alerts of several gateways with one cause: one of them sends the notices, also when it fails in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from llm_guard.fleet.notices import FleetNotices
from llm_guard.resilience.alerts.silences import Silence
from llm_guard.storage.shared.exchange_store import Leases
from llm_guard.webhooks.notice_sharing import NoticeState, wants_lease
from tests.fakes.clock import ManualClock
from tests.fakes.fleet_names import NAMES
from tests.unit.admin.alerting.alert_world import World

OUTAGE = {"success_rate": {"below": 0.95}, "failure_spike": "off", "budget_exhausted": "off", "group_wait": "2s"}


class Fleet:
    """Gateways that exchange what they know of their notices twice a second."""

    def __init__(self, gateways: int = 3, **alerts: Any) -> None:
        self.clock = ManualClock()
        self.notices = [FleetNotices(NAMES, self.clock) for _ in range(gateways)]
        self.worlds = [World(self.clock, notices, **{**OUTAGE, **alerts}) for notices in self.notices]
        for world, notices in zip(self.worlds, self.notices, strict=True):
            notices.connect(world.alerts.notice_states)
        self.published: dict[int, Mapping[str, NoticeState]] = {}
        self.leases: dict[str, tuple[int, float]] = {}
        self.silent: set[int] = set()
        """Gateways that have ended."""
        self.is_frozen = False
        self.is_cut_off: set[int] = set()
        """Gateways that work, but do not reach the store."""
        self.exchange()

    def exchange(self) -> None:
        if self.is_frozen:
            return
        for n, notices in enumerate(self.notices):
            if n in self.silent | self.is_cut_off:
                self.published.pop(n, None)
                continue
            summaries = self.published[n] = notices.summaries()
            held, now = {}, self.clock.now()
            for subject, seconds in notices.wanted(summaries).items():
                holder, ends_at = self.leases.get(subject, (n, now))
                if holder == n or ends_at <= now:
                    self.leases[subject], held[subject] = (n, now + seconds), seconds
            others = [states for m, states in self.published.items() if m != n]
            notices.conclude(others, Leases(held, {}), now)

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            self.exchange()
            for n, world in enumerate(self.worlds):
                if n not in self.silent:
                    world.look()

    def break_down(self, *gateways: int) -> None:
        for n in gateways:
            self.worlds[n].break_down("one/small")

    def repair(self, *gateways: int) -> None:
        for n in gateways:
            self.worlds[n].repair("one/small")

    def sent(self) -> list[tuple[str, str]]:
        """Returns state and severity of every notice, in the order of the gateways."""
        return [(notice.state, notice.severity) for world in self.worlds for notice in world.told.notices]

    def ids(self) -> set[str]:
        return {notice.id for world in self.worlds for notice in world.told.notices}

    def incidents(self) -> set[str]:
        return {alert.incident for world in self.worlds for alert in world.alerts.firing()}


def test_outage_that_all_see_is_one_notice_and_one_end() -> None:
    fleet = Fleet()
    fleet.break_down(0, 1)
    fleet.pass_s(4)
    fleet.break_down(2)
    fleet.pass_s(10)
    assert fleet.sent() == [("firing", "info")]
    assert len(fleet.incidents()) == 1, "all gateways show the notice that was sent"
    fleet.repair(0)
    fleet.pass_s(70)
    assert fleet.sent() == [("firing", "info")], "it goes on at the others"
    fleet.repair(1, 2)
    fleet.pass_s(80)
    assert sorted(fleet.sent()) == [("firing", "info"), ("resolved", "info")]
    assert len(fleet.ids()) == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_whoever_ends_last_there_is_one_end(order: tuple[int, ...]) -> None:
    fleet = Fleet()
    fleet.break_down(0, 1, 2)
    fleet.pass_s(10)
    for n in order:
        fleet.repair(n)
        fleet.pass_s(7)
    fleet.pass_s(80)
    assert sorted(fleet.sent()) == [("firing", "info"), ("resolved", "info")]


def test_another_gateway_goes_on_when_the_one_that_sends_dies() -> None:
    fleet = Fleet()
    fleet.break_down(0, 1, 2)
    fleet.pass_s(10)
    sender = next(n for n, world in enumerate(fleet.worlds) if world.told.notices)
    fleet.silent.add(sender)
    fleet.pass_s(20)
    assert fleet.sent() == [("firing", "info")]
    fleet.repair(0, 1, 2)
    fleet.pass_s(80)
    assert sorted(fleet.sent()) == [("firing", "info"), ("resolved", "info")]
    assert len(fleet.ids()) == 1


def test_gateway_with_a_more_severe_alert_sends_it_once() -> None:
    fleet = Fleet()
    fleet.break_down(0, 1, 2)
    fleet.pass_s(10)
    sender = next(n for n, world in enumerate(fleet.worlds) if world.told.notices)
    other = (sender + 1) % 3
    fleet.worlds[other].end_calls("small", bad=100)
    fleet.pass_s(10)
    assert sorted(fleet.sent()) == [("firing", "critical"), ("firing", "info")]
    assert fleet.worlds[other].told.notices[-1].severity == "critical"
    fleet.repair(0, 1, 2)
    fleet.worlds[other].end_calls("small", good=1000)
    fleet.pass_s(120)
    assert sorted(fleet.sent()) == [("firing", "critical"), ("firing", "info"), ("resolved", "critical")]
    assert len(fleet.ids()) == 1


def test_reminders_come_from_the_one_that_sends() -> None:
    fleet = Fleet()
    fleet.break_down(0, 1, 2)
    fleet.pass_s(200)
    assert sorted(bool(world.told.reminders) for world in fleet.worlds) == [False, False, True]


def test_without_the_store_each_gateway_sends_by_itself() -> None:
    fleet = Fleet()
    fleet.is_frozen = True
    fleet.pass_s(4)
    fleet.break_down(0, 1)
    fleet.pass_s(10)
    assert fleet.sent() == [("firing", "info")] * 2
    fleet.repair(0, 1)
    fleet.pass_s(80)
    assert sorted(fleet.sent()) == [("firing", "info")] * 2 + [("resolved", "info")] * 2
    assert len(fleet.ids()) == 2


def test_notice_of_each_gateway_ends_when_the_store_is_back_in_between() -> None:
    fleet = Fleet()
    fleet.is_frozen = True
    fleet.pass_s(4)
    fleet.break_down(0, 1)
    fleet.pass_s(10)
    fleet.is_frozen = False
    fleet.pass_s(10)
    fleet.repair(0, 1)
    fleet.pass_s(80)
    ends = [notice.id for world in fleet.worlds for notice in world.told.notices if notice.state == "resolved"]
    assert sorted(ends) == sorted(fleet.ids())


def test_short_failure_of_the_store_sends_nothing_twice() -> None:
    fleet = Fleet(group_wait="1s")
    fleet.pass_s(2)
    fleet.break_down(0, 1, 2)
    fleet.is_frozen = True
    fleet.pass_s(2.5)
    fleet.is_frozen = False
    fleet.pass_s(10)
    assert fleet.sent() == [("firing", "info")]
    fleet.is_frozen = True
    fleet.pass_s(2)
    fleet.is_frozen = False
    fleet.pass_s(10)
    assert fleet.sent() == [("firing", "info")]


def test_undelivered_notice_counts_as_not_sent_when_its_gateway_dies() -> None:
    fleet = Fleet()
    fleet.break_down(0, 1)
    fleet.pass_s(2)
    for world in fleet.worlds:
        world.told.underway = {alert.incident for alert in world.alerts.firing()}
    fleet.pass_s(4)
    sender = next(n for n, world in enumerate(fleet.worlds) if world.told.notices)
    fleet.silent.add(sender)
    fleet.pass_s(10)
    assert [len(world.told.notices) for n, world in enumerate(fleet.worlds) if n in (0, 1)] == [1, 1]


def test_alerts_about_the_gateway_itself_are_each_gateways_own() -> None:
    fleet = Fleet()
    for world in fleet.worlds:
        world.is_reload_good = False
    fleet.pass_s(10)
    assert len(fleet.sent()) == 3
    assert all(notices.summaries() == {} for notices in fleet.notices)


def test_notice_that_fires_again_is_a_new_one() -> None:
    fleet = Fleet()
    fleet.break_down(0, 1, 2)
    fleet.pass_s(10)
    fleet.repair(0, 1, 2)
    fleet.pass_s(80)
    fleet.break_down(0, 1, 2)
    fleet.pass_s(10)
    assert sorted(fleet.sent()) == [("firing", "info")] * 2 + [("resolved", "info")]
    assert len(fleet.ids()) == 2


def test_webhook_that_a_reload_adds_hears_from_one_gateway() -> None:
    fleet = Fleet()
    fleet.break_down(0, 1, 2)
    fleet.pass_s(10)
    assert sorted(len(world.alerts.told()) for world in fleet.worlds) == [0, 0, 1]


def test_silence_does_not_end_an_incident_that_goes_on() -> None:
    fleet = Fleet()
    fleet.break_down(0, 1)
    fleet.pass_s(10)
    for world in fleet.worlds:
        assert world.alerts.try_silence(Silence("*", None, fleet.clock.now() + 200, "known", "anna"))
    fleet.repair(0)
    fleet.pass_s(150)
    assert fleet.sent() == [("firing", "info")]
    fleet.repair(1)
    fleet.pass_s(80)
    assert sorted(fleet.sent()) == [("firing", "info"), ("resolved", "info")]


@pytest.mark.parametrize("is_whole", [True, False])
def test_incident_that_was_ended_too_early_is_sent_again(is_whole: bool) -> None:
    """While the store was down, or this gateway was cut off, another one could not know that alerts still fire here."""
    fleet = Fleet(2)
    fleet.break_down(0, 1)
    fleet.pass_s(10)
    fleet.is_frozen, fleet.is_cut_off = is_whole, set() if is_whole else {1}
    fleet.pass_s(5)
    fleet.repair(0)
    fleet.pass_s(70)
    assert ("resolved", "info") in fleet.sent()
    before = fleet.ids()
    fleet.is_frozen, fleet.is_cut_off = False, set()
    fleet.pass_s(10)
    (again,) = fleet.ids() - before
    assert fleet.incidents() == {again}
    fleet.repair(1)
    fleet.pass_s(80)
    ends = [notice.id for world in fleet.worlds for notice in world.told.notices if notice.state == "resolved"]
    assert ends.count(again) == 1


def test_gateway_that_fails_on_and_off_ends_nothing_that_goes_on() -> None:
    fleet = Fleet(2)
    fleet.break_down(1)
    fleet.pass_s(10)
    for _ in range(3):
        fleet.break_down(0)
        fleet.pass_s(10)
        fleet.repair(0)
        fleet.pass_s(80)
    assert fleet.sent() == [("firing", "info")]
    fleet.repair(1)
    fleet.pass_s(80)
    assert sorted(fleet.sent()) == [("firing", "info"), ("resolved", "info")]


def test_gateway_that_cannot_deliver_leaves_it_to_another() -> None:
    fleet = Fleet(2)
    fleet.worlds[0].told.is_broken = True
    fleet.break_down(0)
    fleet.pass_s(3)
    fleet.break_down(1)
    fleet.pass_s(60)
    assert [len(world.told.notices) for world in fleet.worlds] == [0, 1]
    assert fleet.ids() == fleet.worlds[0].told.underway


def test_gateway_without_a_webhook_leaves_it_to_another() -> None:
    fleet = Fleet(2)
    fleet.worlds[0].told.is_listening = False
    fleet.break_down(0, 1)
    fleet.pass_s(10)
    assert [len(world.told.notices) for world in fleet.worlds] == [0, 1]


def test_alert_that_joins_late_does_not_begin_the_wait_anew() -> None:
    fleet = Fleet(2, group_wait="30s")
    fleet.break_down(0)
    fleet.pass_s(28)
    fleet.break_down(1)
    fleet.worlds[1].end_calls("small", bad=100)
    fleet.pass_s(10)
    assert fleet.sent() == [("firing", "critical")]


def test_end_that_is_not_delivered_is_sent_by_another_gateway() -> None:
    fleet = Fleet(2)
    fleet.break_down(0, 1)
    fleet.pass_s(10)
    sender = next(n for n, world in enumerate(fleet.worlds) if world.told.notices)
    fleet.worlds[sender].told.is_broken = True
    fleet.repair(0, 1)
    fleet.pass_s(70)
    fleet.silent.add(sender)
    fleet.pass_s(10)
    assert sorted(fleet.sent()) == [("firing", "info"), ("resolved", "info")]
    assert len(fleet.ids()) == 1


def test_the_most_severe_alert_gets_the_lease() -> None:
    warning, critical = NoticeState("a", None, "warning"), NoticeState("b", None, "critical")
    silenced, over = NoticeState("c", None, None), NoticeState("d", "critical", None, ended=("d",))
    stuck = NoticeState("e", None, "critical", can_send=False)
    assert wants_lease(critical, [warning])
    assert wants_lease(warning, [warning, silenced])
    assert not wants_lease(warning, [critical])
    assert not wants_lease(silenced, [warning])
    assert wants_lease(silenced, [over])
    assert not wants_lease(over, [])
    assert wants_lease(warning, [stuck])
    assert not wants_lease(stuck, [warning])
    assert wants_lease(stuck, [stuck])
