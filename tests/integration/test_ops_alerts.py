"""Alerts over real sockets, from failing calls to webhooks, with the operator's silences."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from llm_guard.admin.api.alerts import AlertsView, AlertView, SilenceView, WebhookTestResult
from llm_guard.admin.audit.changes import Changed
from llm_guard.admin.schemas.incidents import Incident
from tests.admin_client import HOST, look, view
from tests.chaos.forms import CHAT
from tests.chaos.sinks import refusing
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import Hold, ScriptedProvider, Step, whole
from tests.fakes.waiting import eventually
from tests.tokens import NAMED, bearer

GOOD, BAD = CHAT.ok, [whole(500)]
TAKEN: Sequence[Step] = [whole(202)]
RULES: Mapping[str, Any] = {
    "success_rate": {"min_calls": 3, "resolve_after": "0s"},
    "breaker_open": "off", "failure_spike": "off", "loop_lag": "off",
}  # fmt: skip


def ops(*webhooks: Mapping[str, Any], **rules: Any) -> dict[str, Any]:
    return {"alerts": {**RULES, **rules}, "webhooks": list(webhooks)}


async def change(url: str, path: str, **body: object) -> Reply:
    headers = {**HOST, "content-type": "application/json", **bearer(NAMED["anna"])}
    return await ask(url, path, json.dumps({"reason": "a test", **body}).encode(), headers)


async def alerts(stand: Stand) -> AlertsView:
    return await view(stand.url, "/admin/alerts", AlertsView)


async def firing(stand: Stand, count: int = 1) -> list[AlertView]:
    """Waits until `count` alerts are firing and returns the view."""
    async with asyncio.timeout(5):
        while len(found := (await alerts(stand)).firing) != count:  # noqa: ASYNC110 - it is behind a page
            await asyncio.sleep(0.02)
    return found


async def fail_calls(stand: Stand, count: int = 3) -> None:
    for _ in range(count):
        assert (await CHAT.ask(stand.url)).status >= 500


def sent(receiver: ScriptedProvider) -> list[Any]:
    """Returns the bodies of all requests."""
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in receiver.requests]


async def test_outage_is_notified_once_and_so_is_its_end() -> None:
    async with ScriptedProvider(TAKEN) as receiver:
        settings = ops({"url": receiver.url, "name": "team"})
        async with facing(BAD, BAD, BAD, GOOD, ops=settings) as (stand, _):
            await fail_calls(stand)
            (alert,) = await firing(stand)
            assert (alert.alert, alert.severity, alert.subject, alert.state) == (
                "success_rate",
                "critical",
                "gpt",
                "firing",
            )
            assert alert.summary == "gpt: 0 % of the last 3 calls succeeded (threshold 95 %)"
            for _ in range(100):
                assert (await CHAT.ask(stand.url)).status == 200
            await firing(stand, 0)
            await eventually(lambda: len(receiver.requests) == 2)
            first, second = (body["alerts"] for body in sent(receiver))
            assert [(each["id"], each["state"]) for each in (*first, *second)] == [
                (alert.id, "firing"),
                (alert.id, "resolved"),
            ]
            (resolved,) = (await alerts(stand)).resolved
            assert (resolved.id, resolved.state, resolved.since) == (alert.id, "resolved", alert.since)
            assert resolved.resolved_at is not None
            assert await stand.metric("llm_guard_alerts_total", alert="success_rate", severity="critical") == 1
            events = [event.facts["state"] for event in stand.app.ops.journal.since(0)[0] if event.kind == "alert"]
            assert events == ["firing", "resolved"]


QUICK = {"min_calls": 3, "resolve_after": "0s"}
MODELS = [f"m-{number}" for number in range(5)]


async def test_outage_of_a_provider_with_five_models_is_one_notice_and_one_end_for_each_webhook() -> None:
    rules = {
        "success_rate": QUICK, "calls_refused": {**QUICK, "over": "1s"}, "breaker_open": {"resolve_after": "0s"},
        "failure_spike": "off", "budget_exhausted": "off", "loop_lag": "off", "group_wait": "2s",
    }  # fmt: skip
    models = {name: {"deployments": [{"upstream": "one"}]} for name in MODELS}
    breaker = {"consecutive_failures": 2, "open_for": "200ms"}
    async with ScriptedProvider(TAKEN) as one, ScriptedProvider(TAKEN) as two:
        webhooks = [{"url": one.url, "name": "a"}, {"url": two.url, "name": "b", "min_severity": "critical"}]
        settings = {"alerts": rules, "webhooks": webhooks}
        with refusing() as (url, held):
            async with standing(config_of(url, ops=settings, models=models, breaker=breaker)) as stand:
                async with asyncio.timeout(15):
                    while not (one.requests and two.requests):
                        for model in MODELS * 5:
                            assert (await CHAT.ask(stand.url, model=model)).status >= 500
                found = (await alerts(stand)).firing
                assert {alert.subject for alert in found if alert.alert == "success_rate"} == set(MODELS)
                assert {alert.subject for alert in found if alert.alert == "calls_refused"} == set(MODELS)
                assert {alert.cause for alert in found} == {"outage:one"}
                (incident,) = await view(stand.url, "/admin/incidents", list[Incident])
                assert (incident.id, incident.severity, incident.upstream) == ("outage:one", "critical", "one")
                assert (set(incident.models), incident.share) == ({*MODELS, "gpt"}, 1.0)
                assert len(incident.alerts) == len(found)
                async with ScriptedProvider(GOOD, sock=held):
                    async with asyncio.timeout(60):
                        while (await alerts(stand)).firing:
                            for model in MODELS * 10:
                                await CHAT.ask(stand.url, model=model)
                    await eventually(lambda: len(one.requests) == len(two.requests) == 2, within_s=10)
                    assert await view(stand.url, "/admin/incidents", list[Incident]) == []
        for receiver in (one, two):
            (fired,), (resolved,) = (body["alerts"] for body in sent(receiver))
            assert (fired["state"], resolved["state"], fired["id"]) == ("firing", "resolved", resolved["id"])
            assert (fired["alert"], fired["severity"], fired["cause"]) == ("success_rate", "critical", "outage:one")
            listed = {(other["alert"], other["subject"]) for other in fired["others"]}
            assert len(listed) == len(fired["others"]) == len(found) - 1


async def test_unknown_path_is_an_incident_until_a_call_succeeds() -> None:
    lost = [whole(404, b'{"detail":"Not Found"}')]
    async with facing(lost, lost, lost, CHAT.ok) as (stand, _):
        for number in range(3):
            assert await view(stand.url, "/admin/incidents", list[Incident]) == [], number
            assert (await CHAT.ask(stand.url)).status == 404
        (incident,) = await view(stand.url, "/admin/incidents", list[Incident])
        assert (incident.id, incident.severity, incident.models) == ("configuration:one", "critical", ["gpt"])
        assert (await CHAT.ask(stand.url)).status == 200
        assert await view(stand.url, "/admin/incidents", list[Incident]) == []


async def test_page_shows_the_rules_and_how_webhooks_do_but_no_secret() -> None:
    async with ScriptedProvider(TAKEN) as receiver:
        headers = {"authorization": "Bearer s3cret-2"}
        webhook = {"url": f"{receiver.url}/services/T0KEN", "secret": "s3cret-1", "headers": headers}
        async with facing(BAD, ops=ops(webhook, {"url": "https://x.example/T0KEN"})) as (stand, _):
            reply = await look(stand.url, "/admin/alerts")
            seen = await alerts(stand)
            written = json.dumps(stand.log, default=str)
            assert not any(secret in reply.text + written for secret in ("T0KEN", "s3cret"))
            assert [webhook_view.name for webhook_view in seen.webhooks] == [
                receiver.url.removeprefix("http://"),
                "x.example",
            ]
            off = [rule.alert for rule in seen.rules if rule.settings is None]
            assert off == ["breaker_open", "failure_spike", "loop_lag"]
            (success,) = (rule for rule in seen.rules if rule.alert == "success_rate")
            assert success.settings is not None
            assert (success.settings["below"], success.settings["min_calls"], success.fired) == (0.95, 3, 0)


async def test_dead_webhook_delays_no_call_and_no_shutdown() -> None:
    async with ScriptedProvider([Hold()]) as receiver:
        settings = ops({"url": receiver.url, "name": "slow"}, {"url": "http://127.0.0.1:1", "name": "dead"})
        async with facing(BAD, BAD, BAD, GOOD, ops=settings) as (stand, _):
            await fail_calls(stand)
            await firing(stand)
            await eventually(lambda: receiver.requests)
            reply = await CHAT.ask(stand.url)
            assert reply.status == 200
            slow, dead = (await alerts(stand)).webhooks
            assert (slow.waiting, dead.waiting) == (1, 1)
            loop = asyncio.get_running_loop()
            began_at = loop.time()
        assert loop.time() - began_at < 5 + stand.lag_s
        lost = [line for line in stand.log if line["event"] == "alerts not delivered"]
        assert sorted((line["webhook"], line["count"]) for line in lost) == [("dead", 1), ("slow", 1)]


# silences


async def test_silenced_alert_is_not_notified_until_it_is_unsilenced() -> None:
    async with ScriptedProvider(TAKEN) as receiver:
        settings = ops({"url": receiver.url, "name": "team"})
        async with facing(BAD, ops=settings) as (stand, _):
            reply = await change(
                stand.url, "/admin/alerts/silence", alert="success_rate", subject="gpt", **{"for": "1h"}
            )
            assert reply.status == 200, reply.text
            assert reply.json["warnings"] == ["no firing alert matches this silence"]
            await fail_calls(stand)
            (alert,) = await firing(stand)
            assert alert.is_silenced
            (silence,) = (await alerts(stand)).silences
            assert (silence.alert, silence.subject, silence.reason) == ("success_rate", "gpt", "a test")
            assert silence.operator.startswith("anna from 127.0.0.1")
            assert receiver.requests == []
            reply = await change(stand.url, "/admin/alerts/unsilence", alert="success_rate", subject="gpt")
            assert (reply.status, reply.json["now"]) == (200, [])
            await eventually(lambda: receiver.requests)
            trail = (await look(stand.url, "/admin/audit")).json
            assert [(each["action"], each["target"], each["reason"]) for each in trail[:2]] == [
                ("alerts.unsilence", "success_rate: gpt", "a test"),
                ("alerts.silence", "success_rate: gpt", "a test"),
            ]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("silence", {"alert": "sucess_rate", "for": "1h"}, 422, "sucess_rate"),
        ("silence", {"alert": "latency"}, 422, "for"),
        ("silence", {"alert": "latency", "for": "1 day"}, 422, "for"),
        ("silence", {"alert": "latency", "for": "0s"}, 422, "greater than 0"),
        ("silence", {"alert": "latency", "for": "99999h"}, 422, "at most 9999h"),
        ("silence", {"alert": "latency", "for": "1h", "until": "x"}, 422, "until"),
        ("silence", {"alert": "latency", "for": "1h", "reason": ""}, 422, "reason"),
        ("unsilence", {"alert": "latency"}, 404, "there is no such silence"),
        ("test", {"webhook": "tem"}, 404, "known: team"),
    ],
)
async def test_impossible_action_states_its_reason(path: str, body: dict[str, Any], status: int, says: str) -> None:
    async with facing(BAD, ops=ops({"url": "http://127.0.0.1:1", "name": "team"})) as (stand, _):
        reply = await change(stand.url, f"/admin/alerts/{path}", **body)
        assert (reply.status, says in reply.json["error"]["message"]) == (status, True), reply.text


async def test_responses_match_the_description() -> None:
    async with ScriptedProvider(TAKEN) as receiver, facing(BAD, ops=ops({"url": receiver.url, "name": "team"})) as both:
        url = both[0].url
        reply = await change(url, "/admin/alerts/silence", alert="*", **{"for": "1h"})
        (silence,) = msgspec.json.decode(reply.body, type=Changed[list[SilenceView]]).now
        assert (silence.alert, silence.subject) == ("*", None)
        reply = await change(url, "/admin/alerts/test", webhook="team")
        assert msgspec.json.decode(reply.body, type=Changed[WebhookTestResult]).now == WebhookTestResult(True, None)


async def test_test_alert_is_sent_and_ends_at_once() -> None:
    async with ScriptedProvider(TAKEN) as receiver:
        webhook = {
            "url": receiver.url,
            "name": "team",
            "format": "pagerduty",
            "routing_key": "K",
            "min_severity": "critical",
        }
        async with facing(BAD, ops=ops(webhook)) as (stand, _):
            reply = await change(stand.url, "/admin/alerts/test", webhook="team")
            assert reply.json["now"] == {"is_delivered": True, "problem": None}
        assert [body["event_action"] for body in sent(receiver)] == ["trigger", "resolve"]
        assert "anna" in sent(receiver)[0]["payload"]["summary"]


async def test_test_of_a_dead_webhook_reports_the_failure() -> None:
    async with ScriptedProvider([whole(404)]) as gone, facing(BAD, ops=ops({"url": gone.url, "name": "team"})) as both:
        reply = await change(both[0].url, "/admin/alerts/test", webhook="team")
        assert reply.json["now"] == {"is_delivered": False, "problem": "answered 404: check its url"}
        assert len(gone.requests) == 1
