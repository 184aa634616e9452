"""A route's rules beyond its targets: response cache, dead letters, deferred calls and fallback responses."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_guard.policy.degraded import DegradedSettings
from llm_guard.policy.freshness import CacheSettings
from llm_guard.policy.later import LaterSettings, Letters


@dataclass(frozen=True, slots=True)
class Lasting:
    """A route's rules."""

    cache: CacheSettings | None = None
    """None: every call goes to a provider."""
    letters: Letters = "on_request"
    later: LaterSettings = field(default_factory=LaterSettings)
    degraded: DegradedSettings | None = None
    """None: no fallback responses."""
    comes_first: bool = field(init=False)
    """True if there is something to do before a provider is tried."""

    def __post_init__(self) -> None:
        does = self.cache is not None or self.later.when == "always" or self.degraded is not None
        object.__setattr__(self, "comes_first", does)
