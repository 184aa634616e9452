"""A body scanned in pieces yields the same fields as when parsed as a whole, for any content and any pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llm_guard.proxy.request_body import json_scanner
from llm_guard.proxy.request_body.fields import BadRequest, BodyFields
from llm_guard.proxy.request_body.json_scanner import JsonScanner
from llm_guard.proxy.request_body.model_field import form_fields, inspect, rename
from llm_guard.proxy.request_body.multipart_scanner import MultipartScanner
from llm_guard.proxy.request_body.spooled_body import patched
from tests.effort import repeated

JSON = "application/json"
BOUND = 1 << 30

fields = st.sampled_from(["model", "stream", "n", "store", "background", "conversation", "previous_response_id"])
units = st.sampled_from(["a", "é", "日", "😀", "\\", '"', "\n", "\ud83d", "\ude00", ",", "[", "}", "~", "model"])
texts = (
    st.lists(units, max_size=6).map("".join)
    | st.builds(lambda unit, count: unit * count, units, st.sampled_from([1500, 4094, 4100, 9000]))
    | st.sampled_from(["", "model", '{"model": "evil"}', "~" * 300])
)  # fmt: skip
values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 999, 1000, -1, 2.5, 1e-7, 2**64]) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(fields | texts, inner, max_size=4),
    max_leaves=10,
)
names = st.sampled_from(["gpt", "a b", 'x"y\\', "ü/😀", "m" * 256]) | texts
damages = st.sampled_from([
    b"", b'"', b"\\", b",", b"[", b"]", b"{", b"}", b".5", b"e5", b"1e400", b"NaN", b"\xff", b"\xc3", b"\x00",
    b"\\ud83d", b'"a"', b":", b" ",
])  # fmt: skip
sizes = st.lists(st.sampled_from([1, 2, 3, 7, 100, 4095, 4097, 32_768]), min_size=1, max_size=8)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Mostly objects with the wanted fields, some of them duplicated."""
    ascii_only, space = draw(st.booleans()), draw(st.sampled_from(["", " ", "\n\t"]))

    def write(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii_only, separators=(f"{space},{space}", f"{space}:{space}"))

    pairs = draw(st.lists(st.tuples(fields | texts, values), max_size=4))
    pairs += [("model", name) for name in draw(st.lists(names, max_size=2))]
    text = ",".join(f"{space}{write(key)}{space}:{write(value)}{space}" for key, value in draw(st.permutations(pairs)))
    whole = f"{{{text}}}" if draw(st.integers(0, 19)) else write(draw(values))
    return whole.encode("utf-8", "surrogatepass")


def pieces_of(body: bytes, cuts: list[int]) -> list[bytes]:
    """Splits a body into pieces of these sizes, in turn; after 400 pieces uses a larger size."""
    ends = [0]
    while ends[-1] < len(body):
        ends.append(ends[-1] + (cuts[len(ends) % len(cuts)] if len(ends) < 400 else 997))
    return [body[start:end] for start, end in pairwise(ends)]


def as_a_whole(body: bytes, kind: str) -> BodyFields | str:
    try:
        return inspect(body, kind, "", BOUND)
    except BadRequest as bad:
        return bad.code


def check_json(body: bytes, cuts: list[int], read_bytes: int) -> BodyFields | None:
    """Scans the body in pieces and returns its fields; None if it is refused."""
    expected = as_a_whole(body, JSON)
    scan = JsonScanner()
    try:
        with patch.object(json_scanner, "_READ_BYTES", read_bytes):
            for piece in pieces_of(body, cuts):
                scan.feed(piece)
            asked = scan.end()
    except BadRequest:
        assert isinstance(expected, str)
        return None
    assert not isinstance(expected, str)
    assert replace(asked, is_model_doubled=False) == expected
    if asked.model is not None:
        try:
            renamed = rename(body, JSON, "", "new")
        except BadRequest:
            return asked
        start, end = scan.span_of_model()
        assert b"".join(patched([body], [(start, end, b'"new"')])) == renamed
    return asked


@settings(max_examples=repeated(200), deadline=None)
@given(body=documents(), cuts=sizes, read_bytes=st.sampled_from([1, 1, 50, 5000]))
@example(b'{"x": "' + b"y" * 5000 + b'model": "evil", "model": "a"}', [7], 1)
@example(b'{"model": "\\ud83d", "model": "a"}', [1], 1)
@example(b'{"model": "a", "x": "' + b"\\ud83d\\ude00" * 3000 + b'"}', [7, 100], 1)
@example(b'{"model": "a", "x": "' + "aé日😀".encode() * 1500 + b'"}', [1], 1)
def test_document_in_pieces_has_the_fields_of_the_whole(body: bytes, cuts: list[int], read_bytes: int) -> None:
    check_json(body, cuts, read_bytes)


@settings(max_examples=repeated(200), deadline=None)
@given(
    body=documents(),
    cuts=sizes,
    read_bytes=st.sampled_from([1, 1, 50, 5000]),
    at=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), damages), min_size=1, max_size=3),
)
@example(b'{"x":[1]}', [1], 1, [(0.9, 0, b".5")])
@example(b'{"model":"a"}', [1], 1, [(1.0, 0, b".5")])
def test_damaged_document_is_judged_in_pieces_as_it_is_as_a_whole(
    body: bytes, cuts: list[int], read_bytes: int, at: list[tuple[float, int, bytes]]
) -> None:
    for where, dropped, put in at:
        start = round(where * len(body))
        body = body[:start] + put + body[start + dropped :]
    if body:
        check_json(body, cuts, read_bytes)


lines = st.sampled_from([
    b"--b", b"--b\r\n", b"--b--", b"--b--\r\n", b"--b \t\r\n", b"--bx\r\n", b"--", b"\r\n", b"\r\n\r\n", b"\r", b"\n",
    b"a", b"true",
    b'Content-Disposition: form-data; name="model"', b'Content-Disposition: form-data; name="stream"',
    b'Content-Disposition: form-data; name="x"; filename="name=model"', b"x" * 5000, b"\r\n--b\r\n" * 4,
    b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--b\r\n',
])  # fmt: skip


@settings(max_examples=repeated(400), deadline=None)
@given(body=st.lists(lines, max_size=16).map(b"".join), cuts=sizes)
@example(b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--b--', [1])
@example(b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n--b--', [1])
def test_form_in_pieces_has_the_fields_of_the_whole(body: bytes, cuts: list[int]) -> None:
    kind = "multipart/form-data; boundary=b"
    scan = MultipartScanner(b"b")
    for piece in pieces_of(body, cuts):
        scan.feed(piece)
    try:
        asked: BodyFields | str = form_fields(scan)
    except BadRequest as bad:
        asked = bad.code
    assert asked == as_a_whole(body, kind)
    if isinstance(asked, BodyFields) and asked.model is not None:
        patches = [(start, end, b"new") for start, end in scan.spans]
        assert b"".join(patched([body], patches)) == rename(body, kind, "", "new")
