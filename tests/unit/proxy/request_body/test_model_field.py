from __future__ import annotations

import gc
import gzip
import json
import zlib

import pytest

from llm_guard.proxy.request_body import model_field
from llm_guard.proxy.request_body.model_field import (
    MAX_MODEL_CHARS,
    BadRequest,
    BodyFields,
    inflate,
    inspect,
    model_in_query,
    rename,
    rename_in_query,
)

JSON = "application/json"
FORM = 'multipart/form-data; boundary="b0"'
BOUND = 1 << 20


def inspected(body: bytes | str, content_type: str = JSON, encoding: str = "") -> BodyFields:
    return inspect(body.encode() if isinstance(body, str) else body, content_type, encoding, BOUND)


def refused(body: bytes | str, content_type: str = JSON, encoding: str = "") -> tuple[int, str]:
    with pytest.raises(BadRequest) as caught:
        inspected(body, content_type, encoding)
    assert caught.value.message
    return caught.value.status, caught.value.code


def renamed(body: bytes | str, content_type: str = JSON) -> bytes:
    """Renames as the gateway does: only after `inspect` has found a model in the body."""
    body = body.encode() if isinstance(body, str) else body
    assert inspected(body, content_type).model is not None
    return rename(body, content_type, "", "new")


# fields of a JSON body


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ('{"model": "a", "stream": true, "n": 3}', BodyFields("a", True, 3)),
        ('{"stream": 1}', BodyFields(may_stream=True)),
        ('{"stream": "true", "n": 2}', BodyFields(choices=2, may_stream=True)),
        ('{"stream": 0, "n": 1}', BodyFields()),
        ('{"stream": [true]}', BodyFields()),
        ('{"prompt": "hi"}', BodyFields(inputs=1)),
        ('{"prompt": ["a", "b", "c"], "n": 2}', BodyFields(choices=2, prompts=3, inputs=3)),
        ('{"prompt": [1, 2, 3]}', BodyFields(inputs=1)),
        ('{"prompt": [[1], [2]]}', BodyFields(prompts=2, inputs=2)),
        ('{"input": "hi"}', BodyFields(inputs=1)),
        ('{"input": ["a", "b"]}', BodyFields(inputs=2)),
        ('{"input": [1, 2, 3]}', BodyFields(inputs=1)),
        ('{"input": [[1, 2], [3]]}', BodyFields(inputs=2)),
        ('{"input": [{"text": "a"}, {"text": "b"}]}', BodyFields()),
        ('{"input": []}', BodyFields()),
        ('{"input": null}', BodyFields()),
        ('{"prompt": []}', BodyFields()),
        ('\r\n\t {"n":2 , "stream" : false ,"model" : "a"}\n', BodyFields("a", False, 2)),
        ('{"model": "a\\u0062\\n"}', BodyFields("ab\n")),
        ('{"mod\\u0065l": "a"}', BodyFields("a")),
        ('{"model": "a", "model": "b"}', BodyFields("b")),
        ('{"x": {"model": "b"}, "model": "a", "y": [{"model": "c"}]}', BodyFields("a")),
        ('{"x": "\\"model\\": \\"b\\"", "model": "a"}', BodyFields("a")),
        ('{"model": null}', BodyFields()),
        ("{}", BodyFields()),
        ('{"model": "a", "seed": 18446744073709551616}', BodyFields("a")),
        ('{"model": "a", "x": 1e308, "n": 18446744073709551616}', BodyFields("a")),
        ('{"model": "a", "text": "cut \\ud83d"}', BodyFields("a")),
        ('{"model": "a", "stream": true, "n": 2, "text": "\\ude00 cut"}', BodyFields("a", True, 2)),
        ('{"model": "ümlaut/😀"}', BodyFields("ümlaut/😀")),
    ],
)
def test_fields_of_a_body_are_found(body: str, what: BodyFields) -> None:
    assert inspected(body) == what


@pytest.mark.parametrize("stream", ["1", '"true"', "null", "[true]", "{}"])
def test_only_true_requests_a_stream(stream: str) -> None:
    assert inspected(f'{{"model": "a", "stream": {stream}}}').is_stream is False


@pytest.mark.parametrize("n", ["0", "-1", "2.0", '"2"', "null", "[]", "1000"])
def test_odd_number_of_choices_is_one(n: str) -> None:
    assert inspected(f'{{"model": "a", "n": {n}}}').choices == 1


