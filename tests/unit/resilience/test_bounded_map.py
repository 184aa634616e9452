from __future__ import annotations

from llm_guard.resilience.bounded_map import BoundedMap


def test_new_key_evicts_the_oldest_one() -> None:
    entries = BoundedMap[str, int](2)
    for number, key in enumerate("abc"):
        entries[key] = number
    assert entries == {"b": 1, "c": 2}


def test_assignment_to_a_key_neither_evicts_nor_renews() -> None:
    entries = BoundedMap[str, int](2)
    for key in "abab":
        entries[key] = 0
    entries["a"] = 1
    assert entries == {"a": 1, "b": 0}
    entries["c"] = 2
    assert list(entries) == ["b", "c"]


def test_key_in_use_is_kept() -> None:
    entries = BoundedMap[str, int](2)
    entries["a"] = entries["b"] = 0
    entries.move_to_end("a")
    entries["c"] = 0
    assert list(entries) == ["a", "c"]


def test_every_way_to_add_keeps_the_bound() -> None:
    entries = BoundedMap[str, int](2)
    entries.update(dict.fromkeys("abcd", 0))
    assert entries.setdefault("e", 5) == 5
    entries |= {"f": 6}
    assert entries == {"e": 5, "f": 6}


def test_evicted_key_is_handed_over() -> None:
    values = dict.fromkeys("abcd", 0)
    entries = BoundedMap[str, None](2, values.__delitem__)
    for key in "abcd":
        entries[key] = None
    del entries["c"]
    assert values == dict.fromkeys("cd", 0)
