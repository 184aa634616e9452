from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest

from llm_guard.admin.incidents.grouping import ModelTraffic, Present, cause_of, incidents
from llm_guard.admin.restrictions.remedies import REMEDIES
from llm_guard.admin.schemas.incidents import Incident, IncidentAlert
from llm_guard.admin.schemas.restrictions import Lift, ProviderErrorView, Restriction, RestrictionKind
from llm_guard.outcome import Category
from llm_guard.resilience.alerts.alert import Severity
from llm_guard.resilience.causes.cause import IncidentCause, parsed

MODELS = [f"m-{number}" for number in range(5)]
LABELS = {f"one/{model}": "one" for model in MODELS}
RESET = Lift("POST", "/admin/deployments/reset", {"upstream": "one"}, "Resets it.")


def error(
    category: Category = "server_error", at: str = "2026-01-01T00:00:09Z", call: str = "c-1"
) -> ProviderErrorView:
    return ProviderErrorView(at, call, category, category, 500, "melted", "req-1", None)


def restriction(kind: RestrictionKind, deployment: str | None = None, **facts: Any) -> Restriction:
    shown = {
        "model": None, "upstream": "one", "cause": "it fails", "since": "2026-01-01T00:00:05Z", "until": None,
        "ends": "Later.", "waiting": 0, "is_caller_specific": False, "lift": RESET, "no_lift_reason": None,
        "rule": "5 failures in a row", "remedy": REMEDIES[kind], **facts,
    }  # fmt: skip
    return Restriction(kind, deployment, **shown)


def breakers(**facts: Any) -> list[Restriction]:
    """Returns the open breakers of five models of one upstream."""
    return [restriction("breaker", label, models=[label[4:]], refused=2, **facts) for label in LABELS]


def alert(name: str, subject: str, severity: Severity = "warning") -> IncidentAlert:
    return IncidentAlert(f"{name}-{subject}", name, subject, severity, f"{subject}: bad", "2026-01-01T00:00:06Z", False)


def found(
    restrictions: Sequence[Restriction] = (),
    alerts: Sequence[tuple[IncidentAlert, IncidentCause]] = (),
    errors: Sequence[ProviderErrorView] = (),
    models: Mapping[str, ModelTraffic] | None = None,
) -> list[Incident]:
    traffic = {model: ModelTraffic(20, 10, (f"one/{model}",)) for model in MODELS} | dict(models or {})
    return incidents(Present(restrictions, alerts, traffic, {**LABELS, "two/m-0": "two"}, {"one": errors}))


def test_five_breakers_of_one_upstream_are_one_incident() -> None:
    (incident,) = found(breakers(errors=[error()]))
    assert (incident.id, incident.upstream, incident.severity) == ("outage:one", "one", "critical")
    assert (incident.models, incident.deployments, incident.refused) == (MODELS, list(LABELS), 10)
    assert (incident.share, incident.since) == (0.5, "2026-01-01T00:00:05Z")
    assert incident.title == "one fails (server error, status 500, melted)"
    assert incident.actions == [RESET]
    assert len(incident.errors) == 1
    assert "No other deployment is left for m-0, m-1, m-2 and 2 more: calls wait or are refused." in incident.doing


def test_alerts_of_the_upstream_and_its_models_are_in_the_same_incident() -> None:
    outage = IncidentCause("outage", "one")
    alerts = [(alert("breaker_open", "one/m-0", "info"), outage), (alert("success_rate", "m-1", "critical"), outage)]
    (incident,) = found(breakers(), alerts)
    assert [shown.alert for shown in incident.alerts] == ["breaker_open", "success_rate"]
    assert incident.severity == "critical"


def test_two_upstreams_or_two_kinds_of_failure_are_two_incidents() -> None:
    assert len(found([restriction("breaker", "one/m-0"), restriction("breaker", "two/m-0", upstream="two")])) == 2
    spent = restriction("credential_cooldown", errors=[error("quota_exhausted")])
    kinds = {incident.kind for incident in found([restriction("breaker", "one/m-0"), spent])}
    assert kinds == {"outage", "quota"}