@pytest.mark.parametrize("body", ["[]", "[1]", "5", '"x"', "null", "true"])
def test_list_or_scalar_has_no_fields(body: str) -> None:
    assert inspected(body) == BodyFields()


# calls that use or create objects at the provider


@pytest.mark.parametrize(
    ("fields", "is_bound", "is_stateful"),
    [
        ('"previous_response_id": "resp_1"', True, True),
        ('"conversation": "conv_1"', True, True),
        ('"conversation": {"id": "conv_1"}', True, True),
        ('"store": true', False, True),
        ('"background": true', False, True),
        ('"store": true, "previous_response_id": "resp_1"', True, True),
        ('"store": false', False, False),
        ('"background": false, "store": false', False, False),
        ('"previous_response_id": null, "conversation": null, "store": null', False, False),
        ('"previous_response_id": ""', False, False),
        ('"input": "store", "metadata": {"store": true, "background": true, "conversation": "c"}', False, False),
        ('"st\\u006fre": true', False, True),
    ],
)
@pytest.mark.parametrize("more", ["", ', "text": "cut \\ud83d"'], ids=["fast", "slow"])
def test_state_stored_by_a_provider_is_found(fields: str, is_bound: bool, is_stateful: bool, more: str) -> None:
    what = inspected(f'{{"model": "a", {fields}{more}}}')
    assert (what.model, what.is_sticky, what.is_stateful) == ("a", is_bound, is_stateful)


def test_json_is_found_under_other_names_too() -> None:
    assert inspected('{"model": "a"}', "application/vnd.api+json; charset=utf-8").model == "a"
    assert inspected(' {"model": "a"}', "").model == "a"
    assert inspected('{"model": "a"}', "text/plain").model == "a"


@pytest.mark.parametrize("body", [b"{ not JSON", b"\x00\x01", b"hello", b"--b0"])
def test_body_of_another_type_has_no_fields(body: bytes) -> None:
    assert inspected(body, "application/octet-stream") == BodyFields()


def test_empty_body_has_no_fields_for_any_content_type() -> None:
    for kind in (JSON, FORM, "", "text/plain"):
        for encoding in ("", "gzip", "br"):
            assert inspected(b"", kind, encoding) == BodyFields()


# malformed bodies


