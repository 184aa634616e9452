"""The path of one call stays short: see `benchmarks.call_path`."""

from __future__ import annotations

from benchmarks.call_path import MOST_FILES, MOST_FRAMES, walk


async def test_unary_call_crosses_few_coroutines_and_files() -> None:
    path = await walk()
    assert "proxy/handler.py: Handler.execute" in path.frames  # the walk has met the call at all
    assert len(path.frames) <= MOST_FRAMES, path.frames
    assert len(path.files) <= MOST_FILES, sorted(path.files)