def test_symptom_of_a_model_joins_the_incident_of_its_upstream_and_else_is_its_own() -> None:
    late = restriction("deadline", None, model="m-0", upstream=None, models=["m-0"], lift=None)
    assert [incident.id for incident in found([late])] == ["model:m-0"]
    (incident,) = found([*breakers(), late])
    assert [one.kind for one in incident.restrictions][-1] == "deadline"
    (incident,) = found(breakers(), [(alert("latency", "m-0"), IncidentCause("model", "m-0"))])
    assert [shown.alert for shown in incident.alerts] == ["latency"]


def test_calls_that_go_elsewhere_are_named_and_the_incident_is_no_more_than_a_warning() -> None:
    serving = ModelTraffic(20, 0, ("one/m-0", "two/m-0"))
    (incident,) = found([restriction("breaker", "one/m-0", models=["m-0"])], models={"m-0": serving})
    assert incident.severity == "warning"
    assert "Calls of m-0 go to two/m-0." in incident.doing


def test_alert_without_restriction_has_the_errors_and_the_remedy_of_its_upstream() -> None:
    wrong = [error("not_found"), error("not_found", call="c-2")]
    alerts = [(alert("success_rate", "m-0", "critical"), IncidentCause("configuration", "one"))]
    (incident,) = found([], alerts, wrong)
    assert (incident.upstream, incident.models, len(incident.errors)) == ("one", ["m-0"], 2)
    assert "base_url" in incident.remedy
    assert "base_url" in incident.title


def test_upstream_that_knows_no_path_is_an_incident_without_any_alert() -> None:
    wrong = [error("invalid_request", at=f"2026-01-01T00:00:0{second}Z", call=f"c-{second}") for second in (9, 8, 7)]
    traffic = {"m-0": ModelTraffic(20, 0, ("one/m-0",))}
    present = Present([], [], traffic, LABELS, {"one": wrong}, frozenset({"one"}))
    (incident,) = incidents(present)
    assert (incident.id, incident.severity, incident.models) == ("configuration:one", "critical", ["m-0"])
    assert (incident.since, len(incident.errors)) == ("2026-01-01T00:00:07Z", 3)
    assert "base_url" in incident.remedy


def test_incident_without_a_deployment_left_is_critical_whatever_its_alerts() -> None:
    (incident,) = found(breakers(), [(alert("breaker_open", "one/m-0", "info"), IncidentCause("outage", "one"))])
    assert incident.severity == "critical"


def test_errors_of_another_kind_do_not_explain_an_incident() -> None:
    outage = [(alert("breaker_open", "one/m-0", "info"), IncidentCause("outage", "one"))]
    (incident,) = found([], outage, [error("quota_exhausted")])
    assert (incident.errors, incident.severity) == ([], "info")
    assert incident.doing == ["No calls are refused or delayed because of it now."]
    (incident,) = found(
        [restriction("cooldown", "one/m-0", errors=[error("quota_exhausted"), error("overloaded", "c-2")])]
    )
    assert [shown.category for shown in incident.errors] == ["quota_exhausted"]


def test_most_severe_incident_comes_first() -> None:
    small = restriction("concurrency", "two/m-0", upstream="two")
    assert [incident.id for incident in found([small, *breakers()])] == ["outage:one", "capacity:two/m-0"]


def test_nothing_wrong_is_no_incident() -> None:
    assert found() == []


@pytest.mark.parametrize("kind", get_args(RestrictionKind))
def test_each_kind_has_a_remedy_and_an_incident(kind: RestrictionKind) -> None:
    (incident,) = found([restriction(kind, "one/m-0")])
    assert incident.title
    assert incident.remedy == REMEDIES[kind]
    assert parsed(incident.id) == cause_of(restriction(kind, "one/m-0"))


def test_word_that_is_no_cause_is_parsed_as_none() -> None:
    assert parsed("weather:one") is None
    assert parsed("") is None
