"""A provider that stores the objects of one account, in both dialects: its key gives access to all of them.

Produces responses as bytes and opens no connections.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any
from urllib.parse import parse_qs

from tests.fakes.provider import END, chunk, stream_head, whole

PREFIXES = {
    "/v1/files": "file", "/v1/uploads": "upload", "/v1/batches": "batch", "/v1/responses": "resp",
    "/v1/conversations": "conv", "/v1/vector_stores": "vs", "/v1/fine_tuning/jobs": "ftjob", "/v1/videos": "video",
    "/v1/containers": "cntr", "/v1/assistants": "asst", "/v1/threads": "thread", "/v1/messages/batches": "msgbatch",
    "/v1/skills": "skill",
}  # fmt: skip
MODELS = ("gpt", "gpt-5-pro", "mini-1", "dear")
PAGE = 3


class ObjectProvider:
    """Answers one request at a time."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        """Objects by id, oldest first."""
        self._numbers = count(1)

    def answer(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Returns the bytes of the response."""
        path, _, query = target.partition("?")
        if path == "/v1/models":
            return json_of({"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]})
        collection = next((prefix for prefix in sorted(PREFIXES, key=len, reverse=True) if path.startswith(prefix)), "")
        is_model_call = path in ("/v1/responses/input_tokens", "/v1/messages/count_tokens")
        if not collection or is_model_call:
            return json_of({"id": "chatcmpl-1", "input_tokens": 1, **_CHAT, "target": target})
        rest = path[len(collection) :].strip("/").split("/")
        if rest == ["runs"]:
            return json_of({"id": f"run_{next(self._numbers)}", "thread_id": self._new(collection, {})["id"]})
        if rest == [""]:
            if method == "POST":
                return self._created(collection, json_in(body))
            return json_of(self._page(collection, parse_qs(query), is_anthropic="anthropic-version" in headers))
        found = self.objects.get(rest[0])
        if found is None:
            return json_of({"error": {"message": f"no {rest[0]}", "type": "invalid_request_error"}}, 404)
        if rest[1:] == ["content"]:
            return json_of(found.get("content", {"output_file_id": "file-of-another"}))
        if rest[1:] == ["complete"]:
            return json_of({**found, "file": self._new("/v1/files", {})})
        if rest[1:] == ["remix"]:
            return json_of(self._new(collection, {}))
        return json_of(found)

    def _created(self, collection: str, asked: dict[str, Any]) -> bytes:
        more: dict[str, Any] = {"metadata": asked.get("metadata")}
        if collection == "/v1/batches":
            more["output_file_id"] = self._new("/v1/files", {})["id"]
        if collection == "/v1/responses":
            item = {"type": "reasoning", "id": f"rs_{next(self._numbers)}", "summary": []}
            ran = {"type": "code_interpreter_call", "id": f"ci_{next(self._numbers)}", "code": "1"}
            more |= {"output": [item, {**ran, "container_id": self._new("/v1/containers", {})["id"]}]}
        made = self._new(collection, more)
        if collection == "/v1/responses" and asked.get("stream") is True:
            return b"".join(each for each in streamed(made))
        return json_of(made)

    def _new(self, collection: str, more: dict[str, Any]) -> dict[str, Any]:
        prefix = PREFIXES[collection]
        made = {"id": f"{prefix}-{next(self._numbers)}", "object": prefix, "collection": collection, **more}
        self.objects[made["id"]] = made
        return made

    def _page(self, collection: str, query: Mapping[str, list[str]], *, is_anthropic: bool) -> dict[str, Any]:
        """Returns one page of a collection, newest first."""
        all_of_it = [each for each in reversed(self.objects.values()) if each["collection"] == collection]
        after = query.get("after_id" if is_anthropic else "after", [""])[0]
        ids = [each["id"] for each in all_of_it]
        start = ids.index(after) + 1 if after in ids else 0
        page = all_of_it[start : start + int(query.get("limit", [str(PAGE)])[0])]
        has_more = start + len(page) < len(ids)
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        return {"object": "list", "data": page, "has_more": has_more, **ends, "all": ids}


_CHAT = {
    "object": "chat.completion", "role": "assistant", "type": "message", "content": [{"type": "text", "text": "Hi"}],
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "stop_reason": "end_turn",
}  # fmt: skip


def streamed(response: dict[str, Any]) -> Iterator[bytes]:
    """Yields a response as a stream that carries its items' ids only in the middle."""
    yield stream_head().data
    yield chunk(event("response.created", response={**response, "output": []})).data
    for item in response["output"]:
        yield chunk(event("response.output_item.added", item=item)).data
    yield chunk(event("response.output_text.delta", delta='{"response": {"id": "resp-of-another"}}')).data
    yield chunk(event("response.completed", response={**response, "status": "completed"})).data
    yield END.data


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def json_of(value: object, status: int = 200) -> bytes:
    return whole(status, json.dumps(value).encode()).data


def json_in(body: bytes) -> dict[str, Any]:
    """Parses a JSON object; returns {} for a form."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
