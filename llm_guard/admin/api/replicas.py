"""/admin/replicas: the gateways of the fleet, as this one sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Endpoint, EndpointGroup, answer
from llm_guard.admin.schemas.subsystems import FleetView, ReplicaView

if TYPE_CHECKING:
    from llm_guard.fleet.member import FleetMember, Replica


class ReplicaApi(EndpointGroup):
    """Endpoint of the fleet; `fleet` None: this gateway is alone."""

    def __init__(self, fleet: FleetMember | None) -> None:
        self._fleet = fleet

    def pages(self) -> list[Endpoint]:
        summary = "Lists the gateways of the fleet; null: this gateway is alone."
        return [Endpoint("GET", "/admin/replicas", summary, self._give, gives=FleetView | None)]

    def view(self) -> FleetView | None:
        """Returns the fleet as of the latest exchange."""
        if (fleet := self._fleet) is None:
            return None
        own = fleet.own()
        others = sorted(fleet.others, key=lambda replica: replica.id)
        replicas = [_view(own, own), *(_view(replica, own) for replica in others)]
        return FleetView(fleet.name, fleet.is_connected, fleet.problem or None, replicas)

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self.view())


def _view(replica: Replica, own: Replica) -> ReplicaView:
    status = replica.status
    return ReplicaView(
        replica.id,
        replica is own,
        status.version,
        status.config,
        status.config == own.status.config,
        status.names == own.status.names,
        round(status.up_s, 1),
        status.in_flight,
        status.calls,
        replica.open_breakers,
        status.is_draining,
        round(replica.age_s, 3),
        replica.kept_paces,
    )
