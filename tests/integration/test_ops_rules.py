"""The files in config/ for Prometheus, Alertmanager and Grafana are valid and refer to existing metrics."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from llm_guard.config import load_config
from llm_guard.outcome import FailureKind
from llm_guard.proxy.telemetry.recorder import _CLIENTS_FAILURES, _CLIENTS_REFUSALS
from llm_guard.resilience.alerts.rules import RULES as RULES_OF_THE_GATEWAY
from tests.tools import need

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "config" / "prometheus"
GRAFANA = ROOT / "config" / "grafana"
RULES = sorted(PROMETHEUS.glob("rules/*.yml"))
CASES = sorted(PROMETHEUS.glob("tests/*.yml"))
SURFACE = ROOT / "tests" / "architecture" / "public_surface.txt"

# Labels added by Prometheus, and those of rules and histograms.
_ALWAYS = {"instance", "job", "le", "alertname", "alertstate", "severity"}


def run(*line: str) -> str:
    """Runs a program that must succeed and returns its output."""
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "llm_guard.json").read_text())
    return found


def panel_queries() -> list[tuple[str, str]]:
    """Returns the title and query of each panel target, with values in place of Grafana's variables."""
    return [
        (panel["title"], re.sub(r"\$(model|deployment)", ".*", each["expr"].replace("$__rate_interval", "1m")))
        for panel in dashboard()["panels"]
        for each in panel.get("targets", ())
    ]


def queries() -> list[str]:
    return [rule["expr"] for rule in rules()] + [query for _, query in panel_queries()]


def products() -> dict[str, set[str]]:
    """Returns the product's metrics with their labels."""
    lines = SURFACE.read_text().partition("# metrics\n")[2].partition("\n\n")[0].splitlines()
    found = {}
    for line in lines:
        name, labels = re.fullmatch(r"(\w+)(?:\{(.*)\})? \w+", line).groups()  # type: ignore[union-attr]
        found[name] = set(labels.split(",")) if labels else set()
    return found


def named(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yields the product's metrics that a query names, with the labels it matches on."""
    for name, matchers in re.findall(r"(?<![\w:])(llm_guard_\w+)(?:\{([^}]*)\})?(?![\w:])", query):
        bare = re.sub(r"_seconds_(bucket|sum|count)$", "_seconds", name)
        yield bare, set(re.findall(r"(\w+)\s*[=!]", matchers))


# with Prometheus' own tools


def test_rules_and_scrape_config_are_valid() -> None:
    promtool = need("promtool")
    run(promtool, "check", "config", str(PROMETHEUS / "prometheus.yml"))
    said = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))
    assert said.count("SUCCESS") == len(RULES) == 3


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_not_when_they_should_not(path: Path) -> None:
    assert "SUCCESS" in run(need("promtool"), "test", "rules", str(path))


def test_every_query_of_the_dashboard_can_be_read(tmp_path: Path) -> None:
    asked = [{"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(panel_queries())]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": asked}]}))
    assert f"{len(asked)} rules found" in run(need("promtool"), "check", "rules", str(path))


def test_alertmanager_takes_its_config() -> None:
    assert "SUCCESS" in run(need("amtool"), "check-config", str(ROOT / "config" / "alertmanager" / "alertmanager.yml"))


# names exist


def test_every_alert_that_alertmanager_inhibits_by_is_prometheus_or_the_gateways_own() -> None:
    config = yaml.safe_load((ROOT / "config" / "alertmanager" / "alertmanager.yml").read_text())
    own = {f"llm_guard_{name}" for name in RULES_OF_THE_GATEWAY}
    matchers = [each for rule in config["inhibit_rules"] for key in ("source_matchers", "target_matchers")
                for each in rule[key]]  # fmt: skip
    named = {name for matcher in matchers for name in re.findall(r'[A-Za-z_]+(?=["|])', matcher)}
    assert named <= {rule["alert"] for rule in alerts()} | own
    assert named & own


def test_every_metric_and_label_that_is_named_is_the_products() -> None:
    known = products()
    for query in queries():
        for name, labels in named(query):
            assert name in known, f"there is no {name}: {query}"
            assert labels <= known[name] | _ALWAYS, f"{name} has no label {labels - known[name]}: {query}"


def test_every_label_that_is_summed_by_is_one_of_a_metric_of_the_query() -> None:
    known = products()
    for query in queries():
        grouped = {label.strip() for each in re.findall(r"\bby \(([^)]*)\)", query) for label in each.split(",")}
        there = set().union(*(known[name] for name, _ in named(query)))
        assert grouped <= there | _ALWAYS | {"model", "deployment"}, query


def test_every_rule_that_is_named_is_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    wanted = {name for query in queries() for name in re.findall(r"\b\w+:\w+:\w+\b", query)}
    assert wanted <= recorded
    assert recorded <= wanted, "a rule that nobody asks for"


def test_every_metric_of_the_product_is_on_the_dashboard() -> None:
    shown = {name for query in queries() for name, _ in named(query)}
    assert set(products()) - shown == set()


