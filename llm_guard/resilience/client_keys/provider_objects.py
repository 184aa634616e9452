"""Objects that a provider stores, in requests and responses: files, batches, responses, vector stores and so on.

Decides which object a path refers to, which ids a request refers to, and which ids a response reveals. Owners are in
`resilience.client_keys.object_owners`; bodies are read by `proxy.client_keys.object_isolation`.

Unknown paths and fields do not bypass this: a path of another kind is refused, and an id in an unknown field refers to
nothing that any provider documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

Action = Literal["create", "list", "use", "copy"]
"""copy: makes another object of the same kind from one."""


class Pairs(NamedTuple):
    """A JSON object with all its fields, repeated ones included: parsers differ on which of them counts. Names are
    folded (`fold`)."""

    pairs: tuple[tuple[str, Any], ...]


def fold(name: str) -> str:
    """Folds a field name as servers may: Go and .NET match names in any case, and Go a long s with an s."""
    return name.casefold()


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """The object or collection that a path refers to."""

    collection: str
    action: Action
    object_id: str = ""
    """Id of the object that is used or copied."""
    is_told: bool = True
    """True if the response is the object itself, and not a file or a list that its owner may have written."""

    @property
    def is_answer(self) -> bool:
        """True if it is a response object: these are many, each used for a short time, with a bound of their own."""
        return self.collection == RESPONSES


RESPONSES = "/v1/responses"
_THREADS = "/v1/threads"
_LISTED = frozenset({
    "/v1/files", "/v1/uploads", "/v1/batches", "/v1/vector_stores", "/v1/fine_tuning/jobs", "/v1/videos",
    "/v1/containers", "/v1/assistants", "/v1/messages/batches", "/v1/skills",
})  # fmt: skip
_UNLISTED = frozenset({RESPONSES, "/v1/conversations", _THREADS})
_COLLECTIONS = sorted(_LISTED | _UNLISTED, key=len, reverse=True)
_TELLING: tuple[list[str], ...] = ([], ["complete"], ["cancel"])
"""Path segments that may follow an id if the response is the object itself."""
_COPIES = {"/v1/videos": "remix"}
_ID = re.compile(r"(?!\.+$)[A-Za-z0-9._:~-]{1,256}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})

_KINDS = "file|response|vector_store|conversation|container|assistant|thread|batch|upload|video|skill|fine_tuning_job"
_REFERENCE = re.compile(
    rf"(?:[a-z_]*_)?(?:{_KINDS})_ids?|training_file|validation_file|conversation|container", re.IGNORECASE
)
_CURSORS = frozenset({"after", "before", "after_id", "before_id"})
_IN_QUERIES = frozenset({"call_id"})
"""A realtime call that another connection joins. In bodies a client's own tool calls have that name."""
_OPAQUE = frozenset({"metadata", "attributes", "input_schema", "parameters", "schema", "json_schema"})
"""Fields of callers' own data and schemas: no provider looks for its own ids there."""
_OPAQUE_OF_TOOL_USE = _OPAQUE | {"input"}
_OPAQUE_OF_SHARED = _OPAQUE | {"skill_id"}
_ITEMS = frozenset({"input", "items", "additional_items"})
_CONTENT_OF = {"reasoning": "encrypted_content", "image_generation_call": "result"}
"""Items of an earlier response that refer to what the provider has stored, unless they bring it along."""
_FIELDS_OF_LISTS = frozenset({"object", "data", "has_more", "first_id", "last_id"})
"""Fields of a list object. Some servers send the same entries again under another name."""
_LEARNED = ("output_file_id", "error_file_id", "result_files", "thread_id", "container_id", "conversation")
"""Fields in which an object names others that the provider created with it."""

_DISGUISES = (b"\\u00", b"\\u017f", "\u017f".encode())
"""A letter of a name may be written as an escape, and an s as a long one."""
_NAMES = (b"_id", b"_file", b"conversation", b"container", *_DISGUISES)
"""Every reference contains one of these."""
_FIELDS = (b'_id"', b'_ids"', b'_file"', b'conversation"', b'container"', *_DISGUISES)
_BY_ITEM = (*_FIELDS, b'"id"')
_MOST_NAMES = 10_000
_NAME_BYTES = 100


def may_refer(kind: Literal["json", "form", "other"], path: str, block: bytes) -> bool:
    """Returns whether a part of a body may refer to an object; parts must overlap by `OVERLAP_BYTES`. Plain searches,
    because a regular expression takes 37 ms a MiB."""
    block = block.lower()
    if kind == "form":
        return _may_refer_in_form(block)
    has_items = path.startswith((RESPONSES, "/v1/conversations"))
    needles: tuple[bytes, ...] = _BY_ITEM if has_items else _FIELDS
    return any(needle in block for needle in (_NAMES if kind == "other" else needles))


OVERLAP_BYTES = 256
"""Longer than anything that `may_refer` looks for."""


def _may_refer_in_form(block: bytes) -> bool:
    """Returns whether a field has such a name; so many names that the search would take long count as one."""
    if block.count(b"name=") > _MOST_NAMES:
        return True
    at = block.find(b"name=")
    while at >= 0:
        name = block[at : at + _NAME_BYTES].partition(b"\r\n")[0]
        if any(needle in name for needle in _NAMES):
            return True
        at = block.find(b"name=", at + 1)
    return False


