"""Gateways that share slots through a store, in any order of calls, exchanges and lost answers: together they never use
more than the limit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from llm_guard.resilience.capacity.slot_sharing import SLOTS_HELD_S, SlotGrant, SlotRequest, SlotShare, granted

STEP_S = 0.1

steps = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["call", "call", "end", "ask", "hear", "lose"])), max_size=150
)


@dataclass
class _Gateway:
    name: str
    share: SlotShare = field(default_factory=SlotShare)
    in_use: int = 0
    waiting: int = 0
    answer: SlotGrant | None = None
    """An answer that is on its way."""

    def usable(self, limit: int, now: float) -> int:
        return self.share.held if self.share.is_shared else 0


@given(st.integers(0, 12), steps)
def test_no_more_slots_are_used_than_there_are(limit: int, taken: list[tuple[int, str]]) -> None:
    gateways = [_Gateway(name) for name in "abcd"]
    stored: dict[str, SlotRequest] = {}
    now = 0.0
    for number, step in taken:
        gateway = gateways[number]
        if step == "call":
            if gateway.in_use < gateway.usable(limit, now):
                gateway.in_use += 1
            else:
                gateway.waiting += 1
        elif step == "end":
            gateway.in_use = max(0, gateway.in_use - 1)
        elif step == "ask":
            request = gateway.share.request(limit, gateway.in_use, gateway.waiting, 4, now)
            others = {name: one for name, one in stored.items() if name != gateway.name}
            gateway.answer = granted(request, gateway.name, others, len(taken) // 7)
            stored[gateway.name] = replace(request, holds=gateway.answer.holds)
        elif step == "lose":
            gateway.answer = None
        elif gateway.answer is not None:
            gateway.share.grant(gateway.answer)
            gateway.answer = None
        assert sum(max(each.in_use, each.usable(limit, now)) for each in gateways) <= limit
        now = min(now + STEP_S / 10, SLOTS_HELD_S)


@given(st.integers(1, 12), st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_slots_move_to_the_gateways_that_need_them(limit: int, needs: list[int]) -> None:
    gateways = [_Gateway(name) for name in "abcd"[: len(needs)]]
    stored: dict[str, SlotRequest] = {}
    for round_ in range(4):
        for gateway, need in zip(gateways, needs, strict=True):
            request = gateway.share.request(limit, 0, need, len(needs), round_ * STEP_S)
            others = {name: one for name, one in stored.items() if name != gateway.name}
            grant = granted(request, gateway.name, others, 0)
            stored[gateway.name] = replace(request, holds=grant.holds)
            gateway.share.grant(grant)
    held = [gateway.usable(limit, 1.0) for gateway in gateways]
    assert sum(held) == limit
    assert all(one >= min(need, limit // len(needs)) for one, need in zip(held, needs, strict=True))
