"""By what calls are served: the config and what follows from it, built as a whole before any of it is used.

Owns that it belongs together. Does not own what is done with it (`gateway.server`).
"""

from __future__ import annotations

from llm_guard.config import Config
from llm_guard.gateway.body_limit import BodyLimits
from llm_guard.gateway.clients import Clients
from llm_guard.policy.repeat import Repeatable
from llm_guard.routes import RouteTable


class Serving:
    """One config's."""

    def __init__(self, config: Config, table: RouteTable) -> None:
        self.config = config
        self.table = table
        self.repeatable = Repeatable(config.server.repeat)
        self.body_limits = BodyLimits(config)
        self.clients = Clients(config)