def place_of(method: str, path: str) -> ObjectPath | None:
    """Returns the object or collection that a path refers to; None: no kind of object that is known here."""
    collection = next((name for name in _COLLECTIONS if path == name or path.startswith(f"{name}/")), None)
    if collection is None or method not in _METHODS:
        return None
    if path == collection:
        if method == "POST":
            return ObjectPath(collection, "create")
        return ObjectPath(collection, "list") if method == "GET" and collection in _LISTED else None
    object_id, *rest = path[len(collection) + 1 :].split("/")
    if collection == _THREADS and object_id == "runs":
        return ObjectPath(collection, "create") if method == "POST" and not rest else None
    if not all(_ID.fullmatch(part) for part in (object_id, *rest)):
        return None
    if method == "POST" and rest == [_COPIES.get(collection)]:
        return ObjectPath(collection, "copy", object_id)
    return ObjectPath(collection, "use", object_id, is_told=rest in _TELLING)


def references_in_query(query: str, *, is_list: bool) -> Iterator[str]:
    """Yields the ids that a query refers to; `is_list`: the query is that of a list of objects, where cursors
    are ids."""
    for name, value in parse_qsl(query.replace(";", "&"), keep_blank_values=True):
        plain = name.lower().removesuffix("[]")
        if value and ((is_list and plain in _CURSORS) or plain in _IN_QUERIES or _REFERENCE.fullmatch(plain)):
            yield value


def references(body: Any, shared_types: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yields the ids that a JSON body refers to; its objects are `Pairs`. `shared_types`: values of `type` in objects
    that a provider offers to all."""
    waiting: list[tuple[str, Any]] = [("", body)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Pairs):
            yield from _own_reference(name, value)
            opaque = _opaque_in(value, shared_types) if name else _OPAQUE
            waiting += [pair for pair in value.pairs if pair[0] not in opaque]
        elif isinstance(value, list):
            waiting += [(name, item) for item in value]
        elif _REFERENCE.fullmatch(name) and isinstance(value, str | int) and value != "" and value is not False:
            yield str(value)


def _own_reference(name: str, value: Pairs) -> Iterator[str]:
    """Yields the ids of objects that stand for another by their `id`: a conversation, a container, an item of an
    earlier response."""
    ids = [member for key, member in value.pairs if key == "id" and isinstance(member, str)]
    if not ids:
        return
    fields = {key for key, member in value.pairs if member}
    kinds = {member for key, member in value.pairs if key == "type"} or {None}
    is_item = name in _ITEMS
    if name in ("conversation", "container") or (is_item and any(_stands_for(kind, fields) for kind in kinds)):
        yield from ids


def _stands_for(kind: object, fields: set[str]) -> bool:
    if kind is None:
        return "role" not in fields  # an item without a type is a message, where it has a role
    if kind == "item_reference":
        return True
    content = _CONTENT_OF.get(kind) if isinstance(kind, str) else None
    return content is not None and content not in fields


def _opaque_in(value: Pairs, shared_types: frozenset[str]) -> frozenset[str]:
    """Returns the names of fields that refer to no object. They include the `input` that a model has written for a
    client's own tool, and the `skill_id` of a skill that the provider offers to all. Not meant for the whole body,
    whose `type` no provider reads."""
    kinds = [member for key, member in value.pairs if key == "type"]
    if not kinds or not all(isinstance(kind, str) for kind in kinds):
        return _OPAQUE
    if all(kind.endswith("tool_use") for kind in kinds):
        return _OPAQUE_OF_TOOL_USE
    return _OPAQUE_OF_SHARED if shared_types.issuperset(kinds) else _OPAQUE


def known_by(place: ObjectPath, answer: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yields the ids that a successful response reveals as the caller's, each with whether it is of a response.

    Only fields that a provider fills itself: those that it repeats, such as `metadata`, are chosen by the caller.
    """
    if not place.is_told:
        return
    object_id = answer.get("id")
    if place.action in ("create", "copy") and isinstance(object_id, str) and not _is_run(place, answer):
        yield object_id, place.is_answer
    for name in _LEARNED:
        if name == "conversation" and place.collection != RESPONSES:
            continue
        for text in _texts(answer.get(name)):
            yield text, False
    if place.collection == "/v1/uploads":
        for text in _texts(answer.get("file")):
            yield text, False
    if place.is_answer:
        output = answer.get("output")
        for item in output if isinstance(output, list) else ():
            yield from known_by_item(item)


def known_by_event(event: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Like `known_by`, for one event of a streamed response."""
    response = event.get("response")
    if isinstance(response, dict):
        yield from known_by(ObjectPath(RESPONSES, "create"), response)
    yield from known_by_item(event.get("item"))


def known_by_item(item: object) -> Iterator[tuple[str, bool]]:
    """Yields the ids of a response's own item, which a later request may refer to, and of the container that it ran
    in."""
    if isinstance(item, dict):
        for name in ("id", "container_id"):
            if isinstance(item.get(name), str):
                yield item[name], name == "id"


def filtered(answer: Mapping[str, Any], kept: Sequence[Any]) -> dict[str, Any]:
    """Returns a provider's list with only these entries, as if there were no others."""
    ids = [entry["id"] for entry in kept]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    known = {name: value for name, value in answer.items() if name in _FIELDS_OF_LISTS}
    return {**known, "data": list(kept), **{name: value for name, value in ends.items() if name in known}}


def _is_run(place: ObjectPath, answer: Mapping[str, Any]) -> bool:
    """Returns whether the response is a run, as from `/v1/threads/runs`; its thread is the object."""
    return place.collection == _THREADS and isinstance(answer.get("thread_id"), str)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and isinstance(value.get("id"), str):
        yield value["id"]
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))
