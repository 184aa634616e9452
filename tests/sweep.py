"""Checks in every test that no key used by the tests appears in the gateway's own output.

Learns keys where the gateway itself sees them (calls and configs), so tests need not register them, and plants one in
every raw request that carries none. Watches logs, admin responses, the audit trail, the cache, stored calls, and
requests to the store of a fleet. What is sent to the latter must not have a digest either by which a name or a key
could be guessed.
"""

from __future__ import annotations

import functools
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from hashlib import blake2b, sha1, sha256
from typing import Any

import structlog.testing

from llm_guard.admin.events.event_log import EventLog
from llm_guard.admin.http import operator_token, router
from llm_guard.admin.tracing import spans
from llm_guard.app import App
from llm_guard.config import Config
from llm_guard.dialects import DIALECTS
from llm_guard.log import LogWriter
from llm_guard.proxy import headers
from llm_guard.routing import key_files
from llm_guard.storage.audit_log import AuditFile
from llm_guard.storage.cache.response_store import MemoryCache
from llm_guard.storage.calls.sqlite_store import SqliteCallStore
from llm_guard.storage.shared.redis_script import RedisScript
from llm_guard.storage.shared.redis_store import RedisStore
from llm_guard.storage.snapshot_file import SnapshotFile
from llm_guard.upstreams.credentials.source import CredentialSource
from tests.chaos import process
from tests.fakes import client

PLANTED = "sk-CANARY-swept-0d9be1f2"
_FLEET = "the store of a fleet"
_DIGITS = 12
"""The least digits of a digest by which a guess could be confirmed."""
_SHORTEST = 8
"""Shorter keys (`k`, `right`) are also ordinary words and would give false alarms."""
_IN_TEXT = re.compile(r"""["']?(?:api_key|key|token)["']?: *["']([^"'$]+)["']""")


class Sweep:
    """Output captured in one test, and the keys of all tests."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self._names: set[str] = set()
        self._guesses: set[str] = set()
        """Digests of the names and keys that do not need a secret."""
        self._heard: list[tuple[str, str]] = []

    def learn(self, keys: Iterable[str | None]) -> None:
        """Adds keys that must not appear from now on."""
        self.keys.update(key for key in keys if key is not None and len(key) >= _SHORTEST)

    def learn_names(self, names: Iterable[str]) -> None:
        """Adds names; no digest of them may appear in the store of a fleet from now on."""
        for name in set(names) - self._names:
            self._names.add(name)
            for digest in (
                blake2b(name.encode(), digest_size=8),
                sha256(name.encode()),
                sha1(name.encode()),
            ):  # no protection
                self._guesses.add(digest.hexdigest()[:_DIGITS])

    def hear(self, where: str, what: object) -> None:
        """Captures a piece of the gateway's output."""
        self._heard.append((where, what.decode("utf-8", "replace") if isinstance(what, bytes) else str(what)))

    def take(self) -> list[str]:
        """Returns the captured output that holds a key, and clears the capture."""
        heard, self._heard = self._heard, []
        return [
            f"{where}: {key} in {what[:500]}"
            for where, what in heard
            for key in (self.keys | self._guesses if where == _FLEET else self.keys)
            if key in what
        ]


SWEEP = Sweep()
SWEEP.learn([PLANTED])