def test_client_caused_failures_are_those_that_the_gateway_defines() -> None:
    expected = {kind.label for kind in FailureKind if kind.category in _CLIENTS_FAILURES} | {"ok"}
    lists = [set(each.split("|")) for query in queries() for each in re.findall(r'outcome!~"([^"]*)"', query)]
    assert lists == [expected, expected]
    refusals = [set(each.split("|")) for query in queries() for each in re.findall(r'reason=~"([^"]*)"', query)]
    assert refusals == [_CLIENTS_REFUSALS]


# annotations of alerts


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alert_states_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "action", "runbook_url"}
    assert all(len(text) > 20 for text in rule["annotations"].values())


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alert_is_seen_to_fire_in_a_case(rule: dict[str, Any]) -> None:
    cases = [case for path in CASES for case in yaml.safe_load(path.read_text())["tests"]]
    fired = {
        name
        for case in cases
        for each in case.get("promql_expr_test", ())
        for sample in each["exp_samples"]
        for name in re.findall(r'alertname="(\w+)", alertstate="firing"', sample["labels"])
    }
    assert rule["alert"] in fired


def test_burn_rates_are_those_of_one_objective() -> None:
    text = (PROMETHEUS / "rules" / "slo.yml").read_text()
    assert re.findall(r"ratio_rate(\w+) > ([\d.]+) \* 0.01", text) == [
        ("1h", "14.4"), ("5m", "14.4"), ("6h", "6"), ("30m", "6"),
    ]  # fmt: skip


# Grafana


def test_panels_neither_overlap_nor_share_an_id() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_rows_are_in_the_order_of_a_calls_life() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    numbered = [int(title.split()[0]) for title in rows if title[0].isdigit()]
    assert numbered == list(range(1, 9))
    assert [title.split()[1].strip(":,") for title in rows if title[0].isdigit()] == [
        "Arrive", "Admit", "Wait", "Attempt", "Retry", "Fall", "Stream", "End",
    ]  # fmt: skip


def test_dashboard_queries_the_provisioned_data_source() -> None:
    [source] = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    assert variables["datasource"]["current"]["value"] == source["uid"]
    assert {each["datasource"]["uid"] for each in dashboard()["panels"] if "datasource" in each} == {"${datasource}"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard()))) - {"__rate_interval", "__all"}
    assert used == set(variables)


# compose.yaml


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return found


COMPOSE_SCHEMA = json.loads((ROOT / "tests" / "data" / "compose-spec" / "compose-spec.json").read_text())


def problems_of(found: dict[str, Any]) -> list[str]:
    """What the Compose Specification's schema does not allow, as PATH: PROBLEM."""
    errors = jsonschema_rs.Draft202012Validator(COMPOSE_SCHEMA).iter_errors(found)
    return [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in errors]


def test_compose_file_follows_the_compose_specification() -> None:
    assert problems_of(compose()) == []


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda services: services["gateway"].update(read_onyl=True), "services/gateway"),
        (lambda services: services["gateway"].update(cap_drop="ALL"), "services/gateway/cap_drop"),
        (lambda services: services["mock"]["healthcheck"].update(interval=[10]), "services/mock/healthcheck"),
        (lambda services: services["replica"]["deploy"].update(replicas=1.5), "services/replica/deploy/replicas"),
    ],
)
def test_mistake_in_a_compose_file_is_found(spoil: Callable[[dict[str, Any]], None], place: str) -> None:
    found = compose()
    spoil(found["services"])
    assert any(problem.startswith(place) for problem in problems_of(found))


def test_everything_in_compose_is_pinned_and_listens_on_this_machine_alone() -> None:
    for name, service in compose()["services"].items():
        image = service["image"]
        assert image == "llm-guard" or re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", image), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name


def test_files_that_compose_mounts_exist() -> None:
    sources = [
        volume.split(":")[0] for service in compose()["services"].values() for volume in service.get("volumes", ())
    ]
    files = [source for source in sources if source.startswith("./")]
    assert len(files) == 7
    assert all((ROOT / source).exists() for source in files)
    assert {source for source in sources if not source.startswith("./")} == set(compose()["volumes"])


def test_addresses_in_compose_are_those_that_are_scraped_and_alerted() -> None:
    services = compose()["services"]
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    [scrape] = config["scrape_configs"]
    [managers] = config["alerting"]["alertmanagers"]
    assert scrape["static_configs"][0]["targets"] == ["gateway:8080"]
    assert managers["static_configs"][0]["targets"] == ["alertmanager:9093"]
    assert {"gateway", "alertmanager"} <= set(services)
    [source] = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_config_of_the_image_uses_the_addresses_of_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in compose()["services"]["gateway"]["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:-(.*)\}", r"\1", value))
    config = load_config(ROOT / "config" / "docker.yaml")
    assert config.upstreams["openai"].base_url == "http://mock:8081/v1"
    assert config.upstreams["anthropic"].base_url == "http://mock:8081"
    assert config.ops.token is None
