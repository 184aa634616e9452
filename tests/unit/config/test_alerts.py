from __future__ import annotations

import pytest

from llm_guard.config import Config, ConfigError, WebhookConfig, parse_config
from llm_guard.resilience.alerts.rules import LatencySettings, SuccessRateSettings

BASE = """\
upstreams: {a: {dialect: openai, base_url: "http://a"}}
models: {gpt: {deployments: [{upstream: a}]}}
ops:
"""


def parse(text: str, **env: str) -> Config:
    return parse_config(f"{BASE}  {text}\n", "f.yaml", env)


def problems(text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, **env)
    return [line.removeprefix("f.yaml:4: ops.") for line in str(caught.value).split("\n")]


def webhook(text: str, **env: str) -> WebhookConfig:
    (found,) = parse(f"webhooks: [{text}]", **env).ops.webhooks
    return found


# rules


def test_rule_is_tuned_key_by_key_and_another_is_off() -> None:
    rules = parse("alerts: {success_rate: {below: 0.9, models: {gpt: 0.5}}, latency: off}").ops.alerts
    assert rules.success_rate == SuccessRateSettings(below=0.9, models={"gpt": 0.5})
    assert rules.latency is None
    assert rules.of("latency") is None
    assert rules.of("success_rate") is rules.success_rate


def test_durations_and_shares_of_a_rule_are_numbers() -> None:
    rules = parse("alerts: {latency: {rise: 1, over: 2m, for: 0s, severity: critical}}").ops.alerts
    assert rules.latency == LatencySettings(rise=1.0, over=120.0, for_=0.0, severity="critical")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "alerts: {latency: }",
            "alerts.latency: has no value; write off, or settings such as {severity: warning}",
        ),
        ("alerts: {latency: 5}", "alerts.latency: must be a mapping of keys, not a number"),
        ("alerts: {latncy: off}", "alerts.latncy: unknown key; did you mean latency?"),
        ("alerts: {latency: {rize: 1}}", "alerts.latency.rize: unknown key; did you mean rise?"),
        ("alerts: {latency: {over: 5}}", "alerts.latency.over: not a duration: 5; write 200ms, 5s, 2m or 1h"),
        (
            "alerts: {loop_lag: {severity: bad}}",
            "alerts.loop_lag.severity: must be 'critical', 'warning' or 'info'",
        ),
        (
            "alerts: {success_rate: {models: {gqt: 0.5}}}",
            "alerts.success_rate.models.gqt: no model has this name; did you mean gpt?",
        ),
        (
            "alerts: {latency: {models: {gqt: 2}}}",
            "alerts.latency.models.gqt: no model has this name; did you mean gpt?",
        ),
    ],
)  # fmt: skip
def test_invalid_rule_is_reported_by_its_place(text: str, expected: str) -> None:
    assert problems(text) == [expected]


# webhooks


def test_webhook_needs_an_address_alone() -> None:
    found = webhook('{url: "https://h.example:8443/x?y=z"}')
    assert (found.name, found.format, found.min_severity, found.send_resolved, found.rate) == (
        "h.example:8443", "generic", "info", True, 0.5,
    )  # fmt: skip
    assert (found.secret, found.routing_key, found.headers) == (None, None, {})


def test_secrets_of_a_webhook_are_from_variables_and_are_not_shown() -> None:
    env = {"U": "https://h.example/T0KEN", "K": "r0uting", "S": "s3cret"}
    headers = '{authorization: "Bearer ${S}"}'
    text = f'{{url: "${{U}}", format: pagerduty, routing_key: "${{K}}", secret: "${{S}}", headers: {headers}}}'
    found = webhook(text, **env)
    assert (found.url, found.routing_key, found.secret) == ("https://h.example/T0KEN", "r0uting", "s3cret")
    assert found.headers == {"authorization": "Bearer s3cret"}
    assert not any(secret in repr(found) for secret in ("T0KEN", "r0uting", "s3cret"))


def test_empty_secret_is_none() -> None:
    assert webhook('{url: "https://h", secret: "${S:-}"}').secret is None


@pytest.mark.parametrize(("text", "per_second"), [("1/s", 1.0), ("30/m", 0.5), ("36/h", 0.01)])
def test_rate_is_a_count_in_a_time(text: str, per_second: float) -> None:
    assert webhook(f'{{url: "https://h", rate: {text}}}').rate == pytest.approx(per_second)


NO_URL = "must be a URL such as https://hooks.example.com/llm-guard"
NO_KEY = "routing_key is needed for the format pagerduty, and for no other"


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("{url: h.example}", ".url", NO_URL),
        ("{url: 'ftp://h.example'}", ".url", NO_URL),
        ("{url: 'http://'}", ".url", NO_URL),
        ("{url: 'http://h:0/'}", ".url", NO_URL),
        ("{url: 'http://h:x/'}", ".url", NO_URL),
        ("{url: 'http://[::1/'}", ".url", NO_URL),
        (r'{url: "http://h/\r\nx: y"}', ".url", NO_URL),
        ("{url: 'http://h/a b'}", ".url", NO_URL),
        ("{url: 5}", ".url", "must be text, not a number; put it in quotes"),
        (
            "{url: 'http://u:p@h/'}", ".url",
            "must not contain a user or password; put an authorization header in headers",
        ),
        ("{url: 'http://h/#x'}", ".url", "must not contain a fragment"),
        ("{name: x}", ".url", "is missing"),
        ("{url: 'http://h', format: pagerduty}", "", NO_KEY),
        ("{url: 'http://h', routing_key: k}", "", NO_KEY),
        ("{url: 'http://h', rate: 30}", ".rate", "must be a rate such as 1/s, 30/m or 100/h"),
        ("{url: 'http://h', rate: 0/m}", ".rate", "must be a rate such as 1/s, 30/m or 100/h"),
        ("{url: 'http://h', headers: {Host: x}}", ".headers", "the gateway itself sets Host"),
        ("{url: 'http://h', headers: {X-LLM-Guard-A: x}}", ".headers", "the gateway itself sets X-LLM-Guard-A"),
        (
            r'{url: "http://h", headers: {x: "a\r\nb"}}', ".headers",
            "must be names of headers and their values, in printable ASCII without line breaks",
        ),
        (
            '{url: "http://h", headers: {"x y": a}}', ".headers",
            "must be names of headers and their values, in printable ASCII without line breaks",
        ),
    ],
)  # fmt: skip
def test_invalid_webhook_is_reported_by_its_place(text: str, place: str, reason: str) -> None:
    assert problems(f"webhooks: [{text}]") == [f"webhooks[0]{place}: {reason}"]


def test_two_webhooks_of_one_host_need_names() -> None:
    text = "webhooks: [{url: 'http://h/a'}, {url: 'http://h/b'%s}]"
    assert problems(text % "") == ["webhooks: the name h is used twice: names must be unique"]
    assert [webhook.name for webhook in parse(text % ", name: b").ops.webhooks] == ["h", "b"]


def test_problem_with_a_webhook_does_not_show_its_secrets() -> None:
    env = {"U": "http://u:s3cret@h/", "H": "s3cret\r\n"}
    text = "webhooks: [{url: '${U}'}, {url: 'http://h', headers: {x: '${H}'}, secret: '${H}'}]"
    assert not any("s3cret" in line for line in problems(text, **env))
