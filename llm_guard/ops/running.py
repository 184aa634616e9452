"""The gateway, as far as operators see it and act on it.

Owns no state. It is what `app` hands to the operator's side, and that to its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llm_guard.clock import Clock
from llm_guard.errands.errands import Errands
from llm_guard.gateway.answer_cache import AnswerCache
from llm_guard.gateway.counters import CallCounters
from llm_guard.gateway.listener import Listener
from llm_guard.gateway.server import Gateway
from llm_guard.health.engines import Engines
from llm_guard.health.prober import Prober
from llm_guard.reloads import Reloads


@dataclass(frozen=True, slots=True)
class Running:
    """`app` makes one."""

    gateway: Gateway
    reloads: Reloads
    counters: CallCounters
    listeners: Callable[[], list[Listener]]
    """The one for calls first."""
    clock: Clock
    dials: Callable[[str], int]
    """How often a connection to this origin was begun since the start."""
    prober: Prober
    errands: Errands
    engines: Engines
    cache: AnswerCache
    file_problems: Callable[[], Mapping[str, str | None]] = dict
    """What is wrong with keys and certificates in files, by what they are for; None: nothing."""