@pytest.mark.parametrize(
    "body",
    [
        b"   ",
        b"{",
        b'{"model": "a"',
        b'{"model": "a"} x',
        b'{"model": "a", "x": NaN}',
        b'{"model": "a", "x": -Infinity, "y": "\\ud83d"}',
        b'{"model": "a", "x": "\xff"}',
        b'{"model": "a", "\xff": 1}',
        b'{"model": "a", "x": "\\ud83d \xff"}',
        b'{"model": "a"}{}',
        b'{"model": "a"}\0',
        b'{"model": "a", "x": tru}',
        b'\xef\xbb\xbf{"model": "a"}',
        '{"model": "a"}'.encode("utf-16"),
        b'{"model": "a", "x": "\\q"}',
        b'{"x":' * 100_000,
        b'{"x":"\\ud83d","y":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_invalid_json_is_refused(body: bytes) -> None:
    assert refused(body) == (400, "invalid_json")


@pytest.mark.parametrize("model", ["1", "true", "[]", '{"id": ""}', '""', '"\\ud83d"', '"' + "x" * 257 + '"'])
def test_model_that_is_no_name_is_refused(model: str) -> None:
    assert refused(f'{{"model": {model}}}') == (400, "invalid_model")


@pytest.mark.parametrize(
    "number", ["1e400", "-1e999", "9" * 4300, "-" + "9" * 90_000, "1" * 5000 + ".5e-7", "0.1E+400"]
)
def test_numbers_of_any_size_pass(number: str) -> None:
    for rest in ("}", ', "x": "\\ud83d 1e400 \\" 1e400"}', ', "n": 2}'):
        body = '{"x": [{"y": ' + number + '}], "model": "a", "seed": ' + number + rest
        assert inspected(body).model == "a"
        assert inspected(body).choices == (2 if "n" in rest else 1)
        assert renamed(body) == body.replace('"a"', '"new"').encode()


@pytest.mark.parametrize("number", ["01e400", "0" + "1" * 5000, "1e400.5", "--1e400", "1e400e1", "1" * 90_000 + "."])
def test_invalid_numbers_of_any_size_are_refused(number: str) -> None:
    assert refused('{"model": "a", "seed": ' + number + "}") == (400, "invalid_json")


@pytest.mark.parametrize("name", ["id", "name"])
def test_model_that_is_an_object_has_the_name_in_it(name: str) -> None:
    body = '{"x": {"model": "b"}, "model": {"speed": "fast", "NAME" : "a"}, "y": "\\ud83d"}'.replace("NAME", name)
    assert inspected(body).model == "a"
    assert renamed(body) == body.replace('"a"', '"new"').encode()


@pytest.mark.parametrize("model", ["{}", '{"speed": "fast"}', '{"id": 7}', '{"id": {"id": "a"}}'])
def test_model_that_is_an_object_without_a_name_is_none(model: str) -> None:
    assert inspected(f'{{"model": {model}}}') == BodyFields()


def test_model_that_is_an_object_of_unknown_place_is_not_renamed() -> None:
    for body in ('{"model": {"id": "a"}, "x": {"model": {"id": "a"}}}', '{"model": {"id": "a", "x": {"id": "b"}}}'):
        with pytest.raises(BadRequest):
            renamed(body)


def test_2_to_the_64_passes() -> None:
    assert renamed('{"model": "a", "seed": 18446744073709551616}') == b'{"model": "new", "seed": 18446744073709551616}'


@pytest.mark.parametrize("model", ['"\\ud83d"', '"a\\uDE00b"', '"\\ud83d\\u0041"'])
def test_model_with_half_of_a_surrogate_pair_is_refused(model: str) -> None:
    assert refused(f'{{"model": {model}, "x": "\\udE00"}}') == (400, "invalid_model")


@pytest.mark.parametrize("model", ['"\\ud83d\\ude00"', '"a\\\\ud83d"', '"\\uD83D\\uDE00 \\ue83d"'])
def test_model_is_not_changed_by_halves_of_surrogate_pairs_elsewhere(model: str) -> None:
    assert inspected(f'{{"model": {model}, "x": "\\udE00"}}').model == json.loads(model)


def test_content_types_that_are_remembered_are_few() -> None:
    for number in range(2000):
        assert inspected('{"model": "a"}', f"application/json; x={number}").model == "a"
    assert 0 < len(model_field._kind_of) <= 1024


def test_collector_is_left_as_it_was() -> None:
    large = '{"model": "a", "x": [' + "[]," * 20_000 + "1]}"
    assert inspected(large).model == "a"
    assert gc.isenabled()
    gc.disable()
    try:
        assert refused(large + "x") == (400, "invalid_json")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_error_states_its_place_in_the_body() -> None:
    with pytest.raises(BadRequest, match=r"invalid character \(byte 25\)"):
        inspected('{"model": "a", "x": [tru]}')


def test_model_that_is_no_utf_8_is_refused() -> None:
    assert refused(b'{"model": "\xff"}') == (400, "invalid_model")


def test_model_of_a_megabyte_is_refused() -> None:
    assert refused('{"model": "' + "x" * (1 << 20) + '"}') == (400, "invalid_model")
    assert inspected('{"model": "' + "x" * MAX_MODEL_CHARS + '"}').model == "x" * MAX_MODEL_CHARS


# renaming


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ('{"model": "a"}', '{"model": "new"}'),
        ('{ "model"\t:\n"a\\"b" ,"x":1.0}', '{ "model"\t:\n"new" ,"x":1.0}'),
        ('{"model": "a", "model": "b"}', '{"model": "a", "model": "new"}'),
        ('{"x": {"model": "b"}, "model": "a", "y": [{"model": 1}]}',
         '{"x": {"model": "b"}, "model": "new", "y": [{"model": 1}]}'),
        ('{"x\\"model": "b", "model": "a"}', '{"x\\"model": "b", "model": "new"}'),
        ('{"seed": 18446744073709551616, "model": "0"}', '{"seed": 18446744073709551616, "model": "new"}'),
        ('{"text": "cut \\ud83d", "model": "a"}', '{"text": "cut \\ud83d", "model": "new"}'),
    ],
)  # fmt: skip
def test_model_is_renamed_and_nothing_else(body: str, after: str) -> None:
    assert renamed(body).decode() == after


