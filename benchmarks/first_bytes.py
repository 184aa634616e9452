"""Measures the relay of responses that are not JSON: delay of the first byte from the provider to the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.stand import config_of, standing
from tests.chaos.wire import Connection
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Pause, ScriptedProvider, Step, chunk, stream_head

PROMISED_S = 0.05
"""Promised maximum delay of the first byte."""

_CALLS = 50
_HEAD_S = 0.02
_REST_S = 5.0
"""Delay of the remaining bytes, which the first must not wait for."""
_FIRST = b"\xff\xfb\x90\x64"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, and the request for it."""

    name: str
    content_type: str
    path: str
    method: str = "POST"


ANSWERS = (
    Answer("speech", "audio/mpeg", "/v1/audio/speech"),
    Answer("speech without a known type", "application/octet-stream", "/v1/audio/speech"),
    Answer("content of a file", "application/jsonl", "/v1/files/file-1/content", "GET"),
    Answer("content of a JSON file", "application/json", "/v1/files/file-1/content", "GET"),
    Answer("content of a video", "video/mp4", "/v1/videos/video_1/content", "GET"),
)


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays from the provider's first byte to the client's, in seconds, sorted."""

    answer: Answer
    through: Sequence[float]
    direct: Sequence[float]
    """Delays without a gateway."""

    @property
    def broken(self) -> list[str]:
        """The promise, if it does not hold."""
        late_s = self.through[-1]
        return [f"first byte of {self.answer.name} after {1000 * late_s:.0f} ms"] if late_s > PROMISED_S else []


async def measure() -> list[Delays]:
    """Measures all responses; takes a quarter of a minute."""
    return [await _measure(answer) for answer in ANSWERS]


def section(measured: Sequence[Delays]) -> list[str]:
    """The lines of a page's section."""
    lines = [
        "## First bytes of answers that are not JSON",
        "",
        f"From the provider's first byte to the client's, {_CALLS} answers each whose rest comes {_REST_S:g} s later;",
        f"promised: {1000 * PROMISED_S:.0f} ms at most.",
        "",
        "| answer | content type | median | longest | without a gateway, median |",
        "|---|---|---:|---:|---:|",
    ]
    for each in measured:
        median, longest, direct = (
            f"{1000 * value:.1f} ms" for value in (_median(each.through), each.through[-1], _median(each.direct))
        )
        lines.append(f"| {each.answer.name} | {each.answer.content_type} | {median} | {longest} | {direct} |")
    return lines


async def _measure(answer: Answer) -> Delays:
    head = stream_head(200, {"content-type": answer.content_type})
    script: list[Step] = [head, Pause(_HEAD_S), chunk(_FIRST), Pause(_REST_S), chunk(b"rest"), END]
    async with ScriptedProvider(script) as provider, standing(config_of(provider.url)) as stand:
        direct = [await _delay_s(provider.url, answer) for _ in range(_CALLS)]
        through = [await _delay_s(stand.url, answer) for _ in range(_CALLS)]
    return Delays(answer, sorted(through), sorted(direct))


async def _delay_s(url: str, answer: Answer) -> float:
    """Delay after the provider sends its first byte, which it does a fixed time after the request."""
    async with Connection(url) as client:
        body = b'{"model":"gpt"}' if answer.method == "POST" else b""
        began_at = time.monotonic()
        client.writer.write(raw_request(answer.path, body, {"content-type": "application/json"}, answer.method))
        async with asyncio.timeout(_REST_S):
            await client.reader.readuntil(_FIRST)
        return time.monotonic() - began_at - _HEAD_S


def _median(values: Sequence[float]) -> float:
    return values[len(values) // 2]
