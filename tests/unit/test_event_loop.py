"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc

import pytest

from llm_guard.event_loop import calm_collector


def test_start_frees_young_garbage_alone_and_never_looks_at_the_objects_of_the_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threshold, is_enabled = gc.get_threshold(), gc.isenabled()
    looked_at: list[int] = []
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    gc.callbacks.append(lambda phase, info: looked_at.append(info["generation"]) if phase == "start" else None)
    try:
        gc.disable()
        calm_collector()
        assert looked_at == [1]
        assert frozen == [True]
        assert gc.get_threshold()[0] > threshold[0]
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*threshold)
        if is_enabled:
            gc.enable()
