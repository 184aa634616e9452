from __future__ import annotations

from llm_guard.upstreams.engines.output import CHARS, LINES, SHOWN_LINES, Tail, lines_of, without_headers


def test_lines_are_whole_for_any_chunks() -> None:
    tail = Tail()
    for piece in (b"on", b"e\ntw", b"o\r\n", b"\n", b"thr"):
        tail.feed(piece)
    assert tail.lines() == ("one", "two", "", "thr")


def test_only_the_last_lines_are_stored() -> None:
    tail = Tail()
    tail.feed(b"".join(b"%d\n" % number for number in range(LINES + 50)))
    assert (len(tail.lines()), tail.lines()[0], tail.lines()[-1]) == (LINES, "50", str(LINES + 49))
    tail.feed(b"more")
    assert (len(tail.lines()), tail.lines()[-1]) == (LINES, "more")


def test_last_lines_are_whole_after_any_output() -> None:
    for more in (-1, 0, 1, 2):
        tail = Tail()
        tail.feed(b"begun ")
        tail.feed(b"".join(b"%d\n" % number for number in range(LINES + more)) + b"not yet")
        expected = ["begun 0", *map(str, range(1, LINES + more)), "not yet"]
        assert list(tail.lines()) == expected[-LINES:]


def test_line_without_an_end_does_not_grow() -> None:
    tail = Tail()
    for _ in range(200):
        tail.feed(b"x" * 65536)
    assert tail.lines() == ("x" * CHARS,)
    assert len(tail._begun) < 10 * CHARS


def test_non_text_can_be_shown() -> None:
    tail = Tail()
    tail.feed(b"\x1b[31mred\x1b[0m \xff\xfe \xe2\x82\n")
    (line,) = tail.lines()
    assert line.isprintable()
    assert "red" in line


def test_given_secrets_are_masked() -> None:
    tail = Tail(["hush-hush", "hush-hush-hush", "no", ""])
    tail.feed(b"key hush-hush-hush and hush-hush, no\n")
    assert tail.lines() == ("key *** and ***, no",)


def part(stream: int, content: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(content).to_bytes(4) + content


def test_log_of_a_container_without_its_headers() -> None:
    long = b"x" * 70_000
    assert without_headers(part(1, b"one\n") + part(2, b"") + part(2, long)) == b"one\n" + long
    assert without_headers(part(1, b"one\n") + part(2, b"cut off")[:11]) == b"one\ncut"
    assert without_headers(part(1, b"one\n") + b"\x02\x00\x00") == b"one\n\x02\x00\x00"


def test_log_of_a_container_with_a_terminal_is_unchanged() -> None:
    for log in (b"", b"hello\r\n", b"\x03\x00\x00\x00more", b"\x01\x00\x01\x00more"):
        assert without_headers(log) == log


def test_as_many_lines_of_a_log_as_are_shown() -> None:
    numbers = [str(number) for number in range(SHOWN_LINES + 2)]
    assert lines_of("\n".join(numbers).encode()) == tuple(numbers[2:])
