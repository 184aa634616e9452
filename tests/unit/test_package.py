"""What importing the package leaves behind."""

from __future__ import annotations

import gc
import importlib

import pytest

import llm_guard


@pytest.mark.parametrize("is_collecting", [True, False])
def test_garbage_collection_is_as_before_the_import(is_collecting: bool) -> None:
    try:
        (gc.enable if is_collecting else gc.disable)()
        importlib.reload(llm_guard)
        assert gc.isenabled() is is_collecting
    finally:
        gc.enable()


@pytest.mark.parametrize(("frozen", "expected"), [(0, ["freeze", "unfreeze"]), (1, [])])
def test_what_is_imported_is_old_unless_that_would_thaw_what_the_program_has_frozen(
    frozen: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: called.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: called.append("unfreeze"))
    importlib.reload(llm_guard)
    assert called == expected
