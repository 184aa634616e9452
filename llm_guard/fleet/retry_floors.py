"""The floors of retry budgets in a fleet: all gateways together have the free retries of one.

Else ten gateways would send ten times as many into an outage, before their breakers open and after that into a part of
it. The ratios of the budgets need no sharing: they follow each gateway's own calls.
"""

from __future__ import annotations

from collections.abc import Callable

from llm_guard.routing.route_table import RouteTable


class FleetRetryFloors:
    """The budgets of this gateway's deployments and routes."""

    def __init__(self, table: Callable[[], RouteTable]) -> None:
        self._table = table

    def share(self, gateways: int) -> None:
        """Divides the floors among so many gateways, this one included."""
        table = self._table()
        for budget in table.pool.budgets.values():
            budget.share(gateways)
        for deployment in table.deployments():
            deployment.share_budget(gateways)
