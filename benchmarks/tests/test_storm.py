"""The page of the storms: a row missing from the page could hide a broken promise."""

from __future__ import annotations

import pytest

from benchmarks.storm.report import page
from benchmarks.storm.row import promised


def test_each_row_is_on_the_page() -> None:
    assert "| A47 | a storm | 1 | 1 |" in page([promised("A47", "a storm", "1", "1", holds=True)])


def test_a_row_that_no_section_names_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no section of storm\.md names A99"):
        page([promised("A99", "a storm", "1", "1", holds=True)])
