"""The manifests for Kubernetes: they are valid, fit one another, and hold what the gateway promises.

Overlays are merged here as kustomize does it for these files: by kind and name, mapping by mapping.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from redis import Redis

from llm_guard.app import create_app
from llm_guard.config import Config, parse_config
from tests.chaos.wire import ask, fetch
from tests.fakes.redis_server import redis_server
from tests.fakes.waiting import eventually

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "config" / "kubernetes"
RULES = ROOT / "config" / "prometheus" / "rules"
UPDATE = "UPDATE_KUBERNETES_RULES"
ENV = {
    "LLM_GUARD_OPS_TOKEN": "a-token-of-sufficient-length", "LLM_GUARD_CLIENT_KEY": "a-key-of-a-client",
    "OPENAI_API_KEY": "sk-openai", "LLM_GUARD_REDIS_PASSWORD": "0123456789abcdef",
    "LLM_GUARD_STORE_KEY": "bm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm5ubm4=",
}  # fmt: skip
"""What the Secret has."""

Manifest = dict[str, Any]


def manifests_in(path: Path) -> Iterator[Manifest]:
    yield from yaml.safe_load_all(path.read_text())


def merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    return {**base, **{key: merged(base.get(key), value) for key, value in patch.items()}}


def rendered(name: str) -> dict[tuple[str, str], Manifest]:
    """Returns the manifests of a kustomization, by kind and name."""
    folder = PLACE / name
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found: dict[tuple[str, str], Manifest] = {}
    for resource in kustomization["resources"]:
        path = (folder / resource).resolve()
        if path.is_dir():
            found |= rendered(str(path.relative_to(PLACE)))
        else:
            found |= {(one["kind"], one["metadata"]["name"]): one for one in manifests_in(path)}
    for patch in kustomization.get("patches", ()):
        for one in manifests_in(folder / patch["path"]):
            key = one["kind"], one["metadata"]["name"]
            found[key] = merged(found[key], one)
    return found


def config_of(name: str) -> Config:
    text = rendered(name)["ConfigMap", "llm-guard"]["data"]["config.yaml"]
    return parse_config(text, f"{name}/config.yaml", ENV)


def pod_of(workload: Manifest) -> Manifest:
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("name", ["base", "overlays/redis"])
def test_manifests_are_valid(name: str, version: str) -> None:
    found = rendered(name)
    assert len(found) >= 7
    for manifest in found.values():
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("name", ["base", "overlays/redis", "overlays/monitoring"])
def test_every_file_is_listed(name: str) -> None:
    kustomization = yaml.safe_load((PLACE / name / "kustomization.yaml").read_text())
    patches = [patch["path"] for patch in kustomization.get("patches", ())]
    listed = {entry for entry in kustomization["resources"] if entry.endswith(".yaml")} | set(patches)
    assert {path.name for path in (PLACE / name).iterdir()} == listed | {"kustomization.yaml"}


@pytest.mark.parametrize("name", ["base", "overlays/redis"])
def test_pod_has_the_time_that_a_drain_takes(name: str) -> None:
    server = config_of(name).server
    grace_s = pod_of(rendered(name)["Deployment", "llm-guard"])["terminationGracePeriodSeconds"]
    assert server.drain_delay >= 5
    assert grace_s >= server.drain_delay + server.drain + 5


@pytest.mark.parametrize("name", ["base", "overlays/redis"])
def test_ports_and_labels_fit_one_another(name: str) -> None:
    found, config = rendered(name), config_of(name)
    deployment = found["Deployment", "llm-guard"]
    (container,) = pod_of(deployment)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.server.port, "ops": config.ops.port}
    assert config.server.host == config.ops.host == "0.0.0.0"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        found["PodDisruptionBudget", "llm-guard"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy", "llm-guard"]["spec"]["podSelector"]["matchLabels"],
        *(found["Service", service]["spec"]["selector"] for service in ("llm-guard", "llm-guard-ops")),
    ]
    assert all(selector == labels for selector in selectors)
    for service, target in (("llm-guard", "http"), ("llm-guard-ops", "ops")):
        assert [port["targetPort"] for port in found["Service", service]["spec"]["ports"]] == [target]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "ops"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod_of(deployment)["volumes"]}
    assert container["args"] == ["serve", "-c", "/etc/llm-guard/config.yaml"]


@pytest.mark.parametrize("name", ["base", "overlays/redis"])
def test_no_pod_has_rights_that_it_does_not_need(name: str) -> None:
    workloads = [one for (kind, _), one in rendered(name).items() if kind in ("Deployment", "StatefulSet")]
    for workload in workloads:
        pod = pod_of(workload)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert re.fullmatch(r"llm-guard|[\w/-]+:\d+\.\d+\.\d+", container["image"])


def test_secret_has_every_variable_and_the_texts_name_them() -> None:
    base, redis = (
        rendered(name)["ConfigMap", "llm-guard"]["data"]["config.yaml"] for name in ("base", "overlays/redis")
    )
    wanted = set(re.findall(r"\$\{(\w+)", base + redis))
    assert wanted == set(ENV)
    texts = (PLACE / "base" / "kustomization.yaml").read_text() + (
        PLACE / "overlays" / "redis" / "kustomization.yaml"
    ).read_text()
    assert all(name in texts for name in wanted)


def test_rules_for_the_operator_are_those_of_prometheus() -> None:
    path = PLACE / "overlays" / "monitoring" / "rules.yaml"
    groups = [
        group
        for name in ("recording", "alerts", "slo")
        for group in yaml.safe_load((RULES / f"{name}.yml").read_text())["groups"]
    ]
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
        "metadata": {"name": "llm-guard", "labels": {"app.kubernetes.io/name": "llm-guard"}},
        "spec": {"groups": groups},
    }  # fmt: skip
    if os.environ.get(UPDATE):
        text = yaml.safe_dump(manifest, sort_keys=False, width=1000, allow_unicode=True)
        path.write_text(f"# Made from config/prometheus/rules by its test ({UPDATE}=1); change those.\n{text}")
    assert yaml.safe_load(path.read_text()) == manifest, f"run this test once with {UPDATE}=1"


def test_monitor_selects_the_service_of_the_operators_port() -> None:
    (monitor,) = manifests_in(PLACE / "overlays" / "monitoring" / "service-monitor.yaml")
    service = rendered("base")["Service", "llm-guard-ops"]
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["ops"]
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "llm-guard"  # the job that the rules name
    others = [one for (kind, name), one in rendered("base").items() if kind == "Service" and name != "llm-guard-ops"]
    assert all("app.kubernetes.io/component" not in one["metadata"]["labels"] for one in others)


# the configs, run


def on_free_ports(config: Config) -> Config:
    server = config.server.model_copy(update={"port": 0, "host": "127.0.0.1", "drain_delay": 0.0})
    return config.model_copy(
        update={"server": server, "ops": config.ops.model_copy(update={"port": 0, "host": "127.0.0.1"})}
    )


async def test_gateway_with_the_config_answers_the_probes_of_a_kubelet(tmp_path: Path) -> None:
    config = on_free_ports(config_of("base"))
    app = create_app(config.model_copy(update={"ops": config.ops.model_copy(update={"store": str(tmp_path)})}))
    await app.start()
    try:
        calls, ops = app.addresses
        container = pod_of(rendered("base")["Deployment", "llm-guard"])["containers"][0]
        pod = {"host": "10.1.2.3:9090"}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container[probe]["httpGet"]["path"]
            assert (await ask(ops, path, headers=pod, method="GET")).status == 200
        assert (await ask(ops, "/metrics", headers=pod, method="GET")).status == 200
        assert (await fetch(f"{calls}/v1/models")).status == 401  # no client key
    finally:
        await app.stop()


async def test_gateways_with_the_overlay_share_the_server_with_its_options(tmp_path: Path) -> None:
    container = pod_of(rendered("overlays/redis")["StatefulSet", "llm-guard-valkey"])["containers"][0]
    options = [arg.replace("$(LLM_GUARD_REDIS_PASSWORD)", ENV["LLM_GUARD_REDIS_PASSWORD"]) for arg in container["args"]]
    with redis_server(tmp_path, *options, "--dir", str(tmp_path)) as server:
        config = on_free_ports(config_of("overlays/redis"))
        assert config.fleet is not None
        store = f"unix://:{ENV['LLM_GUARD_REDIS_PASSWORD']}@{server.url.removeprefix('unix://')}"
        assert isinstance(Redis.from_url(store).ping(), bool)
        config = config.model_copy(update={"fleet": config.fleet.model_copy(update={"store": store})})
        apps = []
        for name in "ab":
            ops = config.ops.model_copy(update={"store": str(tmp_path / name)})
            apps.append(create_app(config.model_copy(update={"ops": ops})))
        try:
            for app in apps:
                await app.start()
            await eventually(lambda: all(app.fleet is not None and len(app.fleet.others) == 1 for app in apps))
        finally:
            await asyncio.gather(*(app.stop() for app in apps))