@pytest.mark.parametrize("body", ['{"mod\\u0065l": "a"}', '{"mod\\u0065l": "0", "x": {"model": "a"}}'])
def test_model_under_an_escaped_key_is_not_renamed_but_refused(body: str) -> None:
    with pytest.raises(BadRequest, match="without escapes"):
        renamed(body)


def test_new_name_is_written_as_json() -> None:
    assert json.loads(rename(b'{"model": "a"}', JSON, "", 'q"\\\n😀')) == {"model": 'q"\\\n😀'}


# forms


def form(*parts: tuple[str, str], end: str = "--b0--\r\n") -> bytes:
    return "".join(f"--b0\r\n{head}\r\n\r\n{value}\r\n" for head, value in parts).encode() + end.encode()


def field(name: str) -> str:
    return f'Content-Disposition: form-data; name="{name}"'


FILE = 'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav'


@pytest.mark.parametrize(
    "head",
    [
        field("model"),
        "content-disposition: FORM-DATA; name=model",
        field("model") + "; x=y",
        "Content-Disposition: form-data; x=y; name=model",
        "Content-Type: text/plain\r\n" + field("model"),
    ],
)
def test_model_of_a_form_is_found_and_renamed(head: str) -> None:
    body = form((FILE, "RIFF"), (head, "whisper"), (field("stream"), "true"))
    assert inspected(body, FORM) == BodyFields("whisper", True)
    assert renamed(body, FORM) == form((FILE, "RIFF"), (head, "new"), (field("stream"), "true"))


@pytest.mark.parametrize(
    "head",
    [
        field("model-x"),
        field("model[]"),
        field("xmodel"),
        "Content-Disposition: form-data; filename=model",
        'Content-Disposition: form-data; name="file"; filename="a; name=model"',
        'Content-Disposition: form-data; name="file"; name="model"',
        'Content-Disposition: form-data; filename="\\"; name=model"; name="file"',
        "X-Content-Disposition: form-data; name=model",
    ],
)
def test_part_of_another_name_is_not_the_model(head: str) -> None:
    assert inspected(form((head, "x")), FORM) == BodyFields()


def test_content_of_a_file_is_not_read() -> None:
    content = f'{field("model")}\r\n\r\nevil\r\n-b0\r\n--b\r\n --b0\r\nx--b0\r\n{{"model": "evil"}}'
    body = form((FILE, content), (field("model"), "whisper"))
    assert inspected(body, FORM) == BodyFields("whisper")
    assert renamed(body, FORM) == form((FILE, content), (field("model"), "new"))


def test_every_double_of_a_form_is_renamed() -> None:
    body = form((field("model"), "a"), (FILE, "x"), (field("model"), "b"))
    assert inspected(body, FORM).model == "b"
    assert renamed(body, FORM) == form((field("model"), "new"), (FILE, "x"), (field("model"), "new"))


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; b=c"])
def test_form_without_a_boundary_is_refused(kind: str) -> None:
    assert refused(form((field("model"), "a")), kind) == (400, "invalid_body")


def test_line_that_only_begins_like_a_delimiter_is_content() -> None:
    content = f"RIFF\r\n--b0x\r\n{field('model')}\r\n\r\nevil\r\n--b0 x\r\n{field('model')}\r\n\r\nevil"
    body = form((FILE, content), (field("model"), "whisper"))
    assert inspected(body, FORM) == BodyFields("whisper")
    assert renamed(body, FORM) == form((FILE, content), (field("model"), "new"))


def test_data_after_the_last_delimiter_is_not_read() -> None:
    body = form((field("model"), "whisper")) + form((field("model"), "evil"))
    assert inspected(body, FORM) == BodyFields("whisper")


def test_padding_may_follow_a_delimiter() -> None:
    body = form((FILE, "RIFF"), (field("model"), "whisper")).replace(b"--b0\r\n", b"--b0 \t\r\n")
    assert inspected(body, FORM) == BodyFields("whisper")


@pytest.mark.parametrize(
    "body",
    [
        form(*[(field("x"), "y")] * 1025),
        form((field("x") + "; y=" + "z" * 4096, "v"), (field("model"), "whisper")),
    ],
)
def test_form_that_readers_may_differ_on_is_refused(body: bytes) -> None:
    assert refused(body, FORM) == (400, "invalid_body")


def test_form_may_have_a_thousand_parts() -> None:
    assert inspected(form(*[(field("x"), "y")] * 1023, (field("model"), "whisper")), FORM) == BodyFields("whisper")


