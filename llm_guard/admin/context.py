"""The running gateway, as `app` hands it to the admin API."""

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
    """References to the parts of the gateway that the admin API reads and acts on."""

    gateway: Gateway
    reloads: Reloads
    counters: CallCounters
    listeners: Callable[[], list[Listener]]
    """The listeners; the one for calls comes first."""
    clock: Clock
    dials: Callable[[str], int]
    """Connections begun to an origin since the start."""
    prober: Prober
    errands: Errands
    engines: Engines
    cache: AnswerCache
    file_problems: Callable[[], Mapping[str, str | None]] = dict
    """Problems with keys and certificates in files, by purpose; None: no problem."""
