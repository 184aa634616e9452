"""`auth: aws | google | entra` and `query` of an upstream."""

from __future__ import annotations

from typing import Any

import pytest

from llm_guard.config import AwsSettings, Config, ConfigError, EntraSettings, GoogleSettings, parse_config, shown
from llm_guard.config.clouds import signing_scope

MODELS = "models: {m: {deployments: [{upstream: a}]}}"


def config_of(keys: str, base_url: str = "https://a.example/v1") -> Config:
    return parse_config(f"upstreams: {{a: {{dialect: openai, base_url: '{base_url}', {keys}}}}}\n{MODELS}", "c", {})


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("bedrock-runtime.us-east-1.amazonaws.com", ("us-east-1", "bedrock")),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com", ("us-gov-west-1", "bedrock")),
        ("bedrock-runtime.cn-north-1.amazonaws.com.cn", ("cn-north-1", "bedrock")),
        ("bedrock-runtime.eusc-de-east-1.amazonaws.eu", ("eusc-de-east-1", "bedrock")),
        ("vpce-1a2b-3c.bedrock-runtime.ap-southeast-2.vpce.amazonaws.com", ("ap-southeast-2", "bedrock")),
        ("bedrock-mantle.us-east-1.api.aws", ("us-east-1", "bedrock-mantle")),
        ("Bedrock-Mantle.US-East-1.api.aws", ("us-east-1", "bedrock-mantle")),
        ("runtime.sagemaker.eu-central-1.amazonaws.com", ("eu-central-1", "sagemaker")),
        ("127.0.0.1", (None, None)),
        ("gateway.example.com", (None, None)),
        ("aws-proxy-1.example.com", (None, None)),
        ("runtime.sagemaker.ap-northeast-1.amazonaws.com", ("ap-northeast-1", "sagemaker")),
    ],
)
def test_region_and_service_come_from_the_host(host: str, expected: tuple[str | None, str | None]) -> None:
    assert signing_scope(host) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("auth: aws", AwsSettings(region="us-east-1", service="bedrock")),
        (
            "auth: aws, aws: {region: eu-west-1, profile: p}",
            AwsSettings(region="eu-west-1", service="bedrock", profile="p"),
        ),
        ("auth: aws, aws: {service: s}", AwsSettings(region="us-east-1", service="s")),
        ("auth: google", GoogleSettings()),
        ("auth: google, google: {scopes: [a]}", GoogleSettings(scopes=("a",))),
        ("auth: entra", EntraSettings()),
        ("auth: entra, entra: {authority: 'https://a.example/'}", EntraSettings(authority="https://a.example")),
        ("api_key: k", None),
        ("auth: none", None),
    ],
)
def test_settings_of_the_cloud(keys: str, expected: object) -> None:
    upstream = config_of(keys, "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1").upstreams["a"]
    assert upstream.cloud == expected
    assert upstream.has_own_key == (keys != "auth: none")


@pytest.mark.parametrize("key", ["api_key_file: /k", "api_keys: [a, b]"])
def test_every_kind_of_key_conflicts_with_a_cloud(key: str) -> None:
    with pytest.raises(ConfigError, match=f"google conflicts with {key.partition(':')[0]}: remove"):
        config_of(f"{key}, auth: google")


@pytest.mark.parametrize(
    ("auth", "package"), [("aws", "botocore"), ("google", r"google-auth\[requests\]"), ("entra", "azure-identity")]
)
@pytest.mark.parametrize("is_parent_missing", [False, True])
def test_missing_library_is_an_error_with_the_command(
    monkeypatch: pytest.MonkeyPatch, auth: str, package: str, is_parent_missing: bool
) -> None:
    def find_spec(name: str) -> Any:
        if is_parent_missing:
            raise ModuleNotFoundError(name)
        return None

    monkeypatch.setattr("llm_guard.config.clouds.find_spec", find_spec)
    command = rf"pip install 'llm-guard-proxy\[{auth}\]'"
    with pytest.raises(ConfigError, match=f"upstreams.a.auth: {auth} needs {package}, .* {command}"):
        config_of(f"auth: {auth}, aws: {{region: r, service: s}}" if auth == "aws" else f"auth: {auth}")


def test_deployment_of_another_dialect_may_have_credentials_of_a_cloud() -> None:
    text = """
upstreams:
  a: {dialect: openai, base_url: "https://a.example/v1", api_key: k}
  b: {dialect: anthropic, base_url: "https://bedrock-mantle.us-east-1.api.aws/anthropic", auth: aws}
models: {m: {deployments: [{upstream: a}, {upstream: b}]}}
"""
    assert parse_config(text, "c", {}).upstreams["b"].has_own_key


def test_values_of_parameters_are_masked() -> None:
    config = config_of("query: {api-version: 2024-10-21, key: secret}")
    assert config.upstreams["a"].query == {"api-version": "2024-10-21", "key": "secret"}
    assert shown(config)["upstreams"]["a"]["query"] == {"api-version": "***", "key": "***"}
    assert "secret" not in repr(config)


def test_parameters_are_few() -> None:
    with pytest.raises(ConfigError, match="query: has more than 16 parameters"):
        config_of("query: {" + ", ".join(f"p{at}: x" for at in range(17)) + "}")
