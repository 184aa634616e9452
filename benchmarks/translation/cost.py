"""CPU of a translated call beside the same call to a provider of the client's dialect.

One gateway, both ways in turns, so that changes of the machine affect both alike. The difference is taken in each
round; the figures are medians of the rounds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.processes import Started, cpu_s, started
from benchmarks.rig import gateway
from benchmarks.turns import in_turns

ROUNDS = 12
CHUNKS = 400
CLIENTS = ("chat", "messages")
_PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
_NATIVE, _TRANSLATED = "native", "translated"
_CALLS, _STREAMS, _LARGE = 2000, 40, 4
"""Number of each in a turn."""
_CONNECTIONS = 8
_LARGE_BYTES = 1 << 20
_CONFIG = """
server: {client_keys: []}
ops: {log: {level: error}}
upstreams:
  openai: {dialect: openai, base_url: "{provider}/v1", api_key: k}
  anthropic: {dialect: anthropic, base_url: "{provider}", api_key: k}
models:
"""


@dataclass(frozen=True, slots=True)
class Promise:
    """One kind of work, and what it may cost more when it is translated."""

    name: str
    model: str
    most: float
    unit: str
    scale: float
    """Of seconds to the unit."""


PROMISES = (
    Promise("a call of 1.5 kB", "whole", 60.0, "µs", 1e6),
    Promise("a chunk of text", f"text-{CHUNKS}", 4.0, "µs", 1e6),
    Promise("a chunk of a tool's arguments", f"tool-{CHUNKS}", 10.0, "µs", 1e6),
    Promise("a call of 1 MiB", "large", 30.0, "ms", 1e3),
    Promise("another call's wait beside it", "large", 10.0, "ms", 1e3),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """One promise for one client: seconds more, round by round."""

    promise: Promise
    client: str
    native_s: float
    """Median of the same without a translation."""
    more_s: tuple[float, ...]

    @property
    def figure(self) -> float:
        """The median, in the promise's unit."""
        return statistics.median(self.more_s) * self.promise.scale

    @property
    def broken(self) -> list[str]:
        """The promise, if it does not hold."""
        if self.figure <= self.promise.most:
            return []
        found = f"{self.figure:.1f} {self.promise.unit} more"
        return [f"{self.promise.name}, client of {self.client}: {found} against {self.promise.most:.0f}"]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def run(echo: Callable[[str], None], rounds: int = ROUNDS) -> list[Cost]:
    """Measures all, in two minutes."""
    with ExitStack() as running:
        provider = running.enter_context(started("benchmarks.translation.cost_provider"))
        guarded = running.enter_context(gateway(_CONFIG + "\n".join(_models()), provider.url))
        return [cost for client in CLIENTS for cost in _of_client(echo, guarded, client, rounds)]


def _models() -> list[str]:
    """One model for each kind of work and upstream. Large calls are answered like small ones."""
    kinds = {promise.model: promise.model.replace("large", "whole") for promise in PROMISES}
    return [
        f"  {upstream}-{kind}: {{deployments: [{{upstream: {upstream}, model: {model}}}]}}"
        for upstream in ("openai", "anthropic")
        for kind, model in kinds.items()
    ]


def _of_client(echo: Callable[[str], None], guarded: Started, client: str, rounds: int) -> list[Cost]:
    seen: dict[tuple[str, str], list[float]] = {}
    measured = [("whole", _call_cost), (f"text-{CHUNKS}", _chunk_cost), (f"tool-{CHUNKS}", _chunk_cost)]
    for way in (_NATIVE, _TRANSLATED):
        for model, measure in measured:
            measure(guarded, client, _model(client, way, model))
    for turn, way in in_turns((_NATIVE, _TRANSLATED), rounds):
        echo(f"translation: client of {client}, {way}, round {turn + 1}/{rounds}")
        for model, measure in measured:
            seen.setdefault((model, way), []).append(measure(guarded, client, _model(client, way, model)))
        cpu, wait = _large_cost(guarded, client, _model(client, way, "large"))
        seen.setdefault(("large", way), []).append(cpu)
        seen.setdefault(("wait", way), []).append(wait)
    keys = ["whole", f"text-{CHUNKS}", f"tool-{CHUNKS}", "large", "wait"]
    return [
        _cost(promise, client, seen[key, _NATIVE], seen[key, _TRANSLATED])
        for promise, key in zip(PROMISES, keys, strict=True)
    ]


