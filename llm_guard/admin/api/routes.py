"""/admin/routes: each model's deployments and fallbacks, in the order of the config.

`routing.route_table` compiles the routes; their live state is in `/admin/metrics`.
"""

from __future__ import annotations

from msgspec import Struct

from llm_guard.admin.http.cooperative import CooperativePauses
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, answer
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.config_reloader import ConfigReloader
from llm_guard.proxy.handler import Handler

_LOOKS_OF_A_STEP = 5


class RouteDeployment(Struct, frozen=True):
    """A deployment of a model."""

    deployment: str
    """The label."""
    priority: int
    """Deployments with a lower number are tried first."""
    weight: float
    """Share of the calls, relative to the others, with `balance: weighted`."""


class RouteStep(Struct, frozen=True):
    """A model with its deployments."""

    model: str
    """Name of the model."""
    entry: str
    """Its key in `models`: the name itself, or a pattern that matches it."""
    deployments: list[RouteDeployment]
    """Its deployments, those of the lowest priority number first; deployments of earlier steps are left out."""


class RouteView(Struct, frozen=True):
    """One entry of `GET /admin/routes`."""

    model: str
    """Name of the model, or a pattern."""
    balance: str
    """Order among deployments of one priority."""
    steps: list[RouteStep]
    """The model itself, then its fallbacks and theirs, in the order in which a call tries them."""


class RouteApi(EndpointGroup):
    """Endpoint of the routes."""

    def __init__(self, gateway: Handler, reloads: ConfigReloader, clock: Clock) -> None:
        self._gateway = gateway
        self._reloads = reloads
        self._clock = clock

    def pages(self) -> list[Endpoint]:
        summary = "Lists the routes: each model's deployments and fallbacks, in the order in which a call tries them."
        return [Endpoint("GET", "/admin/routes", summary, self._give, gives=list[RouteView])]

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        config, table, pauses = self._reloads.current.config, self._gateway.table, CooperativePauses(self._clock)
        views = []
        for key, model in config.models.items():
            steps = _steps(config, list(table.steps(key, key)))
            views.append(RouteView(key, model.balance, steps))
            await pauses.after(_LOOKS_OF_A_STEP * len(steps))
        return answer(views)


def _steps(config: Config, names: list[tuple[str, str]]) -> list[RouteStep]:
    seen: set[str] = set()
    steps = []
    for key, name in names:
        deployments = {
            label: RouteDeployment(label, deployment.priority, deployment.weight)
            for deployment in sorted(config.models[key].deployments, key=lambda deployment: deployment.priority)
            if (label := f"{deployment.upstream}/{deployment.model or key}") not in seen
        }
        seen |= deployments.keys()
        steps.append(RouteStep(name, key, list(deployments.values())))
    return steps
