"""The form of an upstream's requests: what it needs of the other keys, and what `check` says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from llm_guard.cli.main import main
from llm_guard.config import ConfigError, parse_config
from tests.unit.config.test_json_schema import VALIDATOR

VERTEX_URL = "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5"
NO_LIST = "kind must be health with form vertex, which has no list of models: give deployments a probe"
CONFIG = """\
upstreams:
  cloud:
    dialect: {dialect}
    base_url: "{url}"
    {rest}
models:
  claude: {{deployments: [{{upstream: cloud}}]}}
"""


def text(rest: str, *, dialect: str = "anthropic", url: str = VERTEX_URL) -> str:
    return CONFIG.format(dialect=dialect, url=url, rest=rest)


def is_valid_by_schema(config: str) -> bool:
    return VALIDATOR.is_valid(yaml.safe_load(config))


@pytest.mark.parametrize(("rest", "url"), [
    ("form: vertex", VERTEX_URL), ("form: vertex", f"{VERTEX_URL}/"),
    ("form: bedrock-invoke", "https://bedrock-runtime.us-east-1.amazonaws.com"),
    ("form: vertex\n    auth: none", VERTEX_URL), ("form: vertex\n    probe: {kind: health}", VERTEX_URL),
])  # fmt: skip
def test_forms_are_accepted(rest: str, url: str) -> None:
    config = text(rest, url=url)
    found = parse_config(config, "f.yaml", {}).upstreams["cloud"]
    assert found.form is not None
    assert found.auth == ("none" if "none" in rest else "bearer")
    assert is_valid_by_schema(config)


@pytest.mark.parametrize(("rest", "dialect", "url", "problem"), [
    ("form: vertex", "openai", VERTEX_URL,
     "f.yaml:5: upstreams.cloud.form: vertex is for dialect anthropic; leave it out with dialect openai"),
    ("form: bedrock-invoke", "openai", "https://b.test",
     "f.yaml:5: upstreams.cloud.form: bedrock-invoke is for dialect anthropic; leave it out with dialect openai"),
    ("form: vertex", "anthropic", "https://aiplatform.googleapis.com",
     "f.yaml:5: upstreams.cloud.form: vertex needs a base_url that ends with /v1/projects/PROJECT/locations/LOCATION"),
    ("form: vertex\n    auth: x-api-key", "anthropic", VERTEX_URL,
     ("f.yaml:6: upstreams.cloud.auth: must be bearer, none or a cloud's with form vertex: "
     "it takes no key in x-api-key")),
    ("form: vertex\n    probe: {kind: models}", "anthropic", VERTEX_URL,
     f"f.yaml:6: upstreams.cloud.probe: {NO_LIST}"),
])  # fmt: skip
def test_what_does_not_fit_is_reported_with_its_line(rest: str, dialect: str, url: str, problem: str) -> None:
    config = text(rest, dialect=dialect, url=url)
    with pytest.raises(ConfigError) as caught:
        parse_config(config, "f.yaml", {})
    assert [str(found) for found in caught.value.problems] == [problem]
    assert not is_valid_by_schema(config)


def test_unknown_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="form"):
        parse_config(text("form: converse"), "f.yaml", {})


def test_check_names_file_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(text("form: vertex", dialect="openai"))
    result = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert result.exit_code == 2
    assert f"{path}:5: upstreams.cloud.form: vertex is for dialect anthropic" in result.output


def test_check_names_the_endpoints_of_a_form(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(text("form: bedrock-invoke", url="https://b.test"))
    result = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert result.exit_code == 0
    assert "upstreams.cloud: serves only POST /v1/messages, in the form bedrock-invoke\n" in result.output
