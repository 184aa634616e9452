"""The settings that `gateway.server` serves calls with: a config and all that is derived from it, swapped as one."""

from __future__ import annotations

from llm_guard.config import Config
from llm_guard.gateway.body_limit import BodyLimits
from llm_guard.gateway.clients import Clients
from llm_guard.policy.repeat import Repeatable
from llm_guard.routes import RouteTable


class Serving:
    """One config and its derived settings; built completely before any of it is used."""

    def __init__(self, config: Config, table: RouteTable) -> None:
        self.config = config
        self.table = table
        self.repeatable = Repeatable(config.server.repeat)
        self.body_limits = BodyLimits(config)
        self.clients = Clients(config)
