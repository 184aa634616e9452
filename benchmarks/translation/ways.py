"""The gateway and the libraries, each called as an application calls it, before the stand-in."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from benchmarks.rig import gateway
from benchmarks.translation.corpus import PATHS, Case
from benchmarks.translation.stand_in import FIRST, StandIn
from llm_guard.dialects.sse import events_in

Json = dict[str, Any]

LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "litellm": ("litellm==1.106.2", "mcp", "websockets"),
    "any-llm": ("any-llm-sdk[anthropic,openai]==1.40.2",),
}
"""Requirements by name. litellm imports the others for calls with tools and for Responses."""
_CALL_WITHIN_S = 30.0
_LIBRARY_HAS_READ_S = 0.5
_SCRIPT = Path(__file__).with_name("library_calls.py")
_DIALECTS = {"chat": "openai", "responses": "openai", "messages": "anthropic", "count_tokens": "anthropic"}


class LibraryError(Exception):
    """A library that could not be installed or started; the message says why."""


@dataclass(frozen=True, slots=True)
class Response:
    """What a client got for one case."""

    status: int = 200
    """Of the gateway's response; a library has none, and raises instead."""
    headers: Json | None = None
    body: Json | None = None
    events: Sequence[Json] | None = None
    """Of a stream."""
    raised: str = ""
    """What a library raised, or the gateway's error."""
    is_offered: bool = True
    """False: the library has no such endpoint."""


def through_gateway(cases: Sequence[Case], stand_in: StandIn) -> Iterator[tuple[Case, Response]]:
    """Yields the response to each case."""
    with gateway(config_of(cases), stand_in.url) as running:
        for case in cases:
            stand_in.has_begun.clear()
            yield case, _called(running.url, case, stand_in.has_begun)


def config_of(cases: Sequence[Case]) -> str:
    """Returns a config with a model and an upstream for each case. `{provider}` stands for the stand-in's address."""
    upstreams, models = {}, {}
    for case in cases:
        fields = {"dialect": _DIALECTS[case.upstream], "base_url": _address(case.name, case.upstream), "api_key": "k"}
        if (case.client, case.upstream) == ("responses", "chat"):
            fields["responses"] = "chat"
        upstreams[case.name] = {**fields, **case.settings.get("upstream", {})}
        deployment = {"upstream": case.name, "model": case.model, **case.settings.get("deployment", {})}
        model: Json = {"deployments": [deployment], "stream": {"recover": "off"}}
        if "translate" in case.settings:
            model["translate"] = case.settings["translate"]
        if case.first is not None:
            name = FIRST + case.name
            address = _address(name, case.client)
            upstreams[name] = {"dialect": _DIALECTS[case.client], "base_url": address, "api_key": "k"}
            models[f"{case.name}-back"] = model
            model = {"deployments": [{"upstream": name, "model": "first"}], "fallbacks": [f"{case.name}-back"]}
            model["stream"] = {"recover": "continue"}
        models[case.name] = model
    defaults = {"retry": {"max_attempts": 1}}
    server = {"port": 0, "drain": "1s", "client_keys": []}
    config = {"server": server, "ops": {"log": {"level": "error"}}}
    return yaml.safe_dump({**config, "upstreams": upstreams, "defaults": defaults, "models": models})


def _address(name: str, upstream: str) -> str:
    return f"{{provider}}/{name}" + ("/v1" if _DIALECTS[upstream] == "openai" else "")


def _called(url: str, case: Case, has_begun: threading.Event) -> Response:
    parts = urlsplit(url)
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01", **case.headers}
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_CALL_WITHIN_S)
    try:
        body = json.dumps({"model": case.name, **case.request})
        connection.request("POST", PATHS[case.client], body, headers)
        response = connection.getresponse()
        raw = _read(response, has_begun)
    finally:
        connection.close()
    found = {name.lower(): value for name, value in response.getheaders()}
    if response.status >= 400:
        return Response(response.status, found, raised=raw.decode("utf-8", "replace"))
    if "event-stream" not in found.get("content-type", ""):
        return Response(response.status, found, json.loads(raw))
    events = [json.loads(event.data) for event in events_in(raw) if event.data and event.data != b"[DONE]"]
    return Response(response.status, found, events=events)


def _read(response: http.client.HTTPResponse, has_begun: threading.Event) -> bytes:
    """Returns all that comes, and says when a part of it has come."""
    raw = b""
    try:
        while piece := response.read1():
            raw += piece
            has_begun.set()
    except http.client.IncompleteRead as cut:
        raw += cut.partial
    return raw


def through_library(
    name: str, cases: Sequence[Case], stand_in: StandIn, folder: Path
) -> Iterator[tuple[Case, Response]]:
    """Yields the response to each case. `folder` keeps the library's environment. Raises LibraryError."""
    python = installed(name, folder)
    stand_in.has_begun.clear()
    stand_in.breaks_after_s = _LIBRARY_HAS_READ_S
    asked = [
        {
            "name": case.name,
            "client": case.client,
            "upstream": case.upstream,
            "model": case.model,
            "request": case.request,
        }
        for case in cases
    ]
    with subprocess.Popen(
        [python, str(_SCRIPT), name, stand_in.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        try:
            for case, asking in zip(cases, asked, strict=True):
                running.stdin.write(json.dumps(asking) + "\n")
                running.stdin.flush()
                line = running.stdout.readline()
                if not line:
                    raise LibraryError(f"{name} ended in the case {case.name}")
                yield case, Response(**json.loads(line))
        finally:
            running.kill()


def installed(name: str, folder: Path) -> Path:
    """Returns the interpreter of an environment with the library, which is made where `folder` does not have it."""
    environment, wanted = folder / name, " ".join(LIBRARIES[name])
    python, ready = environment / "bin" / "python", environment / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(environment, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *LIBRARIES[name]]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LibraryError(f"{wanted} could not be installed:\n{done.stderr[-1000:]}")
        ready.write_text(wanted)
    return python
