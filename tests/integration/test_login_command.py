"""`llm-guard login`, and how commands find the gateway's token, also while the gateway is down."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llm_guard.cli.main import main
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_text, facing
from tests.chaos.wire import Reply, ask
from tests.tokens import NAMED, OPS, VIEWER

URL = "http://127.0.0.1:9"  # never contacted
HOST = {"host": "localhost"}
NO_TOKEN = {"token": ""}
NO_ENV: Mapping[str, str | None] = {"LLM_GUARD_OPS_TOKEN": None}


async def command(*arguments: str, env: Mapping[str, str | None] = NO_ENV) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, env=env)


async def log_in(stand: Stand, link: str) -> Reply:
    address, _, code = link.strip().partition("/dashboard#login=")
    assert address
    return await ask(stand.url, "/dashboard/login", json.dumps({"code": code}).encode(), HOST)


def write(folder: Path, text: str) -> str:
    (folder / "guard.yaml").write_text(text)
    return str(folder / "guard.yaml")


async def test_link_is_made_while_the_gateway_is_down_and_opens_it_when_it_is_up(tmp_path: Path) -> None:
    ops = {**NO_TOKEN, "store": str(tmp_path / "s")}
    file = write(tmp_path, config_text(URL, ops=ops, server={"port": 18080}))
    too_early = await command("login", "-c", file)
    assert (too_early.exit_code, f"there is no token in {tmp_path / 's' / 'ops-token'}" in too_early.stderr) == (
        1,
        True,
    )
    assert not (tmp_path / "s").exists()  # the gateway might not be able to read a file created by this user
    async with facing(ops=ops):
        pass
    links = [await command("login", "-c", file) for _ in range(2)]
    assert [link.exit_code for link in links] == [0, 0]
    assert all(link.stdout.startswith("http://127.0.0.1:18080/dashboard#login=") for link in links)
    assert (tmp_path / "s" / "ops-token").read_text().strip() not in links[0].output
    async with facing(ops=ops) as (stand, _):
        assert [(await log_in(stand, link.stdout)).status for link in links] == [200, 200]


async def test_link_is_of_the_configs_token_or_of_the_one_that_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, config_text(URL, server={"port": 18080}))
    async with facing() as (stand, _):
        names = []
        for arguments in ((), ("--as", "operator"), ("--as", "ann"), ("--as", "vic")):
            reply = await log_in(stand, (await command("login", "-c", file, *arguments)).stdout)
            names.append((reply.json["name"], reply.json["role"]))
        assert names == [("operator", "operator"), ("operator", "operator"), ("ann", "operator"), ("vic", "viewer")]
    unknown = await command("login", "-c", file, "--as", "bob")
    assert (unknown.exit_code, unknown.stderr) == (1, "ops.tokens has no token named bob; known: ann, anna, vic\n")


async def test_link_of_a_config_with_named_tokens_alone_is_the_first_operators(tmp_path: Path) -> None:
    file = write(tmp_path, config_text(URL, ops={"tokens": OPS["tokens"]}, server={"port": 18080}))
    async with facing() as (stand, _):
        assert (await log_in(stand, (await command("login", "-c", file)).stdout)).json["name"] == "ann"


@pytest.mark.parametrize(
    ("sections", "arguments", "address"),
    [
        ({"server": {"port": 81}}, (), "http://127.0.0.1:81"),
        ({"server": {"port": 81, "host": "0.0.0.0"}}, (), "http://127.0.0.1:81"),
        ({"server": {"port": 81, "host": "::"}}, (), "http://[::1]:81"),
        ({"server": {"port": 81}, "ops": {"port": 82, "host": "192.0.2.1"}}, (), "http://192.0.2.1:82"),
        ({}, ("--url", "https://ops.example/llm/"), "https://ops.example/llm"),
    ],
)
async def test_link_leads_to_the_control_plane(
    tmp_path: Path, sections: dict[str, dict[str, object]], arguments: tuple[str, ...], address: str
) -> None:
    done = await command("login", "-c", write(tmp_path, config_text(URL, **sections)), *arguments)  # type: ignore[arg-type]  # sections
    assert done.stdout.partition("/dashboard#login=")[0] == address


@pytest.mark.parametrize("arguments", ["--url ftp://a", "--url http://a?b", "--url a", "-c /no/such"])
async def test_wrong_arguments_end_with_2(arguments: str) -> None:
    assert (await command("login", *arguments.split())).exit_code == 2


async def test_port_chosen_by_the_system_requires_an_explicit_url(tmp_path: Path) -> None:
    done = await command("login", "-c", write(tmp_path, config_text(URL)))
    assert (done.exit_code, "--url" in done.stderr) == (2, True)


async def test_keys_of_providers_need_not_be_in_the_environment(tmp_path: Path) -> None:
    upstreams = {"three": {"dialect": "openai", "base_url": "${NO_SUCH}", "api_key": "${NOR_THIS}"}}
    server = {"port": 81, "client_keys": [{"name": "a", "key": "${NOR_THAT}"}]}
    text = config_text(URL, upstreams=upstreams, server=server)
    assert (await command("login", "-c", write(tmp_path, text))).exit_code == 0
    text = config_text(URL, ops={"token": "${NO_SUCH_TOKEN}"}, server={"port": 81})
    done = await command("login", "-c", write(tmp_path, text))
    assert (done.exit_code, "ops.token: the environment variable NO_SUCH_TOKEN is not set" in done.stderr) == (2, True)


@pytest.mark.parametrize("content", ["", "half a tok", "x" * 200])
async def test_damaged_file_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "ops-token").write_text(content)
    ops = {**NO_TOKEN, "store": str(tmp_path / "s")}
    done = await command("login", "-c", write(tmp_path, config_text(URL, ops=ops, server={"port": 81})))
    assert (done.exit_code, "has no complete token" in done.stderr) == (1, True)


# explain


async def test_explain_reads_the_file_of_the_config_and_of_the_usual_folder(tmp_path: Path) -> None:
    for number, ops in enumerate((NO_TOKEN, {**NO_TOKEN, "store": str(tmp_path / "s")})):
        async with facing(CHAT.ok, ops=ops) as (stand, _):
            file = write(tmp_path, config_text(URL, ops=ops, server={"port": int(stand.url.rsplit(":", 1)[1])}))
            by_config = await command("explain", "-c", file)
            assert (by_config.exit_code, by_config.stdout) == (0, "no failed calls in memory\n")
            by_folder = await command("explain", "--url", stand.url)
            assert by_folder.exit_code == (0 if number == 0 else 1)
            assert number == 0 or "-c FILE" in by_folder.stderr


async def test_token_of_the_usual_folder_is_sent_to_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_guard.cli import explain_command

    sent: list[tuple[str, str | None]] = []

    def fetch(url: str, token: str | None, *, is_local: bool) -> bytes:
        sent.append((re.sub("/admin.*", "", url), token))
        return b'{"calls": [], "retained": 0, "retained_failed": 0, "running": 0}'

    monkeypatch.setattr(explain_command, "_fetch", fetch)
    async with facing(ops=NO_TOKEN) as (stand, _):
        generated = stand.app.operator_token.generated
        assert generated is not None
        for url in ("http://192.0.2.1", "http://localhost:1", "http://localhost.example"):
            await command("explain", "--url", url)
    assert sent == [
        ("http://192.0.2.1", None), ("http://localhost:1", generated.token), ("http://localhost.example", None),
    ]  # fmt: skip


async def test_explicit_token_outranks_all_others(tmp_path: Path) -> None:
    async with facing() as (stand, _):
        file = write(tmp_path, config_text(URL, ops={"token": "another-operators-token"}, server={"port": 81}))
        given = await command("explain", "-c", file, "--url", stand.url, "--token", NAMED["ann"])
        assert given.exit_code == 0
        in_env = await command("explain", "-c", file, "--url", stand.url, env={"LLM_GUARD_OPS_TOKEN": VIEWER})
        assert in_env.exit_code == 0
        assert (await command("explain", "-c", file, "--url", stand.url)).exit_code == 1
