"""`python -m benchmarks.sdk_suites.mock SDK FOLDER`: a provider that answers every endpoint an SDK knows.

The endpoints come from the SDK's own lists of methods, the files api.md in the folder of its source; each answer comes
from the type that the method returns.
It serves on a free loopback port until it is terminated.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args, get_origin
from urllib.parse import urlsplit

from benchmarks.sdk_suites.samples import events, sample

PREFIX = "/v1"
"""Every path begins with it; the paths of openai's list leave it out."""

_ENTRY = re.compile(r'<code title="(\w+) ([^"?]+)[^"]*">(client\.[\w.]+)\.<a [^>]*>(\w+)</a>')
_STREAM_REQUEST = re.compile(rb'"stream"\s*:\s*true|name="stream"\r\n(?:[^\r\n]+\r\n)*\r\ntrue')
_CLIENTS = {"openai": "OpenAI", "anthropic": "Anthropic"}
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it is sent."""

    status: int
    content_type: str
    body: bytes


class Endpoint:
    """A method and path of the API, and the type of its answers. The answers are generated when first needed."""

    def __init__(self, method: str, path: str, *, is_beta: bool, returns: Any) -> None:
        self.method = method.upper()
        self.is_beta = is_beta
        self.placeholders = path.count("{")
        self._pattern = re.compile(re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path)))
        self._returns = returns
        self._answers: dict[bool, Answer] = {}

    def matches(self, method: str, path: str) -> bool:
        """True if a request with this method and path is for this endpoint."""
        return method == self.method and self._pattern.fullmatch(path) is not None

    def answer(self, *, is_streamed: bool) -> Answer:
        """The same answer every time; a stream only where the endpoint has one."""
        if is_streamed not in self._answers:
            self._answers[is_streamed] = _answer(self._returns, is_streamed=is_streamed)
        return self._answers[is_streamed]


def read_listing(folder: Path) -> str:
    """The text of every api.md below the folder."""
    return "\n".join(path.read_text() for path in sorted(folder.rglob("api.md")))


def read_endpoints(sdk: str, listing: str) -> list[Endpoint]:
    """The endpoints in the text of an api.md; those with the fewest placeholders come first."""
    package = importlib.import_module(sdk)
    client = getattr(package, _CLIENTS[sdk])(api_key="unused")
    found = [
        Endpoint(
            verb,
            PREFIX + path.removeprefix(PREFIX),
            returns=_returns(client, owner, name),
            is_beta=".beta." in owner + ".",
        )
        for verb, path, owner, name in _ENTRY.findall(listing)
    ]
    return sorted(found, key=lambda endpoint: endpoint.placeholders)


def _returns(client: Any, resource: str, name: str) -> Any:
    """The annotated type of what a method of the client returns."""
    owner = client
    for part in resource.split(".")[1:]:
        owner = getattr(owner, part)
    function: Any = inspect.unwrap(getattr(owner, name))
    function = getattr(function, "__func__", function)
    return eval(function.__annotations__["return"], function.__globals__)


def _answer(returns: Any, *, is_streamed: bool) -> Answer:
    variants = [variant for variant in _members(returns) if variant is not str] or [str]
    streams = [variant for variant in variants if _name(variant) == "Stream"]
    wholes = [variant for variant in variants if _name(variant) != "Stream"]
    if streams and (is_streamed or not wholes):
        return Answer(200, "text/event-stream", b"".join(_sse(get_args(streams[0])[0])))
    chosen = wholes[0]
    if chosen is None or chosen is type(None):
        return Answer(204, "", b"")
    if "Binary" in _name(chosen):
        return Answer(200, "application/octet-stream", bytes(range(256)))
    if _name(chosen) == "JSONLDecoder":
        return Answer(200, "application/x-jsonl", json.dumps(sample(get_args(chosen)[0])).encode() + b"\n")
    return Answer(200, _JSON, json.dumps(sample(chosen), indent=2).encode())


def _members(returns: Any) -> tuple[Any, ...]:
    value = getattr(returns, "__value__", returns)
    origin = get_origin(value)
    if _name(origin) in ("Union", "UnionType"):
        return get_args(value)
    return _members(get_args(value)[0]) if _name(origin) == "Annotated" else (value,)


def _name(annotation: Any) -> str:
    origin = get_origin(annotation) or annotation
    return str(getattr(origin, "__name__", None) or getattr(origin, "_name", None) or "")


def _sse(annotation: Any) -> Iterator[bytes]:
    """The events as bytes. openai ends streams of unnamed events, and those of threads, with a marker."""
    found = events(annotation)
    names = [event.get("type") or event.get("event") for event in found]
    for name, event in zip(names, found, strict=True):
        data = event if "type" in event else event.get("data", event)  # a thread's event is an envelope without a type
        yield (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"
    if names[-1] is None or names[-1].startswith("thread."):
        yield b"data: [DONE]\n\n"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one segment per answer
    disable_nagle_algorithm = True
    endpoints: list[Endpoint]

    def _serve(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        is_beta = "beta=true" in url.query.split("&") or "anthropic-beta" in self.headers
        found = [endpoint for endpoint in self.endpoints if endpoint.matches(self.command, url.path)]
        exact = [endpoint for endpoint in found if endpoint.is_beta == is_beta] or found
        if exact:
            answer = exact[0].answer(is_streamed=_STREAM_REQUEST.search(body) is not None)
        else:
            message = f"no such endpoint: {self.command} {url.path}"
            error = {"error": {"type": "not_found_error", "message": message}}
            answer = Answer(404, _JSON, json.dumps({"type": "error"} | error).encode())
        self._send(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815, the names are http.server's

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        if answer.content_type:
            self.send_header("content-type", answer.content_type)
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def log_message(self, *_: object) -> None:
        """Silent: one line per request would be thousands."""


class MockApi(ThreadingHTTPServer):
    """Answers the endpoints on a free loopback port."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, endpoints: list[Endpoint]) -> None:
        super().__init__(("127.0.0.1", 0), type("Handler", (_Handler,), {"endpoints": endpoints}))

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        return f"http://127.0.0.1:{self.server_port}"


def main(sdk: str, folder: str) -> None:
    """Serves until the process is terminated."""
    endpoints = read_endpoints(sdk, read_listing(Path(folder)))
    server = MockApi(endpoints)
    print(f"{len(endpoints)} endpoints on {server.url}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
