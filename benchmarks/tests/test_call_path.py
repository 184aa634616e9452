"""The path of one call stays short: see `benchmarks.call_path`."""

from __future__ import annotations

from benchmarks.call_path import MOST_FRAMES, walk


async def test_unary_call_crosses_few_coroutines() -> None:
    path = await walk()
    assert "proxy/handler.py: Handler.execute" in path.frames  # the walk has met the call at all
    assert len(path.frames) <= MOST_FRAMES, path.frames
