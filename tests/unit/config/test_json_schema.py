"""The published JSON Schema: current, valid for every example, and strict about every mistake that it can express."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner

from llm_guard.cli.main import main
from llm_guard.config.yaml_source import _Loader
from tests.unit.config.mistakes import ERRORS, VALID, WARNINGS, Mistake
from tests.unit.test_docs import EXAMPLES, UPSTREAMS

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "config" / "llm_guard.schema.json"
SCHEMA = json.loads(PUBLISHED.read_text())
FILES = sorted((ROOT / "config").glob("*.yaml"))
COMMENT = "# yaml-language-server: $schema=llm_guard.schema.json"

VALIDATOR = jsonschema_rs.Draft7Validator(SCHEMA)


def problems(text: str) -> list[str]:
    """Returns what the schema refuses in a text. Reads it as YAML 1.2, like the gateway and editors."""
    data = yaml.load(text, Loader=_Loader)
    return [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in VALIDATOR.iter_errors(data)]


def test_published_schema_is_the_commands_output() -> None:
    printed = CliRunner().invoke(main, ["schema"]).output
    assert PUBLISHED.read_text() == printed, "run: llm-guard schema > config/llm_guard.schema.json"


def test_schema_is_valid_in_its_draft() -> None:
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema_rs.meta.validate(SCHEMA)


def test_no_keyword_stands_beside_a_reference() -> None:
    """Draft 7 ignores such keywords."""

    def references(node: Any) -> list[dict[str, Any]]:
        members = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        own = [node] if isinstance(node, dict) and isinstance(node.get("$ref"), str) else []
        return own + [found for member in members for found in references(member)]

    assert len(found := references(SCHEMA)) > 100
    assert [node for node in found if len(node) > 1] == []


def test_every_key_has_a_description() -> None:
    sections = {name: part for name, part in SCHEMA["definitions"].items() if "properties" in part}
    described = [key for part in sections.values() for key in part["properties"].values() if "description" in key]
    assert len(described) > 200
    assert "null" in SCHEMA["definitions"]["TimeoutSettings"]["properties"]["attempt"]["description"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_example_files_name_the_schema_and_are_valid(path: Path) -> None:
    assert path.read_text().splitlines()[0] == COMMENT
    assert problems(path.read_text()) == []


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=[f"{page}-{n}" for n, (page, _) in enumerate(EXAMPLES)])
def test_examples_of_the_pages_are_valid(page: str, block: str) -> None:
    config = yaml.load(block, Loader=_Loader)
    config["upstreams"] = UPSTREAMS | config.get("upstreams", {})
    config.setdefault("models", {"gpt-4o": {"deployments": [{"upstream": "openai"}]}})
    assert problems(json.dumps(config)) == []


@pytest.mark.parametrize("mistake", [*ERRORS, *WARNINGS], ids=lambda mistake: mistake.name)
def test_schema_refuses_the_mistakes_that_it_can_express(mistake: Mistake) -> None:
    try:
        found = problems(mistake.text)
    except yaml.YAMLError:
        found = []
    assert bool(found) == mistake.in_schema, found


@pytest.mark.parametrize(
    "text",
    [
        "server: {port: '8080', max_body: 64MiB, drain: 1.5s, drain_delay: 0s, isolate_objects: off}",
        "server: {port: '${PORT:-80}', max_body: '${SIZE}', drain: '${SECONDS}s', isolate_objects: '${ISOLATE}'}",
        "defaults: {retry: {max_attempts: '${ATTEMPTS}', jitter: '${JITTER}', budget: {ratio: '${RATIO}'}}}",
        "defaults: {hedge: {after: p95}, cache: {}, capacity: {concurrency: adaptive}}",
        "ops: {alerts: {latency: off, success_rate: {for: 1m}}, token: ''}",
        "ops: {webhooks: [{url: 'https://a.example/b', rate: 30/m}]}",
        "engines: {e: {upstreams: [a], command: {argv: [serve, a$$b]}, restart: production}}",
        "engines: {e: {upstreams: [a], docker: null, systemd: {unit: a.service}, restart: {preset: demo}}}",
    ],
)
def test_schema_accepts_what_the_gateway_accepts(text: str) -> None:
    assert problems(VALID + text) == []


@pytest.mark.parametrize("text", ["server: {max_connections: '${N}'}", "probes: {concurrency: '${N}'}"])
def test_number_outside_of_rules_is_no_variable(text: str) -> None:
    assert problems(VALID + text) != []
