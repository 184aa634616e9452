"""The bound on the memory that buffered unary responses use."""

from __future__ import annotations

from llm_guard.resilience.capacity.response_memory import MemoryLease, ResponseMemory


def test_leases_share_one_bound() -> None:
    memory = ResponseMemory(100)
    first, second = MemoryLease(memory), MemoryLease(memory)
    assert first.try_take(60)
    assert not second.try_take(41)
    assert second.try_take(40)
    assert (memory.taken_bytes, first.bytes, second.bytes) == (100, 60, 40)


def test_released_lease_makes_room_once() -> None:
    memory = ResponseMemory(100)
    lease = MemoryLease(memory)
    assert lease.try_take(100)
    for _ in range(2):
        lease.release()
        assert (memory.taken_bytes, lease.bytes) == (0, 0)


def test_bound_may_shrink_below_what_is_taken() -> None:
    memory = ResponseMemory(100)
    lease = MemoryLease(memory)
    assert lease.try_take(80)
    memory.limit_bytes = 50
    assert not lease.try_take(1)
    lease.release()
    assert lease.try_take(50)
