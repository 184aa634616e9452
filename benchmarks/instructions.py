"""Counts the instructions of a call: `python -m benchmarks.instructions [--package FOLDER] [--calls N]`.

The gateway runs under callgrind, with every policy on and a log line for each call, and answers one client whose calls
follow one another. Unlike times, the counts hardly depend on the machine or on what else runs there. Work in the
background is measured without calls, and subtracted. System calls are not counted: see the comparison with Envoy.

The steps are shown for the compiled build alone: callgrind does not see which Python function is interpreted.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from benchmarks.callgrind import Profile, parse
from benchmarks.compare.ways import CONFIG
from benchmarks.processes import Started, started

_WARM_UP_CALLS = 100
_IDLE_S = 8.0
_STEPS = {
    "the client's request is parsed": "RequestParser_feed",
    "a task begins for it": "Loop_.*create_task",
    "its record is made": "Handler__begin",
    "its body is read": "Handler__take",
    "its deployments are ordered": "AttemptLoop_begin",
    "one admits it": "AdmissionControl_try_enter",
    "an attempt begins": "AttemptLoop__begin",
    "the request is sent": "Origin_send|UpstreamConnection_4generator",
    "the response is parsed": "UpstreamConnection__receive",
    "the response is validated": "unary__judge",
    "the attempt's outcome is counted": "AttemptRunner_end",
    "the response is sent to the client": "relay__headers|ResponseWriter_begin_whole",
    "the call is counted": "Recorder__count",
    "its log line is written": "Recorder__write",
}
"""Functions of the compiled build by step, the part of their names behind that of the module; no step is in another,
except that the first begins the task."""
_COUNTS = {
    "objects allocated": "_PyObject_Malloc",
    "attributes looked up in a type": "_PyObject_GenericGetAttrWithDict",
    "methods looked up in a type": "_PyObject_GetMethod",
    "dicts looked up in": "_Py_dict_lookup",
    "coroutines made": "__Pyx__Coroutine_New",
}
"""The functions of libpython and of Cython that are counted, by what they do."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one call costs, in instructions."""

    net: float
    """Without work in the background, which the other figures include."""
    objects: Mapping[str, float]
    """By shared object."""
    steps: Mapping[str, float]
    counts: Mapping[str, float]
    """Numbers of calls of some functions."""


def sum_up(busy: Profile, calls: int, background: float) -> Counted:
    """Divides a profile by its number of calls. `background`: instructions of work in the background meanwhile."""
    return Counted(
        (busy.total - background) / calls,
        {name: cost / calls for name, cost in busy.objects.items()},
        {step: _cost(busy, pattern) / calls for step, pattern in _STEPS.items()},
        {what: busy.calls.get(function, 0) / calls for what, function in _COUNTS.items()},
    )


def lines(counted: Counted, most: int = 12) -> Iterator[str]:
    """Yields the report: the total, the steps, the counts, and the `most` costly shared objects."""
    yield f"{counted.net:,.0f} instructions per call"
    yield from _table({step: cost for step, cost in counted.steps.items() if cost}, "by step", "{:8,.0f}")
    yield from _table(counted.counts, "times", "{:8.1f}")
    largest = sorted(counted.objects.items(), key=lambda pair: -pair[1])[:most]
    yield from _table(dict(largest), "by shared object", "{:8,.0f}")


def _table(rows: Mapping[str, float], title: str, form: str) -> Iterator[str]:
    if rows:
        yield f"\n{title}"
        yield from (f"{form.format(value)}  {name}" for name, value in rows.items())


def _cost(profile: Profile, pattern: str) -> int:
    wanted = re.compile(rf"__pyx_(?:f|pw|gb)_\w*?\d(?:{pattern})")
    return sum(cost for function, cost in profile.costs.items() if wanted.fullmatch(function))


def measure(package: Path | None, calls: int) -> Counted:
    """Runs the gateway and calls it. Raises NotStartedError."""
    with tempfile.TemporaryDirectory() as folder, _gateway(Path(folder), package) as running:
        ask = _Client(running.url).ask
        for _ in range(_WARM_UP_CALLS):
            ask()
        _dump(running)
        began_at = time.monotonic()
        for _ in range(calls):
            ask()
        took_s = time.monotonic() - began_at
        busy = _dump(running, Path(folder))
        began_at = time.monotonic()
        time.sleep(_IDLE_S)
        idle = _dump(running, Path(folder))
        idle_s = time.monotonic() - began_at
        return sum_up(busy, calls, idle.total / idle_s * took_s)


@contextmanager
def _gateway(folder: Path, package: Path | None) -> Iterator[Started]:
    config = folder / "config.yaml"
    under = ("valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={folder}/profile")
    with started("benchmarks.relay_peers", "provider", "0") as provider:
        config.write_text(CONFIG.replace("{provider}", provider.url))
        arguments = ("serve", "-c", str(config), "--port", "0")
        # With a seed of its own, each process lays out its dictionaries differently.
        env = {"PYTHONHASHSEED": "0"}
        with started("llm_guard", *arguments, package=package, env=env, under=under) as running:
            yield running


def _dump(running: Started, folder: Path | None = None) -> Profile:
    """Writes the profile since the last time, and begins another; reads it from `folder`, if that is given."""
    subprocess.run(["callgrind_control", "--dump", str(running.process.pid)], check=True, capture_output=True)
    if folder is None:
        return Profile({}, {}, {})
    newest = max(folder.glob("profile.*"), key=lambda path: int(path.suffix[1:]))
    return parse(newest.read_text(errors="replace"))


class _Client:
    """Sends the same request again and again on one connection, each in one piece, as SDKs do."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        content = b"x" * 1400
        body = b'{"model":"gpt-4o","messages":[{"role":"user","content":"%b"}],"temperature":0.7}' % content
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer sk-benchmark\r\n"
            "content-type: application/json\r\naccept: application/json\r\naccept-encoding: gzip, deflate\r\n"
            f"user-agent: OpenAI/Python 3.0\r\nx-stainless-lang: python\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body

    def ask(self) -> None:
        """Makes one call. Raises AssertionError if it fails."""
        self._socket.sendall(self._request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0 or len(data) < end + 4 + _length(data[:end]):
            piece = self._socket.recv(1 << 16)
            assert piece, "the gateway has closed the connection"
            data += piece
        assert data.startswith(b"HTTP/1.1 200 "), data[:200]


def _length(head: bytes) -> int:
    found = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return int(found[1]) if found is not None else 0


@click.command()
@click.option("--package", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Of another build.")
@click.option("--calls", type=click.IntRange(100), default=900, show_default=True)
def main(package: Path | None, calls: int) -> None:
    """Print what one unary call costs."""
    if shutil.which("valgrind") is None:
        raise click.UsageError("it takes Valgrind (apt-get install valgrind)")
    for line in lines(measure(package, calls)):
        click.echo(line)


if __name__ == "__main__":
    main()
