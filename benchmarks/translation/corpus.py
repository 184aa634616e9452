"""Reads the corpus of hard cases.

A case is one request, what the provider answers, and what must be true of the translated request (`sent`) and of what
the client gets (`reply`). A case belongs to one of the `CLASSES` of defects; its source is a public thread of another
project in which users report one of them. `checks.py` has the forms of a check.

Short forms: `tools` are tools by name in the client's dialect. An answer of a chat is a `message`, or `chunks` of a
stream in which `calls` are `[index, id, name, arguments]`; text among them is sent as it is and ends the stream. An
answer of Messages has `blocks`; it is a stream if the request is one, and `break` is sent instead of its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

Json = dict[str, Any]
Client = Literal["chat", "messages", "responses", "count_tokens"]
Upstream = Literal["chat", "messages"]

FOLDER = Path(__file__).parent / "cases"
CLASSES: Mapping[int, str] = {
    1: "streamed arguments are lost",
    2: "an end that hides calls",
    3: "unsigned thinking",
    4: "results of parallel calls",
    5: "empty texts",
    6: "overlapping blocks",
    7: "numbers of calls",
    8: "documents, audio, images",
    9: "usage",
    10: "errors become a clean end",
    11: "refusals",
    12: "calls without arguments",
    13: "foreign ids and names",
    14: "parallel and forced calls",
    15: "JSON of a schema",
    16: "effort and budget",
    17: "missing output limit",
    18: "parameters of model families",
    19: "fields of one provider",
    20: "failed tools",
    21: "instructions in the middle",
    22: "provider tools",
    23: "schemas of arguments",
    24: "values out of range",
    25: "cache_control",
    26: "streams that another model continues",
    27: "count_tokens",
    28: "Responses",
}
PATHS: Mapping[Client, str] = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "count_tokens": "/v1/messages/count_tokens",
}
_MODELS: Mapping[Upstream, str] = {"chat": "gpt-4o", "messages": "claude-sonnet-4-5"}
_PARAMETERS: Mapping[str, Json] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "now": {"type": "object", "properties": {"zone": {"type": "string"}}},
}


class CorpusError(ValueError):
    """A case that cannot be read; the message says which."""


@dataclass(frozen=True, slots=True)
class Case:
    """One hard case."""

    name: str
    number: int
    """Its class."""
    client: Client
    upstream: Upstream
    source: str
    model: str
    """The upstream's."""
    request: Json
    """The client's, without a model."""
    answer: Json = field(default_factory=dict)
    first: Json | None = None
    """What a deployment of the client's dialect answers before that."""
    checks: Sequence[Sequence[Any]] = ()
    refused: str = ""
    """Part of the name of what the request must be refused for."""
    dropped: Sequence[str] = ()
    """Names of losses that the client must be told of."""
    only: str = ""
    """`gateway`: about what a library does not offer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Json] = field(default_factory=dict)
    """The config of `upstream`, `deployment` and `translate`."""
    most_tokens: int | None = None
    """The model's output limit, which the provider enforces."""
    is_strict: bool = True
    """False: the provider is a compatible server, with fields of its own."""


def read(folder: Path = FOLDER) -> list[Case]:
    """Returns all cases, by class. Raises CorpusError."""
    cases = [
        _case(fields, path.name)
        for path in sorted(folder.glob("*.yaml"))
        for fields in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
    if len({case.name for case in cases}) < len(cases):
        raise CorpusError("two cases have the same name")
    return sorted(cases, key=lambda case: case.number)


def _case(fields: Json, file: str) -> Case:
    fields = dict(fields)
    try:
        name, client, number = fields.pop("name"), fields.pop("from"), fields.pop("class")
        source = fields.pop("source")
    except KeyError as missing:
        raise CorpusError(f"{file}: {fields.get('name', 'a case')} has no {missing}") from None
    upstream: Upstream = fields.pop("to", "messages" if client == "chat" else "chat")
    request = _request(client, fields)
    answer = fields.pop("answer", {})
    if "chunks" in answer:
        request["stream"] = True
    settings: dict[str, Json] = {
        key: fields.pop(key) for key in ("upstream", "deployment", "translate") if key in fields
    }
    model = fields.pop("model", _MODELS[upstream])
    try:
        case = Case(name, number, client, upstream, source, model, request, answer, settings=settings, **fields)
    except TypeError as error:
        raise CorpusError(f"{file}: {name}: {error}") from None
    if number not in CLASSES or client not in PATHS:
        raise CorpusError(f"{file}: {name}: no such class or endpoint")
    if not (case.checks or case.refused):
        raise CorpusError(f"{file}: {name}: nothing has to be true")
    return case


def _request(client: Client, fields: Json) -> Json:
    request: Json
    request = {"input": "hi"} if client == "responses" else {"messages": [{"role": "user", "content": "hi"}]}
    if client == "messages":
        request["max_tokens"] = 200
    names = fields.pop("tools", None)
    if names:
        request["tools"] = [_tool(client, name) for name in names]
    request.update(fields.pop("request", {}))
    return request


def _tool(client: Client, name: str) -> Json:
    schema, description = _PARAMETERS[name], f"Returns the {name}."
    if client == "chat":
        return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
    return {"name": name, "description": description, "input_schema": schema}
