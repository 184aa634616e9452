"""A full disk costs dead letters and deferred calls, which are counted, but no other call; with free space
everything resumes by itself."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chaos.forms import CHAT
from tests.chaos.wire import ask
from tests.fakes.provider import whole
from tests.fakes.small_disk import fill, small_disk
from tests.integration.calls_on_disk import ASYNC, DEAD_LETTER, defer, outcome, running_with_store

BUSY = (whole(503, b'{"error":{"message":"busy"}}'),)
LARGE = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": "x" * 1_000_000}]}).encode()
"""Large, because the file may still have room for small ones."""


async def test_calls_continue_while_the_disk_is_full_and_losses_are_counted(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        async with running_with_store(disk / "s", CHAT.ok, BUSY, BUSY, CHAT.ok, CHAT.ok) as (stand, _):
            before = await defer(stand)
            assert (await outcome(stand, before)).status == 200
            assert "x-llm-guard-dead-letter" in (await ask(stand.url, CHAT.path, CHAT.body(), DEAD_LETTER)).headers

            junk = fill(disk)
            lost = await ask(stand.url, CHAT.path, LARGE, DEAD_LETTER)
            assert (lost.status, "x-llm-guard-dead-letter" in lost.headers) == (503, False)
            refused = await ask(stand.url, CHAT.path, LARGE, ASYNC)
            assert (refused.status, refused.json["error"]["code"]) == (503, "deferral_failed")
            assert (await ask(stand.url, CHAT.path, CHAT.body())).status == 200
            assert (await outcome(stand, before)).status == 200
            assert await stand.metric("llm_guard_dead_letters_lost_total", reason="write_failed") == 1

            junk.unlink()
            assert (await outcome(stand, await defer(stand))).status == 200
