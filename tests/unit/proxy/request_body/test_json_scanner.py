from __future__ import annotations

import pytest

from llm_guard.proxy.request_body import json_scanner
from llm_guard.proxy.request_body.fields import BadRequest, BodyFields
from llm_guard.proxy.request_body.json_scanner import JsonScanner
from llm_guard.proxy.request_body.model_field import inspect, names_more_models

LONG = b"x" * 70_000
CLOSINGS = ["}", "]", "]}", "}}", "", "]]", "}.5", "}e5", "},", "} 1", '}"', "}{}", "}\x00", "},{}", ".5]", ".5]}"]


@pytest.fixture(params=[1, 1 << 14], ids=["every byte", "16 KiB"], autouse=True)
def read_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(json_scanner, "_READ_BYTES", request.param)
    return int(request.param)


def scanned(document: bytes, piece_bytes: int = 997) -> tuple[BodyFields, JsonScanner]:
    scan = JsonScanner()
    for at in range(0, len(document), piece_bytes):
        scan.feed(document[at : at + piece_bytes])
    return scan.end(), scan


def span(document: bytes, piece_bytes: int = 997) -> bytes:
    start, end = scanned(document, piece_bytes)[1].span_of_model()
    return document[start:end]


def refused(document: bytes, piece_bytes: int = 997) -> str:
    with pytest.raises(BadRequest) as caught:
        scanned(document, piece_bytes)
    assert caught.value.status == 400
    return caught.value.code


LISTS = [
    b'["a", "' + LONG + b'", "b"]',
    b"[" + b"[1]," * 20_000 + b"[2]]",
    b"[[" + b"1," * 20_000 + b"2], [" + b"1," * 20_000 + b"2]]",
    b"[" + b"1, " * 30_000 + b"2]",
    b'["a"]',
    b"[]",
    b"[" + b'{"text": ["a", "b"]}, ' * 9000 + b"{}]",
    b'["' + b'[{\\"' * 9000 + b'", "b"]',
    b'"' + LONG + b'"',
    b"null",
]


@pytest.mark.parametrize("name", [b"prompt", b"input"])
@pytest.mark.parametrize("value", LISTS)
def test_number_of_inputs_of_a_large_document_is_known_as_of_a_small_one(name: bytes, value: bytes) -> None:
    for document in (
        b'{"%b": %b, "x": "%b"}' % (name, value, LONG),
        b'{"x": [%b{"%b": ["c"]}], "%b": %b, "y": {"%b": ["c"]}}' % (b"[0]," * 9000, name, name, value, name),
    ):
        found, expected = scanned(document)[0], inspect(document, "application/json", "", 1 << 30)
        assert (found.inputs, found.prompts) == (expected.inputs, expected.prompts)


@pytest.mark.parametrize("value", [b'"a"', b"[1, 2]", b'["a", "b"]', b"null", b'[{"text": "a"}]'])
@pytest.mark.parametrize("prompt", LISTS)
def test_prompt_next_to_an_input_does_not_count(value: bytes, prompt: bytes) -> None:
    for order in (b'{"input": %b, "prompt": %b, "x": "%b"}', b'{"prompt": %b, "input": %b, "x": "%b"}'):
        values = (value, prompt) if order.startswith(b'{"input') else (prompt, value)
        document = order % (*values, LONG)
        expected = inspect(document, "application/json", "", 1 << 30)
        assert scanned(document)[0].inputs == expected.inputs


@pytest.mark.parametrize(
    "document",
    [
        b'{"x": "' + LONG + b'", "model": "a", "stream": true, "n": 2}',
        b'{"model": "a", "stream": true, "n": 2, "x": "' + LONG + b'"}',
        b'{"' + LONG + b'": "' + LONG + b'", "model": "a", "stream": true, "n": 2}',
        b'{"x": [' + b'{"model": "b", "y": [1, 2.5e3, null]},' * 3000 + b'0], "model": "a", "n": 2, "stream": true}',
        b'{"model": "b", "x": "' + LONG + b'", "n": 3, "model": "a", "stream": true, "n": 2}',
        b' {"model" : "a" , "x" : "' + b"\\\\" * 30_000 + b'", "stream" : true , "n" : 2 } \n',
        b'{"x": "' + b'\\"' * 30_000 + b'", "model": "a", "stream": true, "n": 2}',
        b'{"x": "' + b"\\ud83d\\ude00" * 9000 + b'", "model": "a", "stream": true, "n": 2}',
        b'{"x": "' + b"\\ud83d" * 9000 + b'", "model": "a", "stream": true, "n": 2}',
        '{{"x": "{}", "model": "a", "stream": true, "n": 2}}'.format("aé日😀" * 9000).encode(),
    ],
)
@pytest.mark.parametrize("piece_bytes", [997, 4096, 32_768])
def test_large_document_has_the_fields_of_the_whole(document: bytes, piece_bytes: int) -> None:
    asked = scanned(document, piece_bytes)[0]
    assert asked == BodyFields("a", is_stream=True, choices=2, is_model_doubled=names_more_models(document))
    assert inspect(document, "application/json", "", 1 << 30) == BodyFields("a", is_stream=True, choices=2)
    assert span(document, piece_bytes) == b'"a"'


