"""Inputs that are nearly valid: well-formed seeds with a few mutations.

Mutations are encoded as steps, so that hypothesis and the long run make the same ones. `tests.fuzz.seeds` has the seeds
and `tests.fuzz.targets` the harnesses. An input is four bytes that seed a random generator, which makes a harness's
other choices, followed by the data to parse.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

DICE_BYTES = 4
MOST_BYTES = 1 << 16
Step = tuple[int, int, int]
"""One mutation: an index into `CHANGES` (modulo their number), a position (of 65536), and a number that parameterizes
it."""

_WORDS = (
    b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\x00", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85",
    b"\xf0\x9f\x98\x80", b"\xf0\x9f", b"\xff", b"\\", b'\\"', b"\\ud83d", b"\\u0000", b"\\u2028", b'"', b"'", b":",
    b",", b"{", b"}", b"[", b"]", b" ", b"\t", b"\x1f", b"\x7f",
)  # fmt: skip
_VALUES = (
    b"null", b"true", b"false", b"0", b"-1", b"1.5", b"9999", b"10000", b"9007199254740993", b"1e999", b"-0.0", b"NaN",
    b"Infinity", b'""', b'"\\ud800"', b'"error"', b"[]", b"{}", b"[null]", b'[{"index":0}]', b'{"":{}}', b"1" * 4299,
    b"1" * 4301, b"1" * 400,
)  # fmt: skip
_VALUE = re.compile(rb'(?<=:)\s*(?:"(?:[^"\\\n]|\\.)*"|[^\s,{}\[\]"]+|\[\]|\{\})')
_NUMBER = re.compile(rb"\d+")
_STRING = re.compile(rb'"(?:[^"\\\n]|\\.)*"')


def mutated(seed: bytes, steps: Sequence[Step], others: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """Applies the steps to `seed`, up to MOST_BYTES; `others` supply parts to splice in, `words` are likely tokens."""
    for kind, where, what in steps:
        change = CHANGES[kind % len(CHANGES)]
        other = others[what % len(others)] if others else b""
        seed = change(seed, where * (len(seed) + 1) >> 16, what, other, (*_WORDS, *words))[:MOST_BYTES]
    return seed


def random_steps(dice: random.Random) -> list[Step]:
    return [(dice.getrandbits(8), dice.getrandbits(16), dice.getrandbits(32)) for _ in range(dice.choice(_HOW_MANY))]


def rolled(data: bytes) -> tuple[random.Random, bytes]:
    """Splits an input into its random generator and the data to parse."""
    return random.Random(data[:DICE_BYTES]), data[DICE_BYTES:]


def cuts_of(dice: random.Random, data: bytes, most: int = 8) -> list[bytes]:
    """Splits `data` into up to `most` + 1 pieces, some of them empty."""
    bounds = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randrange(most + 1)))
    return [data[start:end] for start, end in zip([0, *bounds], [*bounds, len(data)], strict=True)]


def minimal(data: bytes, breaks: Callable[[bytes], bool], tries: int = 2000) -> bytes:
    """Shrinks an input that breaks a harness by leaving out ever smaller parts, as long as it still breaks."""
    dice, rest = data[:DICE_BYTES], data[DICE_BYTES:]
    size = max(1, len(rest) // 2)
    while tries > 0:
        at, before = 0, len(rest)
        while at < len(rest) and tries > 0:
            shorter = rest[:at] + rest[at + size :]
            tries -= 1
            if breaks(dice + shorter):
                rest = shorter
            else:
                at += size
        if size == 1 and len(rest) == before:
            break
        size = max(1, size // 2)
    return dice + rest


_HOW_MANY = (1, 1, 1, 2, 2, 3, 4, 6, 10)
_Change = Callable[[bytes, int, int, bytes, Sequence[bytes]], bytes]


def _flip(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    return data[:at] + bytes(byte ^ (1 << what % 8) for byte in data[at : at + 1]) + data[at + 1 :]


def _put_in(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    return data[:at] + words[what % len(words)] + data[at:]


def _put_over(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    word = words[what % len(words)]
    return data[:at] + word + data[at + len(word) :]


def _leave_out(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    return data[:at] + data[at + 1 + what % 40 :]


def _end(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    return data[:at]


def _repeat(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    part = data[at : at + 1 + what % 60]
    return data[:at] + part * (2 + (what >> 8) % 30) + data[at:]


def _nest(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    """Nests a value as deep as parsers can just bear, or deeper."""
    begin, end = ((b"[", b"]"), (b'{"a":', b"}"), (b'{"error":', b"}"), (b"[[", b"]]"))[what % 4]
    depth = (8, 21, 60, 300, 450 + (what >> 8) % 100, 850 + (what >> 8) % 150, 3000)[(what >> 4) % 7]
    found = _VALUE.search(data, at)
    start, stop = found.span() if found else (at, at)
    return data[:start] + begin * depth + b"1" + (end * depth if what >> 31 else b"") + data[stop:]


def _change_value(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    found = _VALUE.search(data, at)
    return data[: found.start()] + _VALUES[what % len(_VALUES)] + data[found.end() :] if found else data


def _change_number(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    found = _NUMBER.search(data, at)
    if found is None:
        return data
    number = (b"0", b"1", b"2", b"3", b"-1", b"9999", b"10001", b"1e9", b"9" * 16, b"9" * 4301)[what % 10]
    return data[: found.start()] + number + data[found.end() :]


def _borrow_string(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    mine, theirs = _STRING.search(data, at), _STRING.search(other, (what >> 8) % (len(other) + 1))
    return data[: mine.start()] + theirs[0] + data[mine.end() :] if mine and theirs else data


def _line_at(data: bytes, at: int) -> tuple[int, int]:
    end = data.find(b"\n", at)
    return data.rfind(b"\n", 0, at) + 1, len(data) if end < 0 else end + 1


def _drop_line(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _line_at(data, at)
    return data[:start] + data[end:]


def _double_line(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _line_at(data, at)
    return data[:end] + data[start:end] * (1 + what % 3) + data[end:]


def _move_line(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _line_at(data, at)
    rest = data[:start] + data[end:]
    there = _line_at(rest, what % (len(rest) + 1))[0]
    return rest[:there] + data[start:end] + rest[there:]


def _borrow_lines(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    start = _line_at(data, at)[0]
    theirs = _line_at(other, (what >> 8) % (len(other) + 1))[0]
    end = len(other) if what & 1 else _line_at(other, min(len(other), theirs + what % 400))[1]
    return data[:start] + other[theirs:end] + (b"" if what & 2 else data[start:])


def _end_lines_otherwise(data: bytes, at: int, what: int, other: bytes, words: Sequence[bytes]) -> bytes:
    return data[:at] + data[at:].replace(b"\r\n", b"\n").replace(b"\n", (b"\r\n", b"\r", b"\n\r", b"\n\n")[what % 4])


CHANGES: tuple[_Change, ...] = (
    _flip, _put_in, _put_in, _put_over, _leave_out, _end, _repeat, _nest, _change_value, _change_value, _change_number,
    _borrow_string, _drop_line, _double_line, _move_line, _borrow_lines, _borrow_lines, _end_lines_otherwise,
)  # fmt: skip
