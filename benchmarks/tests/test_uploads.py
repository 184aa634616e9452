"""Promises and page of the benchmark of uploads."""

from __future__ import annotations

from benchmarks.uploads import PROMISED_FIRST_BYTE_S, PROMISED_MEMORY_MIB, Uploaded, page


def uploaded(first_byte_s: float = 0.01, memory_mib: float = 1.0) -> Uploaded:
    return Uploaded("one", first_byte_s, 4.0, 0.001, 0.002, memory_mib, 0.5)


def test_late_first_byte_or_high_memory_misses_a_target() -> None:
    assert not uploaded().broken
    assert uploaded(first_byte_s=PROMISED_FIRST_BYTE_S * 2).broken == ["one: first byte after 0.200 s"]
    assert uploaded(memory_mib=PROMISED_MEMORY_MIB * 2).broken == ["one: 32.0 MiB of memory"]


def test_page_has_a_row_for_each() -> None:
    assert page([uploaded()])[-1] == "| one | 4.0 s | **10 ms** | 1 ms | 2 ms | 1.0 MiB | 0.50 s |"
