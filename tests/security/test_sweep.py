"""The sweep for keys across the test suite detects leaks: otherwise a broken sweep would let every test pass."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from llm_guard.admin.events.event_log import EventLog
from llm_guard.admin.http import router
from llm_guard.admin.http.endpoint import AdminResponse
from llm_guard.dialects import DIALECTS
from llm_guard.log import LogWriter
from llm_guard.outcome import Refusal
from llm_guard.storage.calls.bodies import Bodies
from llm_guard.storage.calls.redis_store import RedisCallStore
from llm_guard.storage.errors import StoreError
from tests.chaos.forms import CHAT
from tests.chaos.process import serving
from tests.chaos.stand import config_text
from tests.fakes.client import raw_request
from tests.fakes.clock import ManualClock
from tests.security.keys import UPSTREAM_KEY, keyed
from tests.sweep import PLANTED, SWEEP


def log_line() -> None:
    with capture_logs():
        structlog.get_logger().info("call", headers=[("api-key", PLANTED)])


def log_traceback() -> None:
    with capture_logs():
        try:
            raise RuntimeError(PLANTED)
        except RuntimeError:
            structlog.get_logger().exception("a call broke")


def written_line() -> None:
    writer = LogWriter(io.BytesIO())
    writer.write(f"{PLANTED}\n".encode())
    writer.close()


def refusal() -> None:
    DIALECTS["anthropic"].refusal_body(Refusal(400, "x", f"not this: {PLANTED}", by=None), "lg-1")


def stored_call() -> None:
    store = RedisCallStore("unix:///nowhere.sock", "x", "one", Bodies("plain", None), ManualClock())
    with pytest.raises(StoreError):
        store.mark_notified(PLANTED, "dead")


@pytest.mark.parametrize("leak", [log_line, log_traceback, written_line, refusal, stored_call])
def test_key_is_found_in_every_kind_of_output(leak: Callable[[], None]) -> None:
    """C55: in every kind of output."""
    leak()
    assert [PLANTED in found for found in SWEEP.take()] == [True]
    assert SWEEP.take() == []


def test_key_in_an_admin_response_is_found() -> None:
    """C55: in responses of the admin API."""
    vars(router)["headers_of"](AdminResponse(f"told {PLANTED}".encode()))
    assert [PLANTED in found for found in SWEEP.take()] == [True]


def test_key_in_an_event_is_found() -> None:
    """C55: in events."""
    EventLog(ManualClock()).note("reload", why=f"told {PLANTED}")
    assert [PLANTED in found for found in SWEEP.take()] == [True]


async def test_keys_of_configs_and_of_calls_are_known(tmp_path: Path) -> None:
    """C55: a raw call carries a key even if the test sets none."""
    assert PLANTED.encode() in CHAT.request()
    assert PLANTED.encode() not in raw_request("/", headers={"Authorization": "Bearer another"})
    async with keyed() as front:
        assert UPSTREAM_KEY in SWEEP.keys
        await CHAT.ask(front.url)
        assert front.provider.requests
    own = {"own": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1", "api_key": "sk-of-a-process"}}
    async with serving(tmp_path / "config.yaml", config_text("http://127.0.0.1:1", upstreams=own)) as served:
        assert "sk-of-a-process" in SWEEP.keys
        served.log.append({"event": "sk-of-a-process"})
    assert [found.partition(":")[0] for found in SWEEP.take()] == ["a process's log"]