def _cost(promise: Promise, client: str, native: Sequence[float], translated: Sequence[float]) -> Cost:
    more = tuple(after - before for before, after in zip(native, translated, strict=True))
    return Cost(promise, client, statistics.median(native), more)


def _model(client: str, way: str, kind: str) -> str:
    is_openai = (client == "chat") == (way == _NATIVE)
    return f"{'openai' if is_openai else 'anthropic'}-{kind}"


def _call_cost(guarded: Started, client: str, model: str) -> float:
    return _cpu_of(guarded, [_request(guarded.url, client, model)] * _CALLS) / _CALLS


def _chunk_cost(guarded: Started, client: str, model: str) -> float:
    requests = [_request(guarded.url, client, model, stream=True)] * _STREAMS
    return _cpu_of(guarded, requests, connections=_STREAMS) / (_STREAMS * CHUNKS)


def _cpu_of(guarded: Started, requests: Sequence[bytes], connections: int = _CONNECTIONS) -> float:
    """Returns the gateway's CPU seconds for these requests."""
    used = cpu_s(guarded.process)
    asyncio.run(_ask(guarded.url, requests, connections))
    return cpu_s(guarded.process) - used


def _large_cost(guarded: Started, client: str, model: str) -> tuple[float, float]:
    """Returns CPU seconds of a large call, and the longest time that a small request waited beside one: the median of
    several calls."""
    request = _request(guarded.url, client, model, size=_LARGE_BYTES)
    alone = _cpu_of(guarded, [request] * _LARGE, connections=1) / _LARGE
    return alone, statistics.median(asyncio.run(_longest_wait(guarded.url, request)) for _ in range(_LARGE))


async def _longest_wait(url: str, request: bytes) -> float:
    """Returns the longest time that the gateway's own health check took during a call."""
    large = asyncio.create_task(_ask(url, [request], 1))
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    longest = 0.0
    try:
        while not large.done():
            at = time.monotonic()
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: gateway\r\n\r\n")
            await _response(reader)
            longest = max(longest, time.monotonic() - at)
    finally:
        writer.close()
    await large
    return longest


async def _ask(url: str, requests: Sequence[bytes], connections: int) -> None:
    """Makes the calls, a connection's one after the other. Raises ValueError if one fails."""
    parts, left = urlsplit(url), iter(requests)

    async def one_after_the_other() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
        try:
            for request in left:
                writer.write(request)
                await _response(reader)
        finally:
            writer.close()

    await asyncio.gather(*(one_after_the_other() for _ in range(connections)))


async def _response(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(head.decode())
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    if length:
        await reader.readexactly(int(length))
        return
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
    await reader.readline()


def _request(url: str, client: str, model: str, *, stream: bool = False, size: int = 1500) -> bytes:
    """Returns a request whose body has about `size` bytes: instructions, a conversation, and a tool."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    if client == "chat":
        tool: dict[str, Any] = {"type": "function", "function": {"name": "write", "parameters": schema}}
        body: dict[str, Any] = {"messages": [{"role": "system", "content": "You are a patient engineer. " * 6}]}
    else:
        tool = {"name": "write", "input_schema": schema}
        body = {"system": "You are a patient engineer. " * 6, "messages": [], "max_tokens": 900}
    body |= {"model": model, "tools": [tool], "stream": stream}
    text = "Why do circuit breakers need a half-open state? "
    filler = max(1, (size - len(json.dumps(body)) - 300) // len(text))
    turns = 1 if size < _LARGE_BYTES else 40
    for turn in range(turns):
        body["messages"] += [
            {"role": "user", "content": text * max(1, filler // turns)},
            {"role": "assistant", "content": f"For the {turn}th time: to probe."},
        ]
    body["messages"].append({"role": "user", "content": "Go on."})
    raw = json.dumps(body).encode()
    head = f"POST {_PATHS[client]} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
    rest = f"authorization: Bearer sk-benchmark\r\nanthropic-version: 2023-06-01\r\ncontent-length: {len(raw)}\r\n\r\n"
    return (head + rest).encode() + raw
