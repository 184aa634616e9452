"""The settings that `proxy.handler` serves calls with: a config and all that is derived from it, swapped as one."""

from __future__ import annotations

from llm_guard.config import Config
from llm_guard.proxy.caller_identity import Clients
from llm_guard.proxy.request_body.reader import BodyLimits
from llm_guard.resilience.retry.limits import Repeatable
from llm_guard.routing.route_table import RouteTable


class ProxySettings:
    """One config and its derived settings; built completely before any of it is used."""

    def __init__(self, config: Config, table: RouteTable) -> None:
        self.config = config
        self.table = table
        self.repeatable = Repeatable(config.server.idempotency)
        self.body_limits = BodyLimits(config)
        self.clients = Clients(config)
