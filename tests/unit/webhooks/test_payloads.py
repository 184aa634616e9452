from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from llm_guard.config import WebhookConfig
from llm_guard.resilience.alerts.rules import RULES
from llm_guard.webhooks.payloads import Notice, NoticeAlert, body, plain, url

WALL = 1_800_000_000.0
HOSTILE = "<!channel> <https://evil.example|click> &amp; *bold*\r\n\u2028next\x1b[31m\u202e line"


def config(form: str = "generic", **facts: Any) -> WebhookConfig:
    if form == "pagerduty":
        facts.setdefault("routing_key", "R0UTING")
    return WebhookConfig.model_validate({"url": "https://hooks.example.com/x?y=1", "format": form, **facts})


def notice(state: Any = "firing", **facts: Any) -> Notice:
    whole = {
        "id": "1800000000-1", "state": state, "alert": "success_rate", "severity": "critical", "subject": "gpt_4_turbo",
        "summary": "gpt_4_turbo: 80 % succeeded", "value": 0.8, "threshold": 0.95, "since": WALL - 60, "at": WALL,
    } | facts  # fmt: skip
    return Notice(**whole)


def sent(form: str, *notices: Notice) -> Any:
    return json.loads(body(config(form), notices, "host-1", WALL))


def test_generic_payload_has_all_fields_and_its_send_time() -> None:
    assert sent("generic", notice(), notice("resolved", id="2")) == {
        "version": 2,
        "source": "host-1",
        "sent_at": "2027-01-15T08:00:00.000Z",
        "alerts": [
            {
                "id": "1800000000-1", "state": "firing", "alert": "success_rate", "severity": "critical",
                "subject": "gpt_4_turbo", "summary": "gpt_4_turbo: 80 % succeeded", "value": 0.8, "threshold": 0.95,
                "since": "2027-01-15T07:59:00.000Z", "at": "2027-01-15T08:00:00.000Z", "cause": "", "others": [],
            },
            {
                "id": "2", "state": "resolved", "alert": "success_rate", "severity": "critical",
                "subject": "gpt_4_turbo", "summary": "gpt_4_turbo: 80 % succeeded", "value": 0.8, "threshold": 0.95,
                "since": "2027-01-15T07:59:00.000Z", "at": "2027-01-15T08:00:00.000Z", "cause": "", "others": [],
            },
        ],
    }  # fmt: skip


def test_slack_has_a_line_for_each_alert_and_no_markup() -> None:
    message = sent("slack", notice(), notice("resolved", severity="info"))
    first, second = message["text"].split("\n")
    assert first == "🔴 critical success_rate firing: gpt_4_turbo: 80 % succeeded [llm_guard on host-1]"
    assert second == "✅ info success_rate resolved: gpt_4_turbo: 80 % succeeded"
    assert message["mrkdwn"] is False


OTHERS = tuple(
    NoticeAlert("breaker_open", "info", f"one/m-{number}", "its breaker is open", 1.0, 1.0, WALL - 50)
    for number in range(7)
)


def test_others_of_one_cause_are_listed_in_each_format() -> None:
    grouped = notice(cause="outage:one", others=OTHERS)
    (alert,) = sent("generic", grouped)["alerts"]
    assert alert["cause"] == "outage:one"
    assert alert["others"][0] == {
        "alert": "breaker_open", "severity": "info", "subject": "one/m-0", "summary": "its breaker is open",
        "value": 1.0, "threshold": 1.0, "since": "2027-01-15T07:59:10.000Z", "resolved_at": None,
    }  # fmt: skip
    assert len(alert["others"]) == 7
    text = sent("slack", grouped)["text"]
    assert "(one cause, outage:one, also: breaker_open one/m-0, " in text
    assert "one/m-4, and 2 more)" in text
    trigger = sent("pagerduty", grouped)
    assert trigger["dedup_key"] == "llm_guard/host-1/outage:one"
    assert len(trigger["payload"]["custom_details"]["others"]) == 7


def test_alertmanager_gets_each_alert_with_the_common_cause_but_none_below_its_severity() -> None:
    ended = replace(OTHERS[0], resolved_at=WALL - 5)
    lead, other = sent("alertmanager", notice(cause="outage:one", others=(ended,)))
    assert lead["labels"]["cause"] == other["labels"]["cause"] == "outage:one"
    assert (other["labels"]["alertname"], other["labels"]["deployment"]) == ("llm_guard_breaker_open", "one/m-0")
    assert (lead["endsAt"], other["endsAt"]) == ("2027-01-15T08:04:00.000Z", "2027-01-15T07:59:55.000Z")
    severe = config("alertmanager", min_severity="warning")
    (only,) = json.loads(body(severe, [notice(others=OTHERS)], "host-1", WALL))
    assert only["labels"]["alertname"] == "llm_guard_success_rate"


def test_name_that_is_markup_is_only_text_for_slack() -> None:
    text = sent("slack", notice(summary=HOSTILE))["text"]
    assert text.count("\n") == 0
    assert "<" not in text
    assert ">" not in text
    assert "&lt;!channel&gt;" in text
    assert "&amp;amp;" in text


@pytest.mark.parametrize("form", ["generic", "slack", "pagerduty", "alertmanager"])
def test_no_format_is_sent_line_breaks_or_control_characters(form: str) -> None:
    text = json.dumps(sent(form, notice(summary=HOSTILE, subject=HOSTILE)), ensure_ascii=False)
    assert text.isprintable()
    assert "\\n" not in text
    assert "\\u" not in text


