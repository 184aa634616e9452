"""Examples in the README work when they are copied."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from llm_guard.cli import main as cli
from llm_guard.cli.demo import RECOMMENDED, SCENES
from llm_guard.config import parse_config

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SURFACE = (ROOT / "tests" / "architecture" / "public_surface.txt").read_text()

UPSTREAMS: dict[str, Any] = {
    "openai": {"dialect": "openai", "base_url": "https://api.openai.com/v1"},
    "azure": {"dialect": "openai", "base_url": "https://name.openai.azure.com/openai/v1"},
    "local": {"dialect": "openai", "base_url": "http://127.0.0.1:8000/v1"},
}
KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="  # for these tests only


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 14


@pytest.mark.parametrize("block", BLOCKS, ids=map(str, range(1, len(BLOCKS) + 1)))
def test_every_example_is_a_config_once_its_upstreams_are_there(block: str) -> None:
    config = yaml.safe_load(block)
    config["upstreams"] = UPSTREAMS | config.get("upstreams", {})
    values = {"LLM_GUARD_STORE_KEY": KEY, "AZURE_URL": UPSTREAMS["azure"]["base_url"]}
    names = {name: values.get(name, f"x-{name.lower()}") for name in re.findall(r"\$\{(\w+)\}", block)}
    parse_config(json.dumps(config), "README.md", names)


def test_what_most_people_add_is_the_recommended_config(monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = [each for each in BLOCKS if TEXT.partition(each)[0].rstrip().endswith("as it stands:\n\n```yaml")]
    path = ROOT / "config" / "recommended.yaml"
    assert path.read_text() == block
    assert path.samefile(RECOMMENDED)
    variables = {"OPENAI_API_KEY": "x", "AZURE_KEY": "x", "AZURE_URL": "https://name.openai.azure.com/openai/v1"}
    for name in ("OPENAI_URL", *variables):
        monkeypatch.delenv(name, raising=False)
    assert CliRunner().invoke(cli.main, ["check", "-c", str(path)]).exit_code != 0
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    checked = CliRunner().invoke(cli.main, ["check", "-c", str(path)])
    assert checked.exit_code == 0, checked.output


def test_table_of_the_demo_has_its_scenes_in_their_order() -> None:
    rows = TEXT.partition("what the provider does ")[2].partition("\n```")[0].splitlines()[1:]
    assert [re.split(r" {2,}", row)[0] for row in rows] == [scene.trouble for scene in SCENES]


def test_recommended_config_leaves_a_hang_after_ten_seconds_and_goes_on_with_a_dead_stream() -> None:
    env = dict.fromkeys(("OPENAI_API_KEY", "AZURE_KEY"), "x") | {"AZURE_URL": "https://name.openai.azure.com/openai/v1"}
    config = parse_config(RECOMMENDED.read_text(), "recommended.yaml", env)
    chat = config.models["gpt-4o"]
    assert (chat.timeout.first_token, chat.stream.recover) == (10.0, "continue")
    assert len({deployment.upstream for deployment in chat.deployments}) == 2
    assert chat.fallbacks
    assert config.upstreams["openai"].base_url == "https://api.openai.com/v1"


def test_every_metric_is_in_the_table() -> None:
    table = TEXT.partition("| metric | labels |")[2].partition("\n\n")[0]
    promised = re.findall(r"^(llm_guard_\w+)", SURFACE.partition("# metrics\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert set(re.findall(r"`(llm_guard_\w+)`", table)) == set(promised)


def test_every_page_that_an_operator_looks_at_is_in_the_table() -> None:
    table = TEXT.partition("| path | for |")[2].partition("\n\n")[0]
    pages = set(re.findall(r"^GET (/admin/[a-z-]+)", SURFACE, re.MULTILINE)) - {"/admin/log-levels"}
    assert pages <= set(re.findall(r"/admin/[a-z-]+", table))


def test_every_header_of_the_gateway_is_told_of() -> None:
    headers = re.findall(r"^(x-llm-guard-[a-z-]+)$", SURFACE, re.MULTILINE)
    said = TEXT + (ROOT / "config" / "llm_guard.yaml").read_text()
    assert [name for name in headers if name not in said] == []
