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
