"""Everything about an admin endpoint follows from its class and one line in the list of the control plane."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_guard.admin.control_plane import ControlPlane
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, answer
from llm_guard.config import Config
from tests.chaos.stand import config_text
from tests.chaos.wire import ask
from tests.integration.operating import HERE, change, get, post, running
from tests.tokens import VIEWER, bearer

ADMIN = Path(__file__).parents[2] / "llm_guard" / "admin"


class Water(Change):
    """The plant to water."""

    plant: str


class Plants(EndpointGroup):
    """An endpoint that only these tests have, below a root of its own."""

    def __init__(self) -> None:
        self.watered: list[str] = []
        self.models: list[str] = []
        self.is_closed = False
        self.looks = 0

    def pages(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/plants", "Lists the plants.", self._give, gives=list[str]),
            Endpoint("POST", "/admin/plants/water", "Waters a plant.", self._water, takes=Water, gives=list[str]),
        ]

    def adopt(self, config: Config) -> None:
        self.models = list(config.models)

    def look(self, now: float) -> None:
        self.looks += now > 0

    def close(self) -> None:
        self.is_closed = True

    async def _give(self, _asked: AdminRequest) -> AdminResponse:
        return answer(self.watered)

    async def _water(self, asked: AdminRequest) -> AdminResponse:
        self.watered.append(asked.body.plant)
        return answer(self.watered)


@pytest.fixture
def plants(monkeypatch: pytest.MonkeyPatch) -> Plants:
    """Adds one line to the list."""
    group, listed = Plants(), ControlPlane._groups

    def groups(self: ControlPlane, config: Config, folder: Callable[[], Path]) -> tuple[EndpointGroup, ...]:
        return (*listed(self, config, folder), group)

    monkeypatch.setattr(ControlPlane, "_groups", groups)
    return group


async def test_listed_class_is_routed_described_protected_reloaded_checked_and_closed(
    plants: Plants, tmp_path: Path
) -> None:
    path = tmp_path / "llm_guard.yaml"
    path.write_text(config_text("http://127.0.0.1:9"))
    async with running(path) as stand:
        assert (await post(stand.url, "plants/water", plant="fern")).json == ["fern"]
        assert (await ask(stand.url, "/plants", headers=HERE, method="GET")).json == ["fern"]
        assert (await post(stand.url, "plants/water", plant=1)).status == 422

        listed = {
            (page["method"], page["path"])
            for page in (await ask(stand.url, "/admin", headers=HERE, method="GET")).json["pages"]
        }
        assert {("GET", "/plants"), ("POST", "/admin/plants/water")} <= listed
        described = await get(stand.url, "openapi.json")
        assert described["paths"]["/plants"]["get"]["summary"] == "Lists the plants."
        assert described["components"]["schemas"]["Water"]["properties"].keys() == {"plant", "reason"}

        body = json.dumps({"plant": "ivy", "reason": "dry"}).encode()
        viewer = {"host": "localhost", **bearer(VIEWER)}
        assert (await ask(stand.url, "/admin/plants/water", body, viewer)).status == 403
        assert (await ask(stand.url, "/plants", headers=viewer, method="GET")).status == 200
        assert (await ask(stand.url, "/plants", headers={"host": "localhost"}, method="GET")).status == 401

        assert plants.models == []
        await change(stand.url, "config/reload")
        assert plants.models == list(stand.app.config.models)
        for check in stand.app.ops._watch._looks:
            check(1.0)
        assert (plants.looks > 0, plants.is_closed) == (True, False)
    assert plants.is_closed


def methods_of(node: ast.ClassDef) -> set[str]:
    return {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_class_with_endpoints_is_a_group() -> None:
    classes = [
        node
        for path in ADMIN.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and "pages" in methods_of(node) and node.name != "EndpointGroup"
    ]
    assert len(classes) > 20
    bases = {node.name: [ast.unparse(base) for base in node.bases] for node in classes}
    assert {name: found for name, found in bases.items() if found != ["EndpointGroup"]} == {}


def test_control_plane_calls_no_group_by_hand() -> None:
    tree = ast.parse((ADMIN / "control_plane.py").read_text())
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("pages", "adopt", "look", "close")
    }
    exporters = {"self._traces.adopt", "self._metrics_export.adopt"}
    assert calls == {*exporters, "self._site.adopt", "self._site.close", "saver.close"}