def listen(sweep: Sweep) -> None:
    """Patches the gateway so that `sweep` learns keys and captures output. Must run before any test is imported: some
    tests import the patched functions by name."""
    _after(headers, "caller_keys", lambda found, *_: sweep.learn(found))
    _before(App, "__init__", lambda _app, config, **_: sweep.learn(_keys_of(config)))
    _before(App, "__init__", lambda _app, config, **_: sweep.learn_names(_names_of(config)))
    _after(operator_token, "shared_token", lambda found, *_: sweep.learn([found[0]]))
    _after(key_files, "key_in", lambda found, *_: sweep.learn([found]))
    _before(
        CredentialSource, "_adopt", lambda _source, fetched, _left_s: sweep.learn([fetched.token, fetched.secret_key])
    )
    _before(process, "write", lambda _path, text: sweep.learn(_IN_TEXT.findall(text)))

    _before(LogWriter, "write", lambda _writer, line: sweep.hear("log", line))
    _before(
        structlog.testing.LogCapture, "__call__", lambda _self, _logger, _name, line: sweep.hear("log", _shown(line))
    )
    _after(router, "headers_of", lambda _headers, answer: sweep.hear("operator", answer.body))
    _before(AuditFile, "append", lambda _file, entries: sweep.hear("audit trail", entries))
    _before(MemoryCache, "put", lambda _store, _key, answer, _lasts_s: sweep.hear("cache", answer))
    _before(SqliteCallStore, "add", lambda _file, *calls: sweep.hear("kept call", calls))
    _before(SqliteCallStore, "answer", lambda _file, _id, answer, *_: sweep.hear("kept answer", answer))
    _before(RedisScript, "run", lambda _script, *arguments: sweep.hear(_FLEET, arguments))
    _before(RedisStore, "_run", lambda _store, _script, keys, args: sweep.hear(_FLEET, (keys, args)))
    _before(SnapshotFile, "write", lambda _file, content: sweep.hear("what is kept", content))
    _before(EventLog, "note", lambda _journal, _kind, **facts: sweep.hear("event", facts))
    _after(spans, "_known", lambda facts, *_: sweep.hear("span", facts))
    for dialect in DIALECTS.values():
        _after(dialect, "refusal_body", lambda body, *_: sweep.hear("refusal", body))
    _later(process, "_read_log", lambda _stream, served: sweep.hear("a process's log", served.log))
    _later(process, "_read_complaints", lambda _stream, served: sweep.hear("a process's errors", served.complaints))

    client.raw_request = _planting(client.raw_request)


def _keys_of(config: Config) -> list[str | None]:
    clients = [client_key.key for client_key in config.server.client_keys]
    operators = [config.ops.token, *(token.token for token in config.ops.tokens)]
    upstreams = config.upstreams.values()
    pools = [key.key for upstream in upstreams for key in upstream.api_keys]
    return [*clients, *operators, config.store.encryption_key, *(upstream.api_key for upstream in upstreams), *pools]


def _names_of(config: Config) -> Iterator[str]:
    """Yields the names and keys that a digest in the store could be of."""
    yield from filter(None, _keys_of(config))
    yield from (client.name for client in config.server.client_keys)
    for name, upstream in config.upstreams.items():
        yield name
        for model in ("", *config.models):
            yield f"{name}\n{upstream.base_url}\n{model}"


def _shown(line: MutableMapping[str, Any]) -> str:
    """Renders a log line as it would be written, including its traceback."""
    return f"{dict(line)} {traceback.format_exc() if line.get('exc_info') and sys.exc_info()[0] else ''}"


def _planting(raw_request: Callable[..., bytes]) -> Callable[..., bytes]:
    @functools.wraps(raw_request)
    def planted(
        target: str, body: bytes = b"", headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> bytes:
        # Skipped where a test sends a key of its own or sets `connection`.
        own = {name.lower() for name in headers or {}} & {"authorization", "x-api-key", "api-key", "connection"}
        key = {} if own else {"api-key": PLANTED}
        return raw_request(target, body, {**(headers or {}), **key}, method)

    return planted


def _before(owner: Any, name: str, tell: Callable[..., None]) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        tell(*arguments, **named)
        return function(*arguments, **named)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, tell: Callable[..., None]) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        tell(result, *arguments)
        return result

    setattr(owner, name, wrapped)


def _later(owner: Any, name: str, tell: Callable[..., None]) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    async def wrapped(*arguments: Any) -> Any:
        try:
            return await function(*arguments)
        finally:
            tell(*arguments)

    setattr(owner, name, wrapped)
