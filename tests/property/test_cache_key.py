"""Equal requests have equal keys, and different requests have different keys."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from llm_guard.resilience.caching.key import MOST_CANONICAL_BYTES, CacheKeyFields, canonical, key_of, relevant_headers

# Few letters, so that text moved from one field to its neighbour is likely to collide.
texts = st.text("ab", max_size=3)
pairs = st.lists(st.tuples(texts, texts), max_size=2).map(tuple)
questions = st.builds(
    CacheKeyFields,
    dialect=texts,
    method=texts,
    path=texts,
    query=texts,
    upstream=texts,
    route=texts,
    targets=st.lists(texts, max_size=2).map(tuple),
    model=texts,
    is_stream=st.booleans(),
    media_type=texts,
    headers=pairs,
    body=st.binary(max_size=3) | texts.map(str.encode),
    caller=st.lists(texts, max_size=2).map(tuple),
)


@given(questions, questions)
def test_two_questions_have_one_key_only_if_they_are_one(one: CacheKeyFields, other: CacheKeyFields) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


@given(questions, st.data())
def test_no_byte_of_a_field_can_pass_for_a_part_of_its_neighbour(one: CacheKeyFields, data: st.DataObject) -> None:
    names = [field.name for field in fields(CacheKeyFields) if field.type == "str"]
    at = data.draw(st.integers(0, len(names) - 2))
    joined = getattr(one, names[at]) + getattr(one, names[at + 1])
    cut = data.draw(st.integers(0, len(joined)))
    values = {field.name: getattr(one, field.name) for field in fields(CacheKeyFields)}
    other = CacheKeyFields(**{**values, names[at]: joined[:cut], names[at + 1]: joined[cut:]})
    assert (key_of(one) == key_of(other)) == (one == other)


# bodies

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé", max_size=2), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
bodies = st.dictionaries(st.text("abé", max_size=2), values, max_size=4)


def shuffled(value: Any, data: st.DataObject) -> Any:
    """Returns an equal value with its keys in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], data) for key in data.draw(st.permutations(list(value)))}
    return [shuffled(each, data) for each in value] if isinstance(value, list) else value


@given(bodies, st.data())
def test_body_is_the_same_however_it_is_written(body: dict[str, Any], data: st.DataObject) -> None:
    written = json.dumps(
        shuffled(body, data), ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 0, 2]))
    )
    assert canonical(written.encode()) == canonical(json.dumps(body).encode())
    assert canonical(b" \r\n\t" + written.encode() + b"\n") == canonical(json.dumps(body).encode())


def marked(value: Any) -> Any:
    """Tags numbers with their types: in Python 1, 1.0 and True are equal, and so are 0.0 and -0.0."""
    if isinstance(value, dict):
        return {key: marked(each) for key, each in value.items()}
    return [marked(each) for each in value] if isinstance(value, list) else (type(value).__name__, repr(value))


@given(bodies, bodies)
@example({"a": 1}, {"a": 1.0})
@example({"a": 1}, {"a": True})
@example({"a": "1"}, {"a": 1})
@example({"a": None}, {})
@example({"a": [1, 2]}, {"a": [2, 1]})
def test_bodies_that_differ_are_written_differently(one: dict[str, Any], other: dict[str, Any]) -> None:
    written = [canonical(json.dumps(each).encode()) for each in (one, other)]
    assert None not in written
    assert (written[0] == written[1]) == (marked(one) == marked(other))


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_anything_else_has_no_form_and_breaks_nothing(body: bytes) -> None:
    form = canonical(body)
    assert form is None or isinstance(json.loads(body), dict)


@given(st.binary(max_size=30))
def test_long_body_stands_for_itself(end: bytes) -> None:
    body = b"x" * MOST_CANONICAL_BYTES + end
    assert canonical(body + b"!") == b"whole:" + body + b"!"


# headers


@given(st.dictionaries(st.text("abcd-", min_size=1, max_size=4), texts, max_size=4), st.data())
def test_order_of_headers_does_not_count(headers: dict[str, str], data: st.DataObject) -> None:
    order = data.draw(st.permutations(list(headers.items())))
    assert relevant_headers(order) == relevant_headers(headers.items())
    assert dict(relevant_headers(order)) == headers


@given(st.permutations(["1", "2", "3"]))
def test_order_of_one_header_that_is_there_several_times_does(order: list[str]) -> None:
    assert [value for _, value in relevant_headers([("x", each) for each in order])] == order
