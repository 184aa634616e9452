"""One call of a load run, with the client's own retries, and the check of its response.

Parses streams itself: if it shared the gateway's parser, one bug could hide in both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from msgspec import DecodeError
from msgspec.json import decode, encode

from llm_guard.mock.exchange import MockDialect
from llm_guard.mock.load_result import FinishedCall
from llm_guard.mock.load_retries import SdkRetries, retry_after_s

_BROKEN = ("timeout", "connect", "disconnected", "truncated")
"""Outcomes without a complete response."""

_PATHS: dict[MockDialect, str] = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Destination and settings of a run's calls."""

    url: str
    """Base URL, with `/v1` or without."""
    dialect: MockDialect = "openai"
    stream: bool = False
    headers: Mapping[str, str] | None = None
    timeout_s: float = 60.0
    """Timeout of each request; a call without retries is one request."""
    retries: SdkRetries | None = None
    """The client's own retries; none by default."""
    text: str | None = None
    """The complete text that a stream must contain; None: any."""

    def endpoint(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1") + _PATHS[self.dialect]

    def body(self, model: str, payload: Mapping[str, Any] | None = None) -> bytes:
        """Returns a short request, or `payload` with this model; an empty one leaves the payload's own."""
        said = {"messages": [{"role": "user", "content": "Say something."}]}
        fields: dict[str, Any] = {**(said if payload is None else payload), "stream": self.stream}
        if model:
            fields["model"] = model
        if self.dialect == "anthropic":
            fields.setdefault("max_tokens", 256)
        return encode(fields)

    def all_headers(self) -> dict[str, str]:
        fixed = {"content-type": "application/json"}
        if self.dialect == "anthropic":
            fixed["anthropic-version"] = "2023-06-01"
        return {**fixed, **(self.headers or {})}


def open_session(target: LoadTarget) -> aiohttp.ClientSession:
    """A client without a limit of its own on connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=target.timeout_s),
        headers=target.all_headers(),
    )


async def call(
    session: aiohttp.ClientSession, target: LoadTarget, body: bytes, due_at: float, call_id: str = ""
) -> FinishedCall:
    """Sends one call, due at the monotonic time `due_at`; never raises because of a server's behaviour. With `call_id`
    the mock provider decides by call and attempt which requests fail (`x-mock-call`).

    Success is a 2xx and a complete, valid body; for a stream: the dialect's terminal event, no error event, and the
    expected text. Errors: `http_STATUS`, `timeout`, `connect`, `disconnected`, `truncated`, `malformed`, `error_event`,
    and `wrong_text` for words lost, repeated or altered. For a call that was retried, the last response counts."""
    requests, headers_of_call = 1, {"x-mock-call": call_id} if call_id else None
    reading, outcome = await _exchange(session, target, body, headers_of_call)
    while target.retries is not None and reading.can_be_retried(outcome):
        status, headers = (None, {}) if outcome in _BROKEN else (reading.status, reading.headers)
        wait_s = target.retries.try_wait_s(requests - 1, status, headers, time.monotonic() - due_at)
        if wait_s is None:
            break
        await asyncio.sleep(wait_s)
        requests += 1
        reading, outcome = await _exchange(session, target, body, headers_of_call)
    now = time.monotonic()
    return FinishedCall(
        outcome,
        now - due_at,
        reading.status,
        None if reading.first_token_at is None else reading.first_token_at - due_at,
        ended_at=now,
        requests=requests,
        retry_after_s=None if outcome == "ok" else retry_after_s(reading.headers),
        refused_by=reading.headers.get("x-llm-guard-refused-by"),
        attempts=int(said) if (said := reading.headers.get("x-llm-guard-attempts", "")).isdecimal() else None,
        output_tokens=reading.output_tokens,
    )


async def _exchange(
    session: aiohttp.ClientSession, target: LoadTarget, body: bytes, headers: Mapping[str, str] | None
) -> tuple[_Reading, str]:
    reading = _Reading(target)
    try:
        async with session.post(target.endpoint(), data=body, headers=headers) as response:
            outcome = await reading.read(response)
    except TimeoutError:
        outcome = "timeout"
    except aiohttp.ClientConnectorError:
        outcome = "connect"
    except aiohttp.ClientPayloadError:
        outcome = "truncated"
    except (aiohttp.ClientError, OSError):
        outcome = "disconnected"
    return reading, outcome


class _Reading:
    """Reads one response and judges it."""

    def __init__(self, target: LoadTarget) -> None:
        self._target = target
        self._is_over = False
        self._said: list[str] = []
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.first_token_at: float | None = None
        self.output_tokens = 0

    async def read(self, response: aiohttp.ClientResponse) -> str:
        self.status, self.headers = response.status, response.headers
        if not 200 <= response.status < 300:
            await response.read()
            return f"http_{response.status}"
        if not self._target.stream:
            return self._judge_whole(await response.read())
        tail = b""
        async for chunk in response.content.iter_any():
            *events, tail = (tail + chunk).split(b"\n\n")
            for event in events:
                if (fault := self._judge_event(event)) is not None:
                    return fault
        if not self._is_over or tail.strip():
            return "truncated"
        return "ok" if self._target.text in (None, "".join(self._said)) else "wrong_text"

    def can_be_retried(self, outcome: str) -> bool:
        """After the start of a 2xx, an SDK only retries a unary response that did not arrive completely."""
        if self.status is None or not 200 <= self.status < 300:
            return True
        return not self._target.stream and outcome in _BROKEN

    def _judge_whole(self, body: bytes) -> str:
        answer = _read_object(body)
        if answer is None:
            return "malformed"
        if answer.get("error") is not None:
            return "error_event"
        self.output_tokens = _output_tokens(answer)
        return "ok" if answer.get("choices") or answer.get("content") else "malformed"

    def _judge_event(self, event: bytes) -> str | None:
        data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if not data:
            return None
        if data == b"[DONE]":
            self._is_over = True
            return None
        fields = _read_object(data)
        if fields is None:
            return "malformed"
        if fields.get("error") is not None:
            return "error_event"
        if fields.get("type") == "message_stop":
            self._is_over = True
        self.output_tokens = max(self.output_tokens, _output_tokens(fields))
        text = _text_of(fields)
        self._said.append(text)
        if self.first_token_at is None and (text or fields.get("type") == "content_block_delta"):
            self.first_token_at = time.monotonic()
        return None


def _read_object(data: bytes) -> dict[str, Any] | None:
    try:
        fields = decode(data)
    except DecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def _output_tokens(fields: Mapping[str, Any]) -> int:
    """Returns how many tokens a response, or an event, says that there are so far; 0 if it does not."""
    usage = fields.get("usage")
    counts = [usage.get(name) for name in ("completion_tokens", "output_tokens")] if isinstance(usage, dict) else []
    return max((count for count in counts if isinstance(count, int)), default=0)


def _text_of(fields: dict[str, Any]) -> str:
    """The text of one event: a delta of anthropic, or those of every choice of openai."""
    if fields.get("type") == "content_block_delta":
        return str((fields.get("delta") or {}).get("text") or "")
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in fields.get("choices") or ())
