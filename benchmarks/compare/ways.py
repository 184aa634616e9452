"""The compared targets: no proxy, the gateway, a plain proxy, Envoy, and running peers.

Starts them, each alone on one processor, and determines their versions. They are measured in `measure`.
"""

from __future__ import annotations

import re
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.processes import NotStartedError, Way, pin, started, stop
from benchmarks.rig import GATEWAYS_CPU, gateway
from llm_guard.version import __version__

DIRECT, GUARDED, PLAIN, ENVOY = "no proxy", "llm_guard", "plain aiohttp", "Envoy"
COMPILED = "llm_guard compiled"
CONFIG = """
upstreams:
  provider: {dialect: openai, base_url: "{provider}/v1"}
defaults:
  timeout: {learned: {factor: 3, min: 10s}}
  breaker: {slow_call: 10s}
  capacity: {concurrency: 20000}
  hedge: {after: 10s}
models:
  gpt-4o: {deployments: [{upstream: provider}], fallbacks: [gpt-4o-mini]}
  gpt-4o-mini: {deployments: [{upstream: provider}]}
"""
"""Every policy is enabled, also those that are off by default, and none has a reason to act."""

_ENVOY_CONFIG = Path(__file__).parent.parent / "peers" / "envoy.yaml"
_ITS_PORT, _PROVIDERS_PORT = "port_value: 10000", "port_value: 9009"
_LISTENS_WITHIN_S = 15.0
_POLL_S = 0.05
_SPARE_DESCRIPTORS = 200


@contextmanager
def running(
    peers: Sequence[Way], envoy: Path | None, provider_port: int, compiled: Path | None = None
) -> Iterator[list[Way]]:
    """Starts all targets before one provider; the first is the provider itself. Raises NotStartedError. `compiled`: the
    folder of the compiled package, to be measured as well."""
    with ExitStack() as stack:
        provider = stack.enter_context(started("benchmarks.relay_peers", "provider", str(provider_port)))
        guarded = stack.enter_context(gateway(CONFIG, provider.url))
        plain = stack.enter_context(started("benchmarks.relay_peers", "plain", provider.url, cpu=GATEWAYS_CPU))
        ways = [
            Way(DIRECT, provider.url),
            Way(GUARDED, guarded.url, guarded.process),
            Way(PLAIN, plain.url, plain.process),
        ]
        if compiled is not None:
            quick = stack.enter_context(gateway(CONFIG, provider.url, compiled))
            ways.insert(2, Way(COMPILED, quick.url, quick.process))
        if envoy is not None:
            ways.append(stack.enter_context(_envoy(envoy, provider.url)))
        yield [*ways, *peers]


def parse_peers(urls: Sequence[str], pids: Sequence[str]) -> list[Way]:
    """Parses each `NAME=URL`, with the process of its `NAME=PID` if there is one; raises ValueError."""
    processes = {}
    for name, pid in map(_parse_named, pids):
        if not pid.isdecimal() or not psutil.pid_exists(int(pid)):
            raise ValueError(f"there is no process {pid}")
        processes[name] = psutil.Process(int(pid))
    found = []
    for name, url in map(_parse_named, urls):
        place = urlsplit(url)
        if place.scheme != "http" or place.hostname is None or place.port is None or place.path.strip("/"):
            raise ValueError(f"{url} is not http://HOST:PORT")
        found.append(Way(name, url, processes.pop(name, None)))
    if processes:
        raise ValueError(f"{', '.join(processes)}: a process of nobody who is compared")
    names = [DIRECT, GUARDED, COMPILED, PLAIN, ENVOY, *(way.name for way in found)]
    if len(set(names)) < len(names):
        raise ValueError("two have the same name")
    return found


def versions(envoy: Path | None) -> dict[str, str]:
    """Versions of the targets, as far as they are known."""
    found = {GUARDED: __version__, PLAIN: f"{version('aiohttp')} on uvloop {version('uvloop')}"}
    if envoy is not None:
        told = subprocess.run([envoy, "--version"], capture_output=True, text=True, check=False).stdout
        number = re.search(r"/(\d+\.\d+\.\d+)/", told)
        found[ENVOY] = number[1] if number else told.strip()
    return found


def find_envoy(named: str) -> Path:
    """The program, by its path or on the PATH; raises FileNotFoundError."""
    found = shutil.which(named)
    if found is None:
        raise FileNotFoundError(f"there is no program {named}: see benchmarks/peers/README.md")
    return Path(found)


def allow_descriptors(streams: int) -> None:
    """Raises the limit of file descriptors for this process and its children: a proxy holds two connections for each
    stream. Raises OSError."""
    needed = 2 * streams + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise OSError(f"{streams} streams at once need {needed} file descriptors (ulimit -n); {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def envoy_config(port: int, provider_port: int) -> str:
    """benchmarks/peers/envoy.yaml with these ports."""
    text = _ENVOY_CONFIG.read_text()
    assert text.count(_ITS_PORT) == text.count(_PROVIDERS_PORT) == 1
    return text.replace(_ITS_PORT, f"port_value: {port}").replace(_PROVIDERS_PORT, f"port_value: {provider_port}")


def _parse_named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise ValueError(f"{text} is not NAME=VALUE")
    return name, value


@contextmanager
def _envoy(program: Path, provider_url: str) -> Iterator[Way]:
    port, provider_port = _free_port(), urlsplit(provider_url).port
    assert provider_port is not None
    with tempfile.TemporaryDirectory() as folder, Path(folder, "said").open("w+") as said:
        config = Path(folder, "envoy.yaml")
        config.write_text(envoy_config(port, provider_port))
        popen = subprocess.Popen(
            [program, "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"],
            stdout=subprocess.DEVNULL, stderr=said, text=True,
        )  # fmt: skip
        try:
            pin(popen.pid, GATEWAYS_CPU)
            if not _listens(port, popen):
                said.seek(0)
                raise NotStartedError(str(program), popen.poll(), said.read())
            yield Way(ENVOY, f"http://127.0.0.1:{port}", psutil.Process(popen.pid))
        finally:
            stop(popen)


def _listens(port: int, popen: subprocess.Popen[str]) -> bool:
    give_up_at = time.monotonic() + _LISTENS_WITHIN_S
    while popen.poll() is None and time.monotonic() < give_up_at:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(_POLL_S)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
