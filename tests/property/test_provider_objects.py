"""Every id of a provider's object is found wherever it may be, and content that a client may choose freely is not
taken for an id."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.resilience.client_keys.object_owners import ObjectKey, ObjectOwners, Ownership
from llm_guard.resilience.client_keys.provider_objects import (
    OVERLAP_BYTES,
    ObjectPath,
    Pairs,
    filtered,
    known_by,
    known_by_event,
    may_refer,
    place_of,
    references,
    references_in_query,
)

FIELDS = (
    "file_id", "input_file_id", "output_file_id", "file_ids", "previous_response_id", "vector_store_ids", "thread_id",
    "assistant_id", "conversation", "conversation_id", "container", "container_id", "training_file", "batch_id",
    "validation_file", "upload_id", "video_id", "skill_id", "File_Id",
)  # fmt: skip
OPAQUE = ("metadata", "attributes", "input_schema", "parameters", "schema", "json_schema")
names = st.sampled_from(["a", "content", "source", "input", "items", "tools", "type"])
scalars = st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["", "x", "message", "tool_use"])
bodies = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)


def read(body: Any) -> Any:
    return json.loads(json.dumps(body), object_pairs_hook=lambda pairs: Pairs(tuple(pairs)))


def planted(body: Any, inner: Any, draw: st.DataObject) -> Any:
    """Inserts `inner` somewhere into `body`."""
    if isinstance(body, dict) and body and draw.draw(st.booleans()):
        name = draw.draw(st.sampled_from(sorted(body)))
        return {**body, name: planted(body[name], inner, draw)}
    if isinstance(body, list) and body:
        return [planted(body[0], inner, draw), *body[1:]]
    return {"content": [body, inner]} if not isinstance(body, dict) else {**body, "content": inner}


@given(bodies, st.sampled_from(FIELDS), st.sampled_from(["the-id", ["the-id"], [["the-id"]]]), st.data())
def test_id_is_found_in_any_place(body: Any, field: str, value: Any, data: st.DataObject) -> None:
    whole = {"model": "gpt", "messages": planted(body, {field: value}, data)}
    is_in_tool = '"type": "tool_use"' in json.dumps(whole)  # arguments that a model has written for a client's tool
    assert "the-id" in list(references(read(whole))) or is_in_tool
    assert may_refer("json", "/v1/chat/completions", json.dumps(whole).encode())


@given(bodies, st.sampled_from(FIELDS), st.sampled_from(OPAQUE), st.data())
def test_clients_own_data_is_no_reference(body: Any, field: str, opaque: str, data: st.DataObject) -> None:
    whole = planted(body, {opaque: {"deep": [{field: "x-1"}]}}, data)
    assert "x-1" not in list(references(read(whole)))


@given(st.sampled_from(FIELDS), st.integers(0, 40), st.integers(1, 60))
def test_reference_that_is_cut_by_two_blocks_is_seen(field: str, before: int, size: int) -> None:
    body = b"x" * before + json.dumps({field: "the-id"}).encode()
    blocks = [body[at : at + size] for at in range(0, len(body), size)]
    rest, is_seen = b"", False
    for block in blocks:
        is_seen |= may_refer("json", "/v1/files", rest + block)
        rest = (rest + block)[-OVERLAP_BYTES:]
    assert is_seen


@pytest.mark.parametrize(
    ("item", "is_reference"),
    [
        ({"type": "item_reference", "id": "i"}, True), ({"id": "i"}, True), ({"type": None, "id": "i"}, True),
        ({"type": "reasoning", "id": "i", "summary": []}, True),
        ({"type": "reasoning", "id": "i", "encrypted_content": ""}, True),
        ({"type": "reasoning", "id": "i", "encrypted_content": "x"}, False),
        ({"type": "image_generation_call", "id": "i"}, True),
        ({"type": "image_generation_call", "id": "i", "result": "x"}, False),
        ({"type": "message", "id": "i", "role": "user", "content": "x"}, False),
        ({"type": "function_call", "id": "i", "call_id": "c", "arguments": "{}"}, False),
    ],
)  # fmt: skip
def test_item_refers_unless_it_brings_its_content(item: dict[str, Any], is_reference: bool) -> None:
    assert list(references(read({"input": [item]}))) == (["i"] if is_reference else [])


def test_conversation_and_container_may_be_objects_of_their_own() -> None:
    body = {"conversation": {"id": "c"}, "tools": [{"container": {"type": "auto", "file_ids": ["f"]}}]}
    assert sorted(references(read(body))) == ["c", "f"]
    assert list(references(read({"container": None, "file_id": "", "conversation": False}))) == []
    assert list(references(read({"file_id": 5}))) == ["5"]


def test_skill_that_a_provider_offers_to_all_is_no_reference() -> None:
    body = read({"skills": [{"type": "ours", "skill_id": "a", "file_id": "f"}, {"type": "custom", "skill_id": "b"}]})
    assert sorted(references(body, frozenset({"ours"}))) == ["b", "f"]
    assert sorted(references(body)) == ["a", "b", "f"]


@pytest.mark.parametrize(
    ("method", "path", "place"),
    [
        ("POST", "/v1/files", ObjectPath("/v1/files", "create")),
        ("GET", "/v1/files", ObjectPath("/v1/files", "list")),
        ("GET", "/v1/files/f", ObjectPath("/v1/files", "use", "f")),
        ("GET", "/v1/files/f/content", ObjectPath("/v1/files", "use", "f", is_told=False)),
        ("POST", "/v1/batches/b/cancel", ObjectPath("/v1/batches", "use", "b")),
        ("POST", "/v1/videos/v/remix", ObjectPath("/v1/videos", "copy", "v")),
        ("GET", "/v1/messages/batches/m", ObjectPath("/v1/messages/batches", "use", "m")),
        ("POST", "/v1/threads/runs", ObjectPath("/v1/threads", "create")),
        ("GET", "/v1/fine_tuning/jobs/j/events", ObjectPath("/v1/fine_tuning/jobs", "use", "j", is_told=False)),
        ("GET", "/v1/responses", None), ("HEAD", "/v1/files", None), ("PUT", "/v1/files", None),
        ("GET", "/v1/files/", None), ("GET", "/v1/files/f/", None), ("GET", "/v1/files/..", None),
        ("GET", "/v1/files/%66", None), ("GET", "/v1/files/a;b", None), ("GET", "/v1/filesystem", None),
        ("GET", "/v1/organization/users", None), ("GET", "/v1/threads/runs", None), ("OPTIONS", "/v1/files/f", None),
    ],
)  # fmt: skip
def test_path_is_about_one_object_or_of_no_known_kind(method: str, path: str, place: ObjectPath | None) -> None:
    assert place_of(method, path) == place


@pytest.mark.parametrize(
    "query", ["file_id=x", "a=1&File_Id=x", "file%5Fid=x", "vector_store_ids[]=x", "a=1;file_id=x"]
)
def test_id_in_a_query_is_found(query: str) -> None:
    assert list(references_in_query(query, is_list=False)) == ["x"]


def test_cursor_is_an_id_of_a_list_of_objects_alone() -> None:
    for name in ("after", "before", "after_id", "before_id"):
        assert list(references_in_query(f"{name}=x&{name}=y", is_list=True)) == ["x", "y"]
        assert list(references_in_query(f"{name}=x", is_list=False)) == []
    assert list(references_in_query("after=&limit=5", is_list=True)) == []


SPOOF = {"id": "victim", "output_file_id": "victim", "thread_id": "victim"}


def test_response_registers_created_objects() -> None:
    made = {"id": "b", "output_file_id": "f", "error_file_id": None, "metadata": SPOOF, "input_file_id": "victim"}
    assert list(known_by(ObjectPath("/v1/batches", "create"), made)) == [("b", False), ("f", False)]
    assert list(known_by(ObjectPath("/v1/batches", "use", "b"), made)) == [("f", False)]
    assert list(known_by(ObjectPath("/v1/files", "use", "f", is_told=False), SPOOF)) == []
    uploaded = {"id": "u", "file": {"id": "f", "metadata": SPOOF}}
    assert list(known_by(ObjectPath("/v1/uploads", "use", "u"), uploaded)) == [("f", False)]
    assert list(known_by(ObjectPath("/v1/threads", "create"), {"id": "run", "thread_id": "t"})) == [("t", False)]
    assert list(known_by(ObjectPath("/v1/threads", "create"), {"id": "t"})) == [("t", False)]


def test_response_registers_its_items_and_containers() -> None:
    item = {"type": "code_interpreter_call", "id": "ci", "container_id": "cntr", "content": [SPOOF]}
    response = {"id": "r", "metadata": SPOOF, "output": [item, None, {"id": 5}], "tools": [SPOOF]}
    known = [("r", True), ("ci", True), ("cntr", False)]
    assert list(known_by(ObjectPath("/v1/responses", "create"), response)) == known
    assert list(known_by_event({"type": "response.created", "response": response})) == known
    assert list(known_by_event({"item": item})) == known[1:]
    assert list(known_by_event({"delta": SPOOF, "response": None})) == []


def test_filtered_list_has_ends_of_its_own_and_no_second_copy() -> None:
    page = {"object": "list", "data": [1], "first_id": "a", "last_id": "b", "has_more": True, "models": ["b"]}
    assert filtered(page, [{"id": "c"}]) == {
        "object": "list", "data": [{"id": "c"}], "first_id": "c", "last_id": "c", "has_more": True,
    }  # fmt: skip
    assert filtered({"data": [1], "last_id": "b"}, []) == {"data": [], "last_id": None}


# owners

keys = st.builds(ObjectKey, st.sampled_from("xy"), st.sampled_from("1234"))
entries = st.builds(Ownership, keys, st.sampled_from("ab"), st.booleans())


@given(st.lists(entries, max_size=20))
def test_object_never_changes_hands(noted: list[Ownership]) -> None:
    owners = ObjectOwners()
    first: dict[ObjectKey, str] = {}
    for entry in noted:
        assert owners.note(entry) == (entry.key not in first)
        first.setdefault(entry.key, entry.owner)
        for key, owner in first.items():
            assert owners.is_own(key, owner)
            assert not owners.has_other(key, owner)
            other = "b" if owner == "a" else "a"
            assert not owners.is_own(key, other)
            assert owners.has_other(key, other)


@given(st.lists(entries, max_size=40))
def test_no_key_displaces_objects_of_another(noted: list[Ownership]) -> None:
    owners = ObjectOwners(most_objects=2, most_answers=2)
    kept = Ownership(ObjectKey("x", "kept"), "a", is_answer=False)
    owners.note(kept)
    for entry in noted:
        owners.note(entry._replace(owner="b"))
        assert len(owners) <= 5
    assert owners.is_own(kept.key, "a")


def test_object_used_the_longest_ago_is_forgotten_first() -> None:
    owners = ObjectOwners(most_objects=2)
    one, two, three = (Ownership(ObjectKey("x", each), "a", is_answer=False) for each in "123")
    owners.note(one)
    owners.note(two)
    assert owners.is_own(one.key, "a")
    owners.note(three)
    assert owners.is_own(one.key, "a")
    assert not owners.is_own(two.key, "a")
    assert not owners.has_other(two.key, "b")
