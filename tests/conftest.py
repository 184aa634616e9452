"""In every test: no key that the tests have is in anything that a gateway says of its own (see `tests.sweep`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sweep import SWEEP, listen

listen(SWEEP)


@pytest.fixture(autouse=True)
def _no_key_is_said() -> Iterator[None]:
    SWEEP.take()
    yield
    found = SWEEP.take()
    assert not found, found[:3]
