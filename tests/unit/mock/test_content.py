from __future__ import annotations

from llm_guard.mock.content import example_of, say, say_json, split


def test_prose_has_the_requested_number_of_tokens_and_characters_of_several_bytes() -> None:
    assert len(say(30)) == 30
    assert not "".join(say(12)).isascii()


def test_no_word_occurs_twice() -> None:
    words = say(100)
    assert len(set(words)) == 100
    assert (words[1], words[13], words[25]) == ("open ", "open2 ", "open3 ")


def test_other_text_shares_no_word_and_no_beginning_with_the_first() -> None:
    assert not set(say(100)) & set(say(100, is_another=True))
    assert say(1, is_another=True) == ["srekaerB "]


def test_pieces_make_up_the_text_again() -> None:
    assert "".join(split("abcdefghij", 3)) == "abcdefghij"
    assert len(split("abcdefghij", 3)) == 3
    assert split("", 3) == []


def test_an_example_fits_references_unions_enums_and_arrays() -> None:
    schema = {
        "type": "object",
        "properties": {
            "who": {"$ref": "#/$defs/Person"},
            "kind": {"enum": ["a", "b"]},
            "fixed": {"const": 3},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "many": {"type": "array", "items": {"type": ["integer", "null"]}},
            "rate": {"type": "number"},
            "is_on": {"type": "boolean"},
            "none": {"type": "null"},
        },
        "$defs": {"Person": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    assert example_of(schema) == {
        "who": {"name": "mock"}, "kind": "a", "fixed": 3, "maybe": "mock", "many": [7], "rate": 0.5,
        "is_on": True, "none": None,
    }  # fmt: skip


def test_another_example_fits_too_and_differs_where_it_may() -> None:
    schema = {
        "type": "object",
        "properties": {
            "who": {"$ref": "#/$defs/Person"},
            "kind": {"enum": ["a", "b"]},
            "fixed": {"const": 3},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "many": {"type": "array", "items": {"type": "integer"}},
            "is_on": {"type": "boolean"},
        },
        "$defs": {"Person": {"type": "object", "properties": {"rate": {"type": "number"}}}},
    }
    assert example_of(schema, is_another=True) == {
        "who": {"rate": 0.25}, "kind": "b", "fixed": 3, "maybe": "other", "many": [8], "is_on": False,
    }  # fmt: skip
    assert "".join(say_json(schema["properties"]["many"], 2, is_another=True)) == "[8]"  # type: ignore[index]


def test_json_content_is_the_example_in_pieces() -> None:
    assert "".join(say_json({"type": "object", "properties": {"n": {"type": "integer"}}}, 3)) == '{"n":7}'
