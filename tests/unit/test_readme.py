"""What the README shows can be copied."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

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
KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="  # of this test


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 9


@pytest.mark.parametrize("block", BLOCKS, ids=map(str, range(1, len(BLOCKS) + 1)))
def test_every_example_is_a_config_once_its_upstreams_are_there(block: str) -> None:
    config = yaml.safe_load(block)
    config["upstreams"] = UPSTREAMS | config.get("upstreams", {})
    names = {name: KEY if name == "LLM_GUARD_STORE_KEY" else "x" for name in re.findall(r"\$\{(\w+)", block)}
    parse_config(json.dumps(config), "README.md", names)


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
