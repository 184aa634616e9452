from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from llm_guard.proxy.request_body.model_field import (
    BadRequest,
    BodyFields,
    inspect,
    model_in_query,
    rename,
    rename_in_query,
)
from tests.effort import repeated

JSON = "application/json"
BOUND = 1 << 20

names = st.text(min_size=1, max_size=20) | st.sampled_from(["a", "0", "1", 'q"\\', "model", '"model": "x"'])
keys = st.sampled_from(["model", "stream", "n", '"model', 'x"model": "y', "models", "messages"]) | st.text(max_size=5)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
spaces = st.sampled_from(["", "", " ", "\n\t ", "\r\n"])


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, str, str]:
    """A JSON object in three parts: everything before the value of its model, the value, and the rest.

    It also has duplicate keys, other fields, and nested ones of the same name; the last top-level `model` counts.
    """
    ascii_only = draw(st.booleans())

    def write(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii_only)

    others = draw(st.lists(st.tuples(keys, values), max_size=4))
    doubles = [("model", draw(names)) for _ in range(draw(st.integers(0, 2)))]
    before = draw(st.permutations(others + doubles))
    after = [(key, value) for key, value in draw(st.lists(st.tuples(keys, values), max_size=3)) if key != "model"]

    def field(key: str, value: str) -> str:
        return f"{draw(spaces)}{write(key)}{draw(spaces)}:{draw(spaces)}{value}{draw(spaces)}"

    head = "".join(field(key, write(value)) + "," for key, value in before)
    tail = "".join("," + field(key, write(value)) for key, value in after)
    gap = draw(spaces)
    return f'{{{head}{gap}"model"{gap}:{gap}', write(draw(names)), f"{gap}{tail}}}"


@settings(max_examples=repeated(300), deadline=None)
@given(parts=bodies(), new=names)
def test_rename_changes_the_model_and_no_byte_besides(parts: tuple[str, str, str], new: str) -> None:
    before, value, after = parts
    body = (before + value + after).encode()
    assert inspect(body, JSON, "", BOUND).model == json.loads(value)
    changed = rename(body, JSON, "", new)
    assert changed.startswith(before.encode())
    assert changed.endswith(after.encode())
    middle = changed[len(before.encode()) : len(changed) - len(after.encode())]
    assert json.loads(middle) == new
    assert inspect(changed, JSON, "", BOUND).model == new
    assert json.loads(changed) == {**json.loads(body), "model": new}


@settings(max_examples=50, deadline=None)
@given(parts=bodies(), new=names, encoding=st.sampled_from(["gzip", "deflate"]))
def test_compression_changes_nothing(parts: tuple[str, str, str], new: str, encoding: str) -> None:
    body = "".join(parts).encode()
    pack, unpack = (gzip.compress, gzip.decompress) if encoding == "gzip" else (zlib.compress, zlib.decompress)
    assert inspect(pack(body), JSON, encoding, BOUND) == inspect(body, JSON, "", BOUND)
    assert unpack(rename(pack(body), JSON, encoding, new)) == rename(body, JSON, "", new)


@settings(max_examples=repeated(200), deadline=None)
@given(value=values, model=names)
def test_model_is_what_a_json_parser_reads(value: Any, model: str) -> None:
    fields = {"messages": value, "stream": value, "n": value, "model": model}
    asked = inspect(json.dumps(fields).encode(), JSON, "", BOUND)
    choices = value if isinstance(value, int) and value is not True and 0 < value < 1000 else 1
    may_stream = not isinstance(value, bool | list | dict) and bool(value)
    assert asked == BodyFields(model, value is True, choices, may_stream=may_stream)


kinds = st.sampled_from([
    JSON, "application/x+json", "", "text/plain", "multipart/form-data; boundary=b",
    'multipart/form-data; boundary="b"', "multipart/form-data", "multipart/form-data; boundary=", ";;=",
]) | st.text(max_size=30)  # fmt: skip
encodings = st.sampled_from(["", "", "identity", "gzip", "deflate", "br", " GZIP "]) | st.text(max_size=5)
pieces = st.sampled_from([
    b'{"model":', b'"a"', b"\\ud83d", b'"', b"{", b"}", b"[", b"]", b",", b'"n":', b"1e9", b"NaN", b"\xff", b"\x00",
    b"\xef\xbb\xbf", b"--b", b"--b--", b"\r\n", b"\r\n\r\n", b'Content-Disposition: form-data; name="model"',
    b"; filename=", b'"stream":true',
])  # fmt: skip
junk = st.binary(max_size=80) | st.lists(pieces | st.binary(max_size=4), max_size=14).map(b"".join)
packed = junk | junk.map(gzip.compress) | junk.map(zlib.compress)


@settings(max_examples=repeated(600), deadline=None)
@given(body=packed, kind=kinds, encoding=encodings)
@example(b'{"model": "\xff"}', JSON, "")
@example(b'{"t": "\\ud83d", "model": ' + b"[" * 500 + b"]" * 500 + b"}", JSON, "")
def test_inspection_refuses_or_answers_any_input(body: bytes, kind: str, encoding: str) -> None:
    try:
        asked = inspect(body, kind, encoding, 200)
    except BadRequest:
        return
    assert asked.choices >= 1
    if asked.model is not None:
        assert 0 < len(asked.model) <= 256
        try:
            changed = rename(body, kind, encoding, "new")
        except BadRequest:
            return
        assert inspect(changed, kind, encoding, BOUND).model == "new"


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=60) | st.lists(pieces, max_size=8).map(b"".join), model=names, new=names)
def test_file_in_a_form_is_unchanged(content: bytes, model: str, new: str) -> None:
    boundary = b"a1b2c3"
    assume(boundary not in content and boundary not in (model + new).encode())
    head = b'Content-Disposition: form-data; name="%s"\r\n\r\n'
    before = b"--" + boundary + b"\r\n" + head % b"file" + content + b"\r\n--" + boundary + b"\r\n" + head % b"model"
    after = b"\r\n--" + boundary + b"--\r\n"
    kind = "multipart/form-data; boundary=a1b2c3"
    body = before + model.encode() + after
    assert inspect(body, kind, "", BOUND).model == model
    assert rename(body, kind, "", new) == before + new.encode() + after


@given(query=st.text(alphabet="model=&%2F+x", max_size=30), new=names)
def test_query_changes_only_in_its_model(query: str, new: str) -> None:
    try:
        old = model_in_query(query)
    except BadRequest:
        return
    changed = rename_in_query(query, new)
    if old is None:
        assert changed == query
        return
    assert model_in_query(changed) == new
    kept = [pair for pair in query.split("&") if not pair.startswith("model=")]
    assert [pair for pair in changed.split("&") if not pair.startswith("model=")] == kept
