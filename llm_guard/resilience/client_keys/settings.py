"""Settings of the limits of a client key (`resilience.client_keys.limits`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llm_guard.resilience.units import OptionalCount, Unit, at_least, nullable, number_from, or_none

_LOWEST_RATE = 0.001


@dataclass(frozen=True, slots=True)
class ClientLimitSettings:
    """Limits of a client key; null: no limit."""

    rate: Annotated[float | None, Unit(or_none(at_least(_LOWEST_RATE)), nullable(number_from(_LOWEST_RATE)))] = None
    """Calls a second, on average; a second's worth of them may come at once."""
    concurrency: OptionalCount = None
    """Calls at once. A deferred call counts while it is executed, not when it is accepted."""
    tokens_per_minute: OptionalCount = None
    """Tokens of input and output; a minute's worth of them may be used at once."""
    tokens_per_day: OptionalCount = None
    """The same, in a day of UTC."""

    @property
    def limits_tokens(self) -> bool:
        return self.tokens_per_minute is not None or self.tokens_per_day is not None


NO_LIMITS = ClientLimitSettings()
