"""Files and batches of both dialects, kept in memory between requests. A batch is finished as soon as it is created."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.json import encode

from llm_guard.mock.anthropic_answers import message
from llm_guard.mock.content import say
from llm_guard.mock.errors import refusal_reply
from llm_guard.mock.exchange import MockRequest, MockResponse, Upload


class FilesAndBatches:
    """Serves `/files`, `/batches` and `/messages/batches`."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[dict[str, Any], bytes]] = {}
        self._batches: dict[str, dict[str, Any]] = {}
        self._message_batches: dict[str, list[dict[str, Any]]] = {}

    def answer(self, asked: MockRequest) -> MockResponse | None:
        """The response, 404 for an unknown id; None for other paths."""
        if asked.dialect == "anthropic":
            return self._find(asked, "/messages/batches", self._answer_message_batches)
        return self._find(asked, "/files", self._answer_files) or self._find(asked, "/batches", self._answer_batches)

    def _find(
        self, asked: MockRequest, prefix: str, answer: Callable[[MockRequest, list[str]], MockResponse | None]
    ) -> MockResponse | None:
        if asked.path != prefix and not asked.path.startswith(prefix + "/"):
            return None
        try:
            return answer(asked, asked.path.removeprefix(prefix).split("/")[1:])
        except KeyError as error:
            return refusal_reply(asked.dialect, 404, f"No such object: {error.args[0]}")

    def _answer_files(self, asked: MockRequest, rest: list[str]) -> MockResponse | None:
        match asked.method, *rest:
            case ["POST"]:
                return self._put_file(asked)
            case ["GET"]:
                return _json({"object": "list", "data": [f for f, _ in self._files.values()], "has_more": False})
            case ["GET", name]:
                return _json(self._files[name][0])
            case ["GET", name, "content"]:
                return MockResponse(200, self._files[name][1], content_type="application/octet-stream")
            case ["DELETE", name]:
                del self._files[name]
                return _json({"id": name, "object": "file", "deleted": True})
            case _:
                return None

    def _put_file(self, asked: MockRequest) -> MockResponse:
        upload = asked.fields.get("file")
        if not isinstance(upload, Upload):
            return refusal_reply("openai", 400, "'file' is a required property")
        file = {
            "id": f"file-mock{asked.number}",
            "object": "file",
            "bytes": len(upload.data),
            "created_at": int(time.time()),
            "filename": upload.name,
            "purpose": asked.fields.get("purpose", "batch"),
            "status": "processed",
        }
        self._files[f"file-mock{asked.number}"] = (file, upload.data)
        return _json(file)

    def _answer_batches(self, asked: MockRequest, rest: list[str]) -> MockResponse | None:
        match asked.method, *rest:
            case ["POST"]:
                name = f"batch_mock{asked.number}"
                self._batches[name] = _batch(name, asked.fields)
                return _json(self._batches[name])
            case ["GET"]:
                return _json({"object": "list", "data": list(self._batches.values()), "has_more": False})
            case ["GET", name]:
                return _json(self._batches[name])
            case _:
                return None

    def _answer_message_batches(self, asked: MockRequest, rest: list[str]) -> MockResponse | None:
        match asked.method, *rest:
            case ["POST"]:
                name = f"msgbatch_mock{asked.number}"
                self._message_batches[name] = asked.fields.get("requests") or []
                return _json(self._message_batch(asked, name))
            case ["GET"]:
                page = [self._message_batch(asked, name) for name in self._message_batches]
                return _json({"data": page, "has_more": False, "first_id": None, "last_id": None})
            case ["GET", name]:
                return _json(self._message_batch(asked, name))
            case ["GET", name, "results"]:
                lines = [_result(i, one) for i, one in enumerate(self._message_batches[name])]
                return MockResponse(200, b"\n".join(map(encode, lines)) + b"\n", content_type="application/x-jsonl")
            case _:
                return None

    def _message_batch(self, asked: MockRequest, name: str) -> dict[str, Any]:
        now = datetime.now(UTC)
        counts = {"processing": 0, "succeeded": len(self._message_batches[name])}
        return {
            "id": name,
            "type": "message_batch",
            "processing_status": "ended",
            "request_counts": counts | {"errored": 0, "canceled": 0, "expired": 0},
            "created_at": now.isoformat(),
            "ended_at": now.isoformat(),
            "expires_at": (now + timedelta(days=1)).isoformat(),
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": f"http://{asked.host()}/v1/messages/batches/{name}/results",
        }


def _batch(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    now = int(time.time())
    return {
        "id": name,
        "object": "batch",
        "endpoint": fields.get("endpoint", "/v1/chat/completions"),
        "input_file_id": fields.get("input_file_id", ""),
        "completion_window": fields.get("completion_window", "24h"),
        "status": "completed",
        "output_file_id": None,
        "created_at": now,
        "completed_at": now,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": fields.get("metadata"),
    }


def _result(index: int, request: dict[str, Any]) -> dict[str, Any]:
    model = request.get("params", {}).get("model", "")
    block = {"type": "text", "text": "".join(say(3))}
    answer = message(model, index, 9, block, 3)
    return {"custom_id": request.get("custom_id"), "result": {"type": "succeeded", "message": answer}}


def _json(value: dict[str, Any]) -> MockResponse:
    return MockResponse(200, encode(value))
