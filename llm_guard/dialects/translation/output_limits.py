"""Finds a model's output limit in the error about a request that exceeded it."""

from __future__ import annotations

import re

_LIMITS = (
    re.compile(r"max_tokens: \d+ > (\d+), which is the maximum allowed number of output tokens"),
    re.compile(r"supports at most (\d+) completion tokens"),
    re.compile(r"maximum tokens you requested exceeds the model limit of (\d+)"),
)
"""The sentences of Anthropic, OpenAI and Bedrock."""


def limit_in(message: str) -> int | None:
    """Returns the largest `max_tokens` that the model accepts; None if the message names none."""
    for pattern in _LIMITS:
        if (found := pattern.search(message)) is not None:
            return int(found[1][:9])
    return None
