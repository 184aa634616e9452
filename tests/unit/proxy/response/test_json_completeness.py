"""Detection of the end of large JSON: complete at the end of the outermost value, however it is cut into pieces."""

from __future__ import annotations

import gzip
import json
import random
import time
import zlib
from typing import Any

import pytest

from llm_guard.proxy.response import json_completeness
from llm_guard.proxy.response.json_completeness import JsonCompleteness

TEXTS = ("", 'a"b', "\\", 'x\\"}]{', "\\\\", "é中", "\ud83d", "{[", "]}")


def value(dice: random.Random, depth: int = 0) -> Any:
    """Returns a random JSON value with strings that look like brackets and escapes."""
    drawn = dice.random()
    if depth and (depth > 4 or drawn < 0.3):
        return dice.choice((1, -2.5, None, True, *TEXTS))
    if drawn < 0.65:
        return {dice.choice(('a"', "b\\", "c")): value(dice, depth + 1) for _ in range(dice.randrange(4))}
    return [value(dice, depth + 1) for _ in range(dice.randrange(4))]


def is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def is_whole(body: bytes, dice: random.Random, encoding: str = "") -> bool:
    end, at = JsonCompleteness(encoding), 0
    while at < len(body):
        size = dice.randrange(1, 9)
        end.feed(body[at : at + size])
        at += size
    return end.is_whole


@pytest.mark.parametrize("seed", range(20))
def test_it_is_whole_where_a_parser_takes_it(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        body = json.dumps(value(dice)).encode() + dice.choice((b"", b" ", b"\r\n"))
        for at in (len(body), dice.randrange(1, len(body) + 1)):
            assert is_whole(body[:at], dice) == is_json(body[:at])
        packed = gzip.compress(body)
        assert is_whole(packed, dice, "gzip")
        assert not is_whole(packed[: dice.randrange(1, len(packed))], dice, "gzip")
        assert is_whole(zlib.compress(body) + b"\0\0", dice, "deflate")


@pytest.mark.parametrize("behind", [b"<html>", b"x", b"{", b'"'])
def test_any_data_after_the_end_breaks_it(behind: bytes) -> None:
    for pieces in ([b"{}" + behind], [b"{}", behind], [b"{}", b" ", behind]):
        end = JsonCompleteness("")
        for piece in pieces:
            end.feed(piece)
        assert not end.is_whole


def test_nothing_is_not_whole() -> None:
    assert not JsonCompleteness("").is_whole


def test_decompression_bomb_is_not_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_completeness, "_MOST_INFLATED_BYTES", 100_000)
    end = JsonCompleteness("gzip")
    end.feed(gzip.compress(b"[" + b" " * 10_000_000))
    assert end.is_whole


def test_text_full_of_quotation_marks_that_does_not_end_is_read_once() -> None:
    piece = b'["' + b'\\"' * 100_000
    began = time.thread_time()
    end = JsonCompleteness("")
    end.feed(piece)
    end.feed(b'"]')
    assert end.is_whole
    assert time.thread_time() - began < 1  # testing each quotation mark separately would take 20 s


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_names_are_found_across_pieces(size: int) -> None:
    body = b'{"object":"list","data":[]}'
    end = JsonCompleteness("", ("data", "choices"))
    for at in range(0, len(body), size):
        end.feed(body[at : at + size])
    assert end.missing == "choices"
