"""The README and the pages of `docs/`: examples work when they are copied, and names exist."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from documenting import configuration, metrics
from llm_guard.cli import main as cli
from llm_guard.cli.demo import RECOMMENDED, SCENES
from llm_guard.config import parse_config
from llm_guard.resilience.alerts.rules import RULES

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
TEXT = "\n".join(PAGES.values())
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(page, kind, text) for page, content in PAGES.items() for _, kind, text in BLOCK.findall(content)]
EXAMPLES = [(page, text) for page, kind, text in BLOCKS if kind == "yaml" and "apiVersion:" not in text]
COMMANDS = [
    line
    for _, kind, text in BLOCKS
    if kind in ("bash", "console")
    for line in text.replace("\\\n", " ").splitlines()
    if line.strip()
]
SURFACE = (ROOT / "tests" / "architecture" / "public_surface.txt").read_text()
RULE_FILES = sorted((ROOT / "config" / "prometheus" / "rules").glob("*.yml"))

UPSTREAMS: dict[str, Any] = {
    "openai": {"dialect": "openai", "base_url": "https://api.openai.com/v1"},
    "azure": {"dialect": "openai", "base_url": "https://name.openai.azure.com/openai/v1"},
    "local": {"dialect": "openai", "base_url": "http://127.0.0.1:8000/v1"},
}
REDIS = "redis://127.0.0.1:6379/0"
KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="  # for these tests only


# examples


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 24
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=[f"{page}-{n}" for n, (page, _) in enumerate(EXAMPLES)])
def test_every_example_is_a_config_once_its_upstreams_are_there(page: str, block: str) -> None:
    config = yaml.safe_load(block)
    config["upstreams"] = UPSTREAMS | config.get("upstreams", {})
    config.setdefault("models", {"gpt-4o": {"deployments": [{"upstream": "openai"}]}})
    values = {"LLM_GUARD_STORE_KEY": KEY, "AZURE_URL": UPSTREAMS["azure"]["base_url"], "LLM_GUARD_REDIS_URL": REDIS}
    names = {name: values.get(name, f"x-{name.lower()}") for name in re.findall(r"\$\{(\w+)\}", block)}
    parse_config(json.dumps(config), page, names)


def test_typical_config_is_the_recommended_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGES["configuration.md"]
    [block] = [each for _, each in EXAMPLES if text.partition(each)[0].rstrip().endswith("as it stands:\n\n```yaml")]
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


def test_recommended_config_leaves_a_hang_after_ten_seconds_and_goes_on_with_a_dead_stream() -> None:
    env = dict.fromkeys(("OPENAI_API_KEY", "AZURE_KEY"), "x") | {"AZURE_URL": "https://name.openai.azure.com/openai/v1"}
    config = parse_config(RECOMMENDED.read_text(), "recommended.yaml", env)
    chat = config.models["gpt-4o"]
    assert (chat.timeout.first_token, chat.stream.recover) == (10.0, "continue")
    assert len({each.upstream for each in chat.deployments}) == 2
    assert chat.fallbacks
    assert config.upstreams["openai"].base_url == "https://api.openai.com/v1"


@pytest.mark.parametrize("page", ["README.md", "index.md"])
def test_table_of_the_demo_has_its_scenes_in_their_order(page: str) -> None:
    rows = PAGES[page].partition("what the provider does ")[2].partition("\n```")[0].splitlines()[1:]
    assert [re.split(r" {2,}", row)[0] for row in rows] == [scene.trouble for scene in SCENES]


def test_readme_is_short() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 150


# commands


def guard_commands() -> list[list[str]]:
    """Returns the arguments of each `llm-guard` in a block or in backticks."""
    texts = [*COMMANDS, *re.findall(r"`([^`\n]*llm-guard [^`\n]+)`", TEXT)]
    found = [re.search(r"(?:llm-guard|python -m llm_guard)\s+([a-z]+\b.*)", text) for text in texts]
    others = ("docker", "kubectl")  # where it names an image or a namespace
    return [
        shlex.split(match[1], comments=True)
        for match in found
        if match and not any(one in match.string for one in others)
    ]


def test_every_command_and_option_of_llm_guard_exists() -> None:
    commands = guard_commands()
    assert {arguments[0] for arguments in commands} >= {"serve", "check", "login", "explain", "mock", "bench"}
    for name, *arguments in commands:
        command = cli.main.get_command(click.Context(cli.main), name)
        assert isinstance(command, click.Command)
        options = {option for parameter in command.params for option in (*parameter.opts, "--help")}
        given = {word.partition("=")[0] for word in arguments if word.startswith("-")}
        assert given <= options, (name, given - options)


def test_command_that_needs_no_gateway_runs() -> None:
    for command in (line.removeprefix("$ ") for line in COMMANDS if line.startswith("$ ")):
        name, *arguments = shlex.split(command)
        assert name == "llm-guard"
        run = CliRunner().invoke(cli.main, arguments)
        assert run.exit_code == 0, (command, run.output)


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"^make ([a-z-]+)", "\n".join([*COMMANDS, *re.findall("`(make [^`]+)`", TEXT)]), re.MULTILINE)
    assert len(named) > 20
    assert set(named) <= targets


# names


def test_every_file_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`((?:llm_guard|config|docs|tests|documenting)/[\w./*-]*|mkdocs\.yml)`", TEXT))
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_link_to_a_file_of_the_repository_leads_there() -> None:
    links = re.findall(r"\]\(\.\./([^)#]+)", "\n".join(text for page, text in PAGES.items() if page != "README.md"))
    links += re.findall(r"\]\(([^)#:]+)\)", PAGES["README.md"])
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_page_that_an_operator_looks_at_is_in_the_table() -> None:
    table = PAGES["operations.md"].partition("| path | for |")[2].partition("\n\n")[0]
    pages = set(re.findall(r"^GET (/admin/[a-z-]+)", SURFACE, re.MULTILINE)) - {"/admin/log-levels"}
    assert pages <= set(re.findall(r"/admin/[a-z-]+", table))


def test_every_header_of_the_gateway_is_described() -> None:
    headers = re.findall(r"^(x-llm-guard-[a-z-]+)$", SURFACE, re.MULTILINE)
    described = TEXT + (ROOT / "config" / "llm_guard.yaml").read_text()
    assert [name for name in headers if name not in described] == []


def test_every_metric_that_a_page_names_exists() -> None:
    promised = re.findall(r"^(llm_guard_\w+)", SURFACE.partition("# metrics\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert set(re.findall(r"`(llm_guard_[a-z_]+)(?:\{[^`]*)?`", TEXT)) <= set(promised)


def test_every_path_of_the_admin_api_that_a_page_names_exists() -> None:
    promised = re.findall(r"^(?:GET|POST|DELETE) (/admin[a-z/-]*)", SURFACE, re.MULTILINE)
    assert set(re.findall(r"(?<![\w.])(/admin/[a-z-]+(?:/[a-z-]+)?)", TEXT)) <= set(promised)


# generated parts


def test_reference_has_every_key_with_a_text_and_a_default() -> None:
    keys = list(configuration.all_keys())
    bare = SURFACE.partition("# config keys\n")[2].replace("*", "NAME").split()
    here = {key.path.replace("[]", "") for key in keys if not key.is_section}
    in_defaults = {re.sub(r"^defaults\.", "models.NAME.", path) for path in here}
    assert set(bare) <= here | in_defaults
    assert [key.path for key in keys if not key.is_section and not key.text] == []


def test_reference_shows_values_as_they_are_written() -> None:
    shown = {key.path: (key.type, key.default) for key in configuration.all_keys()}
    assert shown["server.max_body"] == ("size", "`64MiB`")
    assert shown["defaults.retry.base_delay"] == ("duration", "`200ms`")
    assert shown["defaults.timeout.total"] == ("duration", "`10m`")
    assert shown["defaults.retry.jitter"][1] == "`0.3`"
    assert shown["ops.webhooks[].rate"][1] == "`30/m`"
    assert shown["upstreams.NAME.dialect"] == ("`openai` or `anthropic`", None)
    assert "<span id=" in configuration.page()


def test_list_of_metrics_has_every_metric() -> None:
    promised = re.findall(r"^(llm_guard_\w+)", SURFACE.partition("# metrics\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert sorted(metrics.name_of(each) for each in metrics.families()) == sorted(promised)


# the runbook


def alerts() -> dict[str, dict[str, Any]]:
    groups = [group for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def entries() -> dict[str, str]:
    """Returns the severity of each entry of the runbook, by its anchor."""
    return {
        name.lower(): severity
        for name, severity in re.findall(r"^### (\w+)\n\n\*(\w+)\*$", PAGES["runbook.md"], re.MULTILINE)
    }


def test_every_alert_of_prometheus_links_to_its_entry() -> None:
    assert len(alerts()) > 15
    for name, rule in alerts().items():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/runbook.md"
        assert entries()[anchor] == rule["labels"]["severity"], name


def test_every_alert_of_the_gateway_has_an_entry() -> None:
    defaults = {key.path: key.default for key in configuration.all_keys()}
    for rule in RULES:
        assert f"`{entries()[rule]}`" == defaults[f"ops.alerts.{rule}.severity"]


# Markdown


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
)
def test_lists_are_lists_in_the_site_too(path: Path) -> None:
    """Python-Markdown needs an empty line before a list, and four spaces before the items of an inner one."""
    lines = BLOCK.sub("", path.read_text()).splitlines()
    for before, line in itertools.pairwise(lines):
        assert not re.match(r" {1,3}- ", line), line
        assert not (line.startswith("- ") and before and not re.match(r"- | ", before)), line
