"""How often tests repeat what they do at random: examples, walks, kills.

`make test` repeats a quarter; `make thorough-tests`, which CI runs, repeats everything (LLM_GUARD_TEST_EFFORT=full). A
defect that only the full effort finds becomes an explicit example, which both run.
"""

from __future__ import annotations

import os

IS_FULL = os.environ.get("LLM_GUARD_TEST_EFFORT") == "full"
PART = 1 if IS_FULL else 4


def repeated(times: int, least: int = 1) -> int:
    """Returns how often to repeat what the full effort repeats `times` times: rounded up, and at least `least` times
    where fewer reach too little. Also scales the counts that show that the repetitions reached enough."""
    return max(-(-times // PART), least)
