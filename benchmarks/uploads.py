"""Delays of an upload: when the provider gets its first and last byte, and the resources of the gateway's process.

Client and provider are threads with blocking sockets, so that neither costs more than its own copies.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.processes import Started, cpu_s
from benchmarks.rig import gateway

CONFIG = """
upstreams:
  provider: {dialect: openai, base_url: "{provider}/v1"}
models:
  gpt-4o: {deployments: [{upstream: provider}]}
"""
PROMISED_FIRST_BYTE_S = 0.1
PROMISED_MEMORY_MIB = 16.0

_MIB = 1 << 20
_READ_BYTES = 1 << 20
_WRITE_BYTES = 1 << 16
_LOOK_EVERY_S = 0.02
_SETTLE_S = 0.5
_ANSWER = b'{"id":"file-1","object":"file"}'
_BEGIN = b'--b0\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
_END = b"\r\n--b0--\r\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """One upload; rates in MiB/s, 0: unlimited."""

    name: str
    mib: int
    client_rate: float = 0.0
    provider_rate: float = 0.0


PLANS = (
    Plan("64 MiB, sent at 16 MiB/s", 64, client_rate=16.0),
    Plan("500 MiB, as fast as it goes", 500),
    Plan("500 MiB, read at 64 MiB/s", 500, provider_rate=64.0),
)


@dataclass(frozen=True, slots=True)
class Uploaded:
    """One finished upload. Seconds after the client's first byte (`first_byte_s`, `sent_s`) or last byte (the rest)."""

    name: str
    first_byte_s: float
    """When the provider has the first byte."""
    sent_s: float
    """When the client has sent the last byte."""
    last_byte_s: float
    """When the provider has the last byte."""
    answer_s: float
    memory_mib: float
    """Maximum growth of the gateway's resident memory."""
    cpu_s: float

    @property
    def broken(self) -> list[str]:
        """Promises that do not hold."""
        found = []
        if self.first_byte_s > PROMISED_FIRST_BYTE_S:
            found.append(f"{self.name}: first byte after {self.first_byte_s:.3f} s")
        if self.memory_mib > PROMISED_MEMORY_MIB:
            found.append(f"{self.name}: {self.memory_mib:.1f} MiB of memory")
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(say: Callable[[str], None], plans: Sequence[Plan] = PLANS) -> list[Uploaded]:
    """Measures each upload on a new gateway."""
    done = []
    for plan in plans:
        with _Sink(plan.provider_rate) as sink, gateway(CONFIG, sink.url) as running:
            done.append(_upload(plan, sink, running))
        say(f"{plan.name}: first byte after {done[-1].first_byte_s * 1e3:.0f} ms")
    return done


def page(done: Sequence[Uploaded]) -> list[str]:
    """The lines of uploads.md."""
    lines = ["# What an upload waits for", ""]
    lines.append(
        "A form with one file, to `/v1/files`. The provider's first byte counts from the client's first, all else from "
        f"the client's last. Promised: the first byte within {PROMISED_FIRST_BYTE_S * 1e3:.0f} ms, and at most "
        f"{PROMISED_MEMORY_MIB:.0f} MiB more memory, whatever the size."
    )
    lines += ["", "| | client sends for | provider's first byte | last byte | answer | memory | CPU |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|", *map(_line, done)]
    return lines


def _line(upload: Uploaded) -> str:
    return (
        f"| {upload.name} | {upload.sent_s:.1f} s | **{upload.first_byte_s * 1e3:.0f} ms** | "
        f"{upload.last_byte_s * 1e3:.0f} ms | {upload.answer_s * 1e3:.0f} ms | {upload.memory_mib:.1f} MiB | "
        f"{upload.cpu_s:.2f} s |"
    )


def _upload(plan: Plan, sink: _Sink, running: Started) -> Uploaded:
    size = plan.mib * _MIB - len(_BEGIN) - len(_END)  # 500 MiB in all: below `server.max_upload`
    parts = urlsplit(running.url)
    block = os.urandom(_WRITE_BYTES)
    time.sleep(_SETTLE_S)
    before_bytes, before_cpu_s = running.process.memory_info().rss, cpu_s(running.process)
    with socket.create_connection((parts.hostname, parts.port)) as client, _highest(running) as highest:
        began_at = time.monotonic()
        client.sendall(_head(plan.mib * _MIB) + _BEGIN)
        pace = _Pace(plan.client_rate)
        for at in range(0, size, _WRITE_BYTES):
            client.sendall(block[: min(_WRITE_BYTES, size - at)])
            pace.keep(at)
        client.sendall(_END)
        sent_at = time.monotonic()
        answer = client.recv(_READ_BYTES)
        answered_at = time.monotonic()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    return Uploaded(
        plan.name,
        sink.first_at - began_at,
        sent_at - began_at,
        sink.last_at - sent_at,
        answered_at - sent_at,
        (max(highest) - before_bytes) / _MIB,
        cpu_s(running.process) - before_cpu_s,
    )


def _head(length: int) -> bytes:
    lines = ("POST /v1/files HTTP/1.1", "Host: benchmark", "Content-Type: multipart/form-data; boundary=b0")
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


@contextmanager
def _highest(running: Started) -> Iterator[list[int]]:
    """Samples the resident bytes of the process."""
    seen = [running.process.memory_info().rss]
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_EVERY_S):
            seen.append(running.process.memory_info().rss)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


class _Pace:
    """Sleeps to keep a rate in MiB/s; 0: never."""

    def __init__(self, rate: float) -> None:
        self._rate = rate * _MIB
        self._began_at = time.monotonic()

    def keep(self, done_bytes: int) -> None:
        if self._rate:
            time.sleep(max(0.0, self._began_at + done_bytes / self._rate - time.monotonic()))


@dataclass(slots=True)
class _Sink:
    """A provider that receives one upload and responds."""

    rate: float
    url: str = ""
    first_at: float = 0.0
    last_at: float = 0.0
    _listener: socket.socket = field(default_factory=socket.socket)

    def __enter__(self) -> Self:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            connection, _ = self._listener.accept()
            with connection:
                self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(_WRITE_BYTES)
        self.first_at = time.monotonic()
        head, _, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head.lower())
        assert length is not None, head
        taken, pace = len(body), _Pace(self.rate)
        while taken < int(length[1]):
            taken += len(connection.recv(_READ_BYTES))
            pace.keep(taken)
        self.last_at = time.monotonic()
        headers = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_ANSWER)
        connection.sendall(headers + _ANSWER)