def test_stored_state_is_found_in_parts() -> None:
    conversation = b'{"id": "c", "x": "' + LONG + b'"}'
    asked, _ = scanned(b'{"model": "a", "conversation": ' + conversation + b', "store": false}')
    assert (asked.is_sticky, asked.is_stateful) == (True, True)


@pytest.mark.parametrize("name", [b"model", b'"model'])
def test_end_of_a_long_string_is_not_taken_for_a_name(name: bytes) -> None:
    """The scanner keeps only a placeholder of a long string."""
    long_name = LONG + name.replace(b'"', b'\\"')
    document = b'{"' + long_name + b'": "evil", "model": "a"}'
    assert (scanned(document)[0], span(document)) == (BodyFields("a"), b'"a"')


@pytest.mark.parametrize("model", [b'"' + LONG + b'"', b"[" + b"1," * 9000 + b"1]"])
def test_model_that_is_no_name_is_refused(model: bytes) -> None:
    assert refused(b'{"x": 1, "model": ' + model + b"}") == "invalid_model"


def test_model_under_an_escaped_key_has_no_span() -> None:
    asked, scan = scanned(b'{"x": "' + LONG + b'", "mod\\u0065l": "a"}')
    assert asked.model == "a"
    with pytest.raises(BadRequest, match="without escapes"):
        scan.span_of_model()


@pytest.mark.parametrize("opening", ['{"x":[1]', '{"x":{"y":{}}', '{"x":"y"', "[[1]", '{"x":[[1]'])
@pytest.mark.parametrize("ending", CLOSINGS)
def test_end_of_a_large_document_is_judged_like_that_of_a_small_one(opening: str, ending: str) -> None:
    document = (opening + ending).encode()
    try:
        expected: BodyFields | str = inspect(document, "application/json", "", 1 << 30)
    except BadRequest as bad:
        expected = bad.code
    for piece_bytes in (1, 2, 3, 5, 100):
        if isinstance(expected, str):
            assert refused(document, piece_bytes) == expected
        else:
            assert scanned(document, piece_bytes)[0] == expected


@pytest.mark.parametrize(
    "rest",
    [
        b"NaN}", b'"\xff"}', b'"' + LONG + b"\xff" + LONG + b'"}', b'"\n"}',
        b'"' + LONG + b"\n" + LONG + b'"}', b'"' + LONG + b"\\q" + LONG + b'"}', b'"' + LONG, b'"a" "b"}',
        b'""' * 9000 + b"}", b"[1}", b'{"a"]}', b"\\" * 40_000, b" " * 200_000 + b"1}", b"1" * 200_000 + b"}",
        b"[" * 1025, b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' * 100_000, b'{"\xc3":1}}',
    ],
)  # fmt: skip
def test_body_that_no_upstream_could_read_is_refused(rest: bytes) -> None:
    for piece_bytes in (997, 32_768):
        assert refused(b'{"model": "a", "x": ' + rest, piece_bytes) == "invalid_json"


@pytest.mark.parametrize("document", [b"[" + b"1," * 30_000 + b"1]", b'"' + LONG + b'"', b"5", b'[{"model": "a"}]'])
def test_list_or_scalar_has_no_fields(document: bytes) -> None:
    assert scanned(document)[0] == BodyFields()


def test_error_states_its_place_in_the_body() -> None:
    document = b'{"a": [' + b"1, " * 20_000 + b"tru]}"
    with pytest.raises(BadRequest, match=r"\(byte 60011\)") as small:
        inspect(document, "application/json", "", 1 << 30)
    with pytest.raises(BadRequest) as large:
        scanned(document)
    assert large.value.message == small.value.message


@pytest.mark.parametrize("document", [b'{"x": "' + LONG * 20, b'{"x": [' + b'{"y": "z"},' * 100_000])
def test_little_of_the_scanned_body_stays_in_memory(document: bytes) -> None:
    scan = JsonScanner()
    for at in range(0, len(document), 32_768):
        scan.feed(document[at : at + 32_768])
        assert len(scan._rest) < 20_000