def test_part_without_head_or_without_content_is_passed_over() -> None:
    empty = b"--b0\r\n" + field("x").encode() + b"\r\n\r\n"
    body = b"--b0\r\n" + empty + b"--b0\r\n\r\n\r\n" + form((field("model"), "whisper"))
    assert inspected(body, FORM) == BodyFields("whisper")


def test_boundary_may_have_70_characters() -> None:
    for length, is_read in ((70, True), (71, False)):
        line = "b" * length
        body = form((field("model"), "whisper")).replace(b"b0", line.encode())
        if is_read:
            assert inspected(body, f"multipart/form-data; boundary={line}").model == "whisper"
        else:
            assert refused(body, f"multipart/form-data; boundary={line}") == (400, "invalid_body")


def test_form_may_name_no_model_or_be_cut() -> None:
    assert inspected(form((FILE, "x")), FORM) == BodyFields()
    assert inspected(form((field("model"), "a"))[:-20], FORM) == BodyFields()
    assert inspected(b"anything", FORM) == BodyFields()


@pytest.mark.parametrize("value", ["", "x" * 257])
def test_model_of_a_form_that_is_no_name_is_refused(value: str) -> None:
    assert refused(form((field("model"), value)), FORM) == (400, "invalid_model")


def test_model_of_a_form_that_is_no_text_is_refused() -> None:
    body = form((field("model"), "?")).replace(b"?", b"\xff")
    assert refused(body, FORM) == (400, "invalid_model")


# compressed

BODY = b'{"model": "a", "text": "' + b"x" * 1000 + b'"}'
PACKED = {"gzip": gzip.compress(BODY), "x-gzip": gzip.compress(BODY), "Deflate": zlib.compress(BODY)}


@pytest.mark.parametrize("encoding", PACKED)
def test_compressed_body_is_found_and_renamed(encoding: str) -> None:
    assert inspected(PACKED[encoding], encoding=encoding).model == "a"
    packed = rename(PACKED[encoding], JSON, encoding, "new")
    assert inflate(packed, encoding, BOUND) == BODY.replace(b'"a"', b'"new"')
    assert packed != BODY


def test_encoding_that_cannot_be_read_is_refused() -> None:
    assert refused(b"\x8b", encoding="br") == (415, "unsupported_content_encoding")
    assert refused(PACKED["gzip"], encoding="gzip, gzip") == (415, "unsupported_content_encoding")


@pytest.mark.parametrize("encoding", PACKED)
def test_body_that_inflates_above_the_limit_is_refused(encoding: str) -> None:
    with pytest.raises(BadRequest) as caught:
        inspect(PACKED[encoding], JSON, encoding, len(BODY) - 1)
    assert caught.value.status == 413
    assert inspect(PACKED[encoding], JSON, encoding, len(BODY)).model == "a"


@pytest.mark.parametrize("encoding", PACKED)
def test_body_that_is_cut_or_not_in_its_encoding_is_refused(encoding: str) -> None:
    assert refused(PACKED[encoding][:-1], encoding=encoding) == (400, "invalid_body")
    assert refused(BODY, encoding=encoding) == (400, "invalid_body")


def test_compressed_body_with_data_after_its_end_is_refused() -> None:
    for encoding, packed in PACKED.items():
        assert refused(packed + packed, encoding=encoding) == (400, "invalid_body")


# queries


@pytest.mark.parametrize(
    ("query", "model"),
    [
        ("model=a", "a"), ("x=1&model=gpt-4o%2Frealtime+x", "gpt-4o/realtime x"), ("", None), ("xmodel=a", None),
        ("model", None), ("model=a&model=b", "a"),
    ],
)  # fmt: skip
def test_model_in_a_query_is_found(query: str, model: str | None) -> None:
    assert model_in_query(query) == model


@pytest.mark.parametrize("query", ["model=", "model=" + "x" * 257])
def test_model_in_a_query_that_is_no_name_is_refused(query: str) -> None:
    with pytest.raises(BadRequest):
        model_in_query(query)


def test_model_in_a_query_is_renamed_and_nothing_else() -> None:
    assert rename_in_query("a=%20+&model=x&b&xmodel=y", "n/e w&=") == "a=%20+&model=n%2Fe%20w%26%3D&b&xmodel=y"
    assert model_in_query(rename_in_query("model=x", "n/e w&=")) == "n/e w&="
