"""Reasoning of both dialects: which models have an effort, and a thinking budget where they have none.

Claude models differ by version (platform.claude.com, "Effort", "Adaptive thinking"): from 4.6 on they think adaptively,
Opus 4.5 has an effort besides its budget, and older ones from 3.7 on have a budget alone.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

_CLAUDE = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:-(\d{1,2}))?(?!\d)")
_CLAUDE_VERSION_FIRST = re.compile(r"claude-(\d+)-(\d)-")
_REASONING_MODEL = re.compile(r"(?:^|/)(?:o\d|gpt-(?:[5-9]|\d\d)|codex|computer-use)")
"""Models of OpenAI that take reasoning_effort, and refuse sampling parameters."""
_MODELS = 256
"""The most names of models whose patterns are remembered: clients may send any number of them."""
_LEAST_BUDGET = 1024
"""Anthropic refuses a smaller budget_tokens."""
_SHARES = {"low": 0.2, "medium": 0.5, "high": 0.75, "xhigh": 0.85, "max": 0.9}
"""Share of max_tokens that an effort may spend on thinking."""
_OFF = frozenset({"none", "minimal"})
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_OLD_EFFORTS = ("low", "medium", "high")

ClaudeThinking = Literal["adaptive", "effort", "budget", "none"]


def claude_thinking(model: str) -> ClaudeThinking:
    """Returns how a Claude model is made to think; `none`: it cannot, or is not known."""
    version = _claude_version(model)
    if version is None or version < (3, 7):
        return "none"
    if version >= (4, 6):
        return "adaptive"
    return "effort" if version >= (4, 5) and "opus" in model else "budget"


def takes_sampling(model: str) -> bool:
    """Returns whether a Claude model takes temperature and top_p: those after Opus 4.6 answer 400 (Anthropic's API
    description, `temperature`)."""
    version = _claude_version(model)
    return version is None or version <= (4, 6)


@lru_cache(_MODELS)
def _claude_version(model: str) -> tuple[int, int] | None:
    found = _CLAUDE_VERSION_FIRST.search(model) or _CLAUDE.search(model)
    return (int(found[1]), int(found[2] or 0)) if found is not None else None


def claude_effort(effort: str | None) -> str | None:
    """Returns the effort of Messages for OpenAI's; None: thinking stays off, or is not mentioned."""
    return effort if effort in _EFFORTS else None


def is_off(effort: str | None) -> bool:
    return effort in _OFF


def budget_for(effort: str | None, max_tokens: int) -> int | None:
    """Returns a budget below `max_tokens` for an effort; None: there is no room for thinking."""
    share = _SHARES.get(effort or "")
    if share is None or max_tokens <= _LEAST_BUDGET:
        return None
    return min(max(_LEAST_BUDGET, int(max_tokens * share)), max_tokens - 1)


def is_reasoning_model(model: str, family: str) -> bool:
    """Returns whether a model behind a chat endpoint takes reasoning_effort, and refuses max_tokens.

    Behind an address that no provider has, such as a company's own proxy, the name alone decides."""
    return family in ("openai", "azure", "local", "") and _is_named_like_reasoning(model)


@lru_cache(_MODELS)
def _is_named_like_reasoning(model: str) -> bool:
    return _REASONING_MODEL.search(model) is not None


def chat_effort(effort: str | None, budget: int | None) -> str | None:
    """Returns OpenAI's effort for that of any dialect, or for a thinking budget; None: neither was set."""
    if effort is not None:
        return effort if effort in _OLD_EFFORTS or is_off(effort) else "high"
    if not budget:
        return None
    return "low" if budget < 4096 else "medium" if budget < 16_384 else "high"