def test_pagerduty_triggers_and_resolves_under_one_key() -> None:
    trigger, resolve = sent("pagerduty", notice()), sent("pagerduty", notice("resolved"))
    assert trigger == {
        "routing_key": "R0UTING",
        "event_action": "trigger",
        "dedup_key": "llm_guard/host-1/success_rate/gpt_4_turbo",
        "payload": {
            "summary": "gpt_4_turbo: 80 % succeeded",
            "source": "host-1",
            "severity": "critical",
            "timestamp": "2027-01-15T07:59:00.000Z",
            "component": "gpt_4_turbo",
            "group": "llm_guard",
            "class": "success_rate",
            "custom_details": {"value": 0.8, "threshold": 0.95, "id": "1800000000-1", "cause": "", "others": []},
        },
    }
    assert resolve == {
        "routing_key": "R0UTING",
        "event_action": "resolve",
        "dedup_key": "llm_guard/host-1/success_rate/gpt_4_turbo",
    }


@pytest.mark.parametrize("subject", ["x" * 300, "a\nb", "\ud800"])
def test_key_for_pagerduty_is_short_and_printable_and_differs_with_the_subject(subject: str) -> None:
    keys = {sent("pagerduty", notice("resolved", subject=each))["dedup_key"] for each in (subject, subject + "y")}
    assert len(keys) == 2
    assert all(len(key) <= 255 and key.isprintable() and key.isascii() for key in keys)


def test_alertmanager_gets_the_end_of_an_alert_or_its_expected_end() -> None:
    (firing,), (resolved,) = sent("alertmanager", notice()), sent("alertmanager", notice("resolved", at=WALL - 5))
    assert firing == {
        "labels": {
            "alertname": "llm_guard_success_rate",
            "severity": "critical",
            "subject": "gpt_4_turbo",
            "model": "gpt_4_turbo",
            "job": "llm-guard",
            "instance": "host-1",
        },
        "annotations": {
            "summary": "gpt_4_turbo: 80 % succeeded",
            "description": "Measured by the gateway on host-1: 0.8, threshold 0.95.",
            "action": "GET /admin/calls?failed=true: the attempts of a call name the deployment and the reason.",
            "value": "0.8",
            "threshold": "0.95",
        },
        "startsAt": "2027-01-15T07:59:00.000Z",
        "endsAt": "2027-01-15T08:04:00.000Z",
    }
    assert resolved["labels"] == firing["labels"]
    assert resolved["endsAt"] == "2027-01-15T07:59:55.000Z"


@pytest.mark.parametrize(
    ("alert", "subject", "labels"),
    [
        ("success_rate", "gpt", {"model": "gpt"}),
        ("latency", "gpt (first token)", {"model": "gpt"}),
        ("latency", "gpt (whole answer)", {"model": "gpt"}),
        ("breaker_open", "one/gpt", {"deployment": "one/gpt"}),
        ("breaker_open", "one (host)", {"upstream": "one"}),
        ("failure_spike", "one/gpt", {"deployment": "one/gpt"}),
        ("budget_exhausted", "one/gpt", {"deployment": "one/gpt"}),
        ("budget_exhausted", "gpt (model)", {"model": "gpt"}),
        ("credential_cooldown", "one", {"upstream": "one"}),
        ("loop_lag", "gateway", {}),
        ("test", "webhook", {}),
    ],
)
def test_alertmanager_gets_the_labels_by_which_its_config_groups(
    alert: str, subject: str, labels: dict[str, str]
) -> None:
    (told,) = sent("alertmanager", notice(alert=alert, subject=subject))
    assert {name: told["labels"].get(name) for name in ("model", "deployment", "upstream")} == {
        "model": None, "deployment": None, "upstream": None, **labels,
    }  # fmt: skip


def test_every_rule_states_what_to_do() -> None:
    told = [each for name in RULES for each in sent("alertmanager", notice(alert=name))]
    assert all(each["annotations"]["action"] != "None: this is a test." for each in told)
    assert len({each["annotations"]["action"] for each in told}) == len(RULES)


def test_one_machine_does_not_resolve_the_pagerduty_alert_of_another() -> None:
    keys = {
        json.loads(body(config("pagerduty"), [notice(subject=subject)], host, WALL))["dedup_key"]
        for host in ("host-1", "host-2")
        for subject in ("gpt", "x" * 300)
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("http://am:9093", "http://am:9093/api/v2/alerts"),
        ("http://am:9093/", "http://am:9093/api/v2/alerts"),
        ("http://am/prefix", "http://am/prefix/api/v2/alerts"),
        ("http://am/api/v2/alerts", "http://am/api/v2/alerts"),
    ],
)
def test_address_of_an_alertmanager_is_made_whole(written: str, asked: str) -> None:
    assert url(config("alertmanager", url=written)) == asked
    assert url(config("generic", url=written)) == written


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\r\n b\x00\x1b[0m\tc", "a b [0m c"),
        ("\u2028\u202e x \ud800", "x"),
        ("x" * 301, "x" * 299 + "…"),
        ("x" * 300, "x" * 300),
        ("", ""),
    ],
)
def test_any_text_becomes_one_printable_line(text: str, line: str) -> None:
    assert plain(text) == line
