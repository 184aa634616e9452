"""All pages of the admin API: their description, and the rules that hold for each of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from inspect import isclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation

from llm_guard.admin.http.endpoint import Change, Endpoint
from llm_guard.admin.schemas import models
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_text, facing
from tests.chaos.wire import ask
from tests.effort import repeated
from tests.integration.operating import HERE, get, running

LOGINS = {"/dashboard/login", "/dashboard/logout"}
"""They change a browser's session and nothing in the gateway."""
QUESTIONS = {"/admin/explain", "/admin/config/validate", *LOGINS}
"""Pages that take a body and change nothing."""
CHANGES: dict[str, dict[str, Any]] = {
    "/admin/admit": {"model": "gpt"},
    "/admin/alerts/silence": {"alert": "*", "for": "1m"},
    "/admin/alerts/unsilence": {"alert": "*"},
    "/admin/alerts/test": {"webhook": "nobody"},
    "/admin/breakers/force-closed": {"deployment": "one/gpt"},
    "/admin/breakers/force-open": {"deployment": "one/gpt", "for": "1m"},
    "/admin/breakers/reset": {"deployment": "one/gpt"},
    "/admin/cache/purge": {"all": True},
    "/admin/chaos": {"model": "gpt", "fault": {"kind": "hang"}, "share": 0.5},
    "/admin/chaos/end": {"id": "chaos-1"},
    "/admin/clients/reset": {"client": "app"},
    "/admin/config/reload": {},
    "/admin/config/rollback": {},
    "/admin/dead-letters/requeue": {"all": True},
    "/admin/dead-letters/{id}": {},
    "/admin/dead-letters/delete": {"all": True},
    "/admin/degraded/enter": {"for": "1m"},
    "/admin/degraded/exit": {},
    "/admin/degraded/auto": {},
    "/admin/deployments/cordon": {"deployment": "one/gpt", "for": "1m"},
    "/admin/deployments/drain": {"deployment": "one/gpt"},
    "/admin/deployments/reset": {"deployment": "one/gpt"},
    "/admin/deployments/uncordon": {"deployment": "one/gpt"},
    "/admin/engines/reset": {"engine": "e"},
    "/admin/engines/restart": {"engine": "e"},
    "/admin/engines/start": {"engine": "e"},
    "/admin/engines/stop": {"engine": "e"},
    "/admin/limits": {"deployment": "one/gpt", "concurrency": 2},
    "/admin/limits/reset": {"deployment": "one/gpt"},
    "/admin/log-levels": {"logger": "llm_guard.app", "level": "info"},
    "/admin/probes/now": {},
}
"""A valid change for every page, to be made in this order."""
ENGINES = {"e": {"upstreams": ["own"], "docker": {"container": "e", "socket": "/no/such"}, "standby": True}}
OWN = {"own": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1"}}
CLIENTS = {"client_keys": [{"name": "app", "key": "k-app", "limits": {"rate": 100}}]}
WEBHOOK = {"name": "nobody", "url": "http://127.0.0.1:9/hook"}


def pages(stand: Stand) -> tuple[Endpoint, ...]:
    return stand.app.ops._site.pages


async def changed(stand: Stand) -> list[dict[str, Any]]:
    return [event.facts for event in stand.app.ops.journal.since(0)[0] if event.kind == "change"]


async def test_every_endpoint_that_changes_anything_requires_a_reason_and_is_audited(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    text = config_text(
        "http://127.0.0.1:9", ops={"chaos": True, "webhooks": [WEBHOOK]}, upstreams=OWN, engines=ENGINES, server=CLIENTS
    )
    path.write_text(text)
    async with running(path) as stand:
        changing = {page.path: page for page in pages(stand) if page.method != "GET" and page.path not in QUESTIONS}
        assert changing.keys() == CHANGES.keys(), "a page that changes something is missing in CHANGES"
        assert all(page.takes is not None and issubclass(page.takes, Change) for page in changing.values())
        changed_text = config_text(
            "http://127.0.0.1:9",
            timeout={"idle": "7s"},
            ops={"chaos": True, "webhooks": [WEBHOOK]},
            upstreams=OWN,
            engines=ENGINES,
            server=CLIENTS,
        )
        path.write_text(changed_text)
        headers = {"x-llm-guard-dead-letter": "true", "authorization": "Bearer k-app"}
        failed = await ask(stand.url, CHAT.path, CHAT.body(), headers)
        letter = failed.headers["x-llm-guard-dead-letter"]
        for name, body in CHANGES.items():
            method, target = changing[name].method, name.replace("{id}", letter)
            refused = await ask(stand.url, target, json.dumps(body).encode(), HERE, method)
            assert (refused.status, "reason" in refused.text) == (422, True), name
            before = len(await get(stand.url, "audit"))
            said = json.dumps({**body, "reason": f"to test {name}"}).encode()
            reply = await ask(stand.url, target, said, HERE, method)
            assert (reply.status, reply.json["audited"]) == (200, True), reply.text
            entries = [each for each in await get(stand.url, "audit") if each["reason"] == f"to test {name}"]
            assert [(entry["actor"], bool(entry["action"])) for entry in entries] == [("ann from 127.0.0.1", True)], (
                name
            )
            assert len(await get(stand.url, "audit")) > before
            operators = [each["reason"] for each in await changed(stand) if each["actor"] != "engines"]
            assert operators[-1] == f"to test {name}"


async def test_question_with_a_body_changes_nothing() -> None:
    bodies = {"/admin/explain": {"model": "gpt"}, "/admin/config/validate": {"text": "models: {}"}}
    async with facing(CHAT.ok) as (stand, provider):
        assert {page.path for page in pages(stand) if page.method != "GET"} - CHANGES.keys() == QUESTIONS
        before = await fingerprint(stand)
        for path, body in bodies.items():
            assert (await ask(stand.url, path, json.dumps(body).encode(), HERE)).status == 200
        assert await fingerprint(stand) == before
        assert provider.requests == []


async def fingerprint(stand: Stand) -> dict[str, Any]:
    """Captures everything that an operator can change, and the events."""
    now = stand.app._clock.now()
    return {
        "events": stand.app.ops.journal.last_id,
        "breakers": [deployment.breaker.snapshot(now) for deployment in stand.app.gateway.deployments()],
        "hosts": [deployment.host.snapshot(now) for deployment in stand.app.gateway.deployments()],
        "holds": [deployment.hold for deployment in stand.app.gateway.deployments()],
        "limits": [
            (deployment.budget.settings, deployment.gates.settings) for deployment in stand.app.gateway.deployments()
        ],
        "config": [adopted.how for adopted in stand.app.reloads.history],
        **{name: await get(stand.url, name) for name in ("audit", "alerts", "log-levels")},
    }


async def test_get_has_no_side_effect(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with facing(CHAT.ok, ops={"store": str(folder)}) as (stand, provider):
        call = (await CHAT.ask(stand.url)).headers["x-llm-guard-request-id"]
        await stand.idle()
        asked = [page for page in pages(stand) if page.method == "GET" and page.live is None]
        assert len(asked) > 15
        before = await fingerprint(stand)
        for page in asked:
            target = page.path.replace("{id}", call).replace("{file}", "app.js")
            target += "?model=gpt" if page.path == "/admin/admit" else ""
            for method in ("GET", "HEAD"):
                assert (await ask(stand.url, target, headers=HERE, method=method)).status in (200, 404), target
        assert await fingerprint(stand) == before
        assert len(provider.requests) == 1
        assert not folder.exists()


async def test_pages_are_listed() -> None:
    async with facing(CHAT.ok) as (stand, _):
        listed = [
            (each["method"], each["path"])
            for each in (await ask(stand.url, "/admin", headers=HERE, method="GET")).json["pages"]
        ]
        assert listed == [(page.method, page.path) for page in pages(stand)]
        assert {count for _, count in Counter(listed).items()} == {1}
        assert all(page.summary.endswith(".") for page in pages(stand))


@pytest.mark.parametrize("target", ["/admin?x=1", "/admin/config?secrets=true", "/admin/health?" + "a=1&" * 65])
async def test_parameters_that_a_page_does_not_take_are_refused(target: str) -> None:
    async with facing(CHAT.ok) as (stand, _):
        reply = await ask(stand.url, target, headers=HERE, method="GET")
        assert (reply.status, reply.json["error"]["code"]) == (422, "invalid_query")


@pytest.mark.parametrize("body", [b"{", b'{"reason": "\xff"}'])
async def test_body_that_is_no_json_is_refused(body: bytes) -> None:
    async with facing(CHAT.ok) as (stand, _):
        reply = await ask(stand.url, "/admin/config/reload", body, HERE)
        assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_json")


async def test_wrong_method_gets_the_allowed_ones() -> None:
    async with facing(CHAT.ok) as (stand, _):
        reply = await ask(stand.url, "/admin/limits", headers=HERE, method="DELETE")
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, POST")
        reply = await ask(stand.url, "/admin/config/reload", headers=HERE, method="GET")
        assert (reply.status, reply.headers["allow"]) == (405, "POST")
        reply = await ask(stand.url, "/admin/calls/lg-1", headers=HERE, method="TRACE")
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert (await ask(stand.url, "/admin/nothing", headers=HERE, method="TRACE")).status == 404


@pytest.mark.parametrize(
    ("path", "said", "told"),
    [
        ("deployments/drain", {"deployment": "one/gpt", "for": "soon"}, "`for` is invalid. A duration such as 200ms"),
        (
            "deployments/drain",
            {"deployment": "one/gpt", "reason": " \n"},
            "`reason` is invalid. Reason for the audit",
        ),
        ("explain", {"model": "gpt", "path": "/v2/x"}, "`path` is invalid. A path under /v1/."),
        ("events?since=x", None, "`since` is invalid. The id of an event"),
    ],
)
async def test_no_operator_is_answered_with_a_regular_expression(
    path: str, said: dict[str, Any] | None, told: str
) -> None:
    async with facing(CHAT.ok) as (stand, _):
        if said is None:
            reply = await ask(stand.url, f"/admin/{path}", headers=HERE, method="GET")
        else:
            body = json.dumps({"reason": "to test"} | said if path != "explain" else said).encode()
            reply = await ask(stand.url, f"/admin/{path}", body, HERE)
        assert reply.status == 422
        assert reply.json["error"]["message"].startswith(told)


# the description


async def document_of(stand: Stand) -> dict[str, Any]:
    document: dict[str, Any] = (await ask(stand.url, "/admin/openapi.json", headers=HERE, method="GET")).json
    return document


async def test_description_names_every_endpoint_with_its_parameters_and_response() -> None:
    async with facing(CHAT.ok) as (stand, _):
        document = await document_of(stand)
        described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
        assert described == {
            (page.method, page.path)
            for page in pages(stand)
            if page.path != "/" and not page.path.startswith("/dashboard")
        }  # fmt: skip
        operations = [(path, *each) for path, item in document["paths"].items() for each in item.items()]
        names = Counter(operation["operationId"] for _, _, operation in operations)
        assert set(names.values()) == {1}
        for path, method, operation in operations:
            assert (method in ("post", "delete")) == ("requestBody" in operation), path
            assert path.startswith("/admin") == ("security" in operation), path
            (content,) = operation["responses"]["200"]["content"].values()
            assert content["schema"], path
        assert not [name for name in document["components"]["schemas"] if "." in name]


async def test_description_states_meaning_and_period_of_every_figure() -> None:
    shown = {name for name in models.__all__ if isclass(getattr(models, name))} - {"BreakerOverrideView"}
    async with facing(CHAT.ok) as (stand, _):
        schemas = (await document_of(stand))["components"]["schemas"]
        silent = [
            f"{name}.{each}"
            for name in shown
            for each, schema in schemas[name]["properties"].items()
            if not schema.get("description") and each != "kind"  # the discriminator of a message
        ]
        assert silent == []
        assert "last 100 calls" in schemas["Traffic"]["properties"]["success_rate"]["description"]
        assert "last minute" in schemas["DeploymentView"]["properties"]["success_rate"]["description"]
        assert "since the start" in schemas["ModelView"]["properties"]["outcomes"]["description"]


async def test_headers_that_a_page_reads_are_described() -> None:
    async with facing(CHAT.ok) as (stand, _):
        found = {
            (path, method): [each["name"] for each in operation.get("parameters", ()) if each["in"] == "header"]
            for path, item in (await document_of(stand))["paths"].items()
            for method, operation in item.items()
        }
        changing = {page.path for page in pages(stand) if page.takes is not None and issubclass(page.takes, Change)}
        assert {path for (path, _), names in found.items() if names == ["x-llm-guard-operator"]} == changing
        assert found["/admin/events", "get"] == found["/admin/events/ws", "get"] == ["Last-Event-ID"]


NOT_TRIED = ("/admin/events", "/admin/events/ws", "/admin/alerts/test", "/admin/config/reload")
"""Endless, sent to other hosts, or read from a file."""
load_all_checks()


def with_real_names(document: dict[str, Any]) -> dict[str, Any]:
    """Restricts the description's deployments and engines to existing ones."""
    for schema in document["components"]["schemas"].values():
        fields = schema.get("properties", {})
        # Only request bodies forbid additional properties.
        if "deployment" in fields and schema.get("additionalProperties") is False:
            fields["deployment"] = {"enum": ["one/gpt", "two/claude"]}
            for optional in fields.keys() & {"upstream", "model"}:
                fields[optional] = {"type": "null"}
        if "engine" in fields and schema.get("additionalProperties") is False:
            fields["engine"] = {"enum": list(ENGINES)}
    return document


def try_all(url: str, document: dict[str, Any], mode: GenerationMode) -> dict[str, set[int]]:
    """Returns the statuses of each operation; raises if a response does not match the description."""
    return {operation.label: try_one(url, operation, mode) for operation in operations_of(document, mode)}


def operations_of(document: dict[str, Any], mode: GenerationMode) -> Iterator[APIOperation[Any, Any, Any, Any]]:
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        has_input = operation.body or operation.query or operation.path_parameters
        if operation.path not in NOT_TRIED and (mode is GenerationMode.POSITIVE or has_input):
            yield operation


def try_one(url: str, operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode) -> set[int]:
    statuses: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=repeated(8), derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def check(case: Any) -> None:
        response = case.call(base_url=url, headers=HERE)
        statuses.add(response.status_code)
        case._has_explicit_auth = True  # makes it also try without a token and with a wrong one
        case.validate_response(response, checks=CHECKS.get_all())

    check()
    return statuses


async def test_responses_match_the_description() -> None:
    async with facing(CHAT.ok, upstreams=OWN, engines=ENGINES, ops={"chaos": True}) as (stand, _):
        await CHAT.ask(stand.url)
        document = with_real_names(await document_of(stand))
        seen = await asyncio.to_thread(try_all, stand.url, document, GenerationMode.POSITIVE)
        never = {label for label, statuses in seen.items() if 200 not in statuses}
        # There is no earlier config, no call, client key, dead letter or fault with such a name, and no silence.
        assert never <= {
            "POST /admin/config/rollback", "GET /admin/calls/{id}", "POST /admin/alerts/unsilence",
            "GET /admin/dead-letters/{id}", "DELETE /admin/dead-letters/{id}", "POST /admin/clients/reset",
            "POST /admin/chaos/end",
        }  # fmt: skip
        assert not [line for line in stand.log if line["event"] == "admin request failed"]


async def test_undocumented_input_is_refused() -> None:
    async with facing(CHAT.ok) as (stand, _):
        document = await document_of(stand)
        # Otherwise it generates megabytes of text.
        del document["components"]["schemas"]["ConfigText"]["properties"]["text"]["maxLength"]
        seen = await asyncio.to_thread(try_all, stand.url, document, GenerationMode.NEGATIVE)
        assert len(seen) > 12
        assert not [line for line in stand.log if line["event"] == "admin request failed"]
