"""`llm-guard bench` against the mock provider, and against a gateway in front of it."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llm_guard.cli.main import main
from llm_guard.mock.load import LoadPlan
from llm_guard.mock.provider import MockProvider
from tests.chaos.stand import config_of, standing
from tests.fakes.waiting import eventually

SHORT = ("--rate", "50", "--seconds", "0.4")


@pytest.fixture
async def provider() -> AsyncIterator[MockProvider]:
    async with MockProvider() as provider:
        yield provider


async def bench(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["bench", *arguments], catch_exceptions=False)


async def test_gateway_beside_the_provider(provider: MockProvider, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    async with standing(config_of(provider.url)) as stand:
        url = stand.url
        result = await bench("--url", url, "--model", "gpt", *SHORT, "--compare", provider.url, "--html", str(page))
    assert result.exit_code == 0
    rows = {line[:20].strip(): line[20:].split() for line in result.stdout.splitlines()}
    assert rows[""] == [url, provider.url]
    assert rows["succeeded"] == ["100.00%", "100.00%"]
    assert rows["attempts per call"] == ["1.00", "-"]
    assert rows["output tokens"] == ["8.0", "per", "call"] * 2
    assert provider.stats().requests == 40
    text = page.read_text()
    assert text.count("<circle class=ok") == 40
    assert text.count("<svg") == 2


async def test_picture_has_a_chart_for_each_run(provider: MockProvider, tmp_path: Path) -> None:
    sizes = []
    for compared in ((), ("--compare", provider.url)):
        png = tmp_path / "picture.png"
        arguments = ("--url", provider.url, "--model", "m+status:503@50%", *SHORT, *compared, "--png", str(png))
        result = await bench(*arguments)
        assert (result.exit_code, f"picture: {png}" in result.output) == (0, True)
        data = png.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        sizes.append(struct.unpack(">II", data[16:24]))
    assert sizes == [(1100, 352), (1100, 704)]


async def test_missing_library_of_pictures_is_named_before_anything_is_sent(
    provider: MockProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    png = tmp_path / "picture.png"
    result = await bench("--url", provider.url, "--model", "m", *SHORT, "--png", str(png))
    assert (result.exit_code, png.exists(), provider.stats().requests) == (2, False, 0)
    assert "pip install 'llm-guard-proxy[plots]'" in result.output


async def test_run_beside_an_earlier_one(provider: MockProvider, tmp_path: Path) -> None:
    saved = tmp_path / "earlier.json"
    saved.write_text((await bench("--url", provider.url, "--model", "m", *SHORT, "--json")).stdout)
    result = await bench("--url", provider.url, "--model", "m+status:503@50%", *SHORT, "--compare", str(saved))
    assert result.stdout.splitlines()[0].split() == [provider.url, str(saved)]
    (failed,) = (line.split() for line in result.stdout.splitlines() if line.startswith("http_503"))
    assert (int(failed[1]) > 0, failed[2]) == (True, "-")


async def test_payloads_are_sent_in_turns(provider: MockProvider, tmp_path: Path) -> None:
    file = tmp_path / "payloads.jsonl"
    bodies: list[dict[str, Any]] = [{"model": name, "messages": [{"role": "user", "content": "hi"}]} for name in "ab"]
    file.write_text("\n\n".join(map(json.dumps, bodies)))
    assert (await bench("--url", provider.url, "--payloads", str(file), *SHORT)).exit_code == 0
    assert provider.stats().by_model == {"a": 10, "b": 10}
    assert (await bench("--url", provider.url, "--payloads", str(file), "--model", "c", *SHORT)).exit_code == 0
    assert provider.stats().by_model["c"] == 20


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_key_is_sent_as_the_dialect_does(provider: MockProvider, dialect: str) -> None:
    result = await bench("--url", provider.url, "--model", "m", "--dialect", dialect, "--key", "sk-x", *SHORT)
    assert result.exit_code == 0
    assert "100.00%" in result.stdout


async def test_interrupted_run_shows_what_it_has_measured(provider: MockProvider) -> None:
    # A shell starts what runs in the background with SIGINT ignored, and that is inherited.
    as_usual = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    begin = f"{as_usual}; from llm_guard.cli.main import main; main()"
    command = ("-c", begin, "bench", "--url", provider.url, "--model", "m", "--rate", "50", "--seconds", "600")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await eventually(lambda: provider.stats().requests > 5, within_s=20.0)
    process.send_signal(signal.SIGINT)
    output, errors = (stream.decode() for stream in await process.communicate())
    assert process.returncode == 1
    assert "succeeded           100.00%" in output
    assert "interrupted" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "payloads.jsonl:1: is not JSON"),
        ("[]", "payloads.jsonl:1: is not a JSON object"),
        ("{}", "payloads.jsonl:1: has no model; add one, or give --model"),
        ("", "has no lines"),
    ],
)
async def test_bad_payload_is_named(tmp_path: Path, line: str, error: str) -> None:
    file = tmp_path / "payloads.jsonl"
    file.write_text(line)
    result = await bench("--url", "http://127.0.0.1:1", "--payloads", str(file))
    assert result.exit_code == 2
    assert error in " ".join(result.output.split())


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--model", "m", "--compare", "nowhere.json"),
        ("--model", "m", "--compare", "{}"),
        ("--model", "m", "--compare", "[1]"),
        ("--model", "m", "--html", "nowhere/page.html"),
        ("--model", "m", "--png", "nowhere/picture.png"),
    ],
)
async def test_wrong_arguments_are_refused_at_once(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = tmp_path / "file.json"
    if arguments and arguments[-1][0] in "{[":
        file.write_text(arguments[-1])
        arguments = (*arguments[:-1], str(file))
    assert (await bench("--url", "http://127.0.0.1:1", *arguments)).exit_code == 2


# the times of calls


def test_ramp_grows_evenly_to_the_rate() -> None:
    plan = LoadPlan("", ("m",), 10.0, seconds=4.0, ramp_s=2.0)
    due = [plan.due_s(index) for index in range(plan.planned())]
    assert plan.planned() == 30  # 10 in the first 2 s, then 10 a second
    assert [sum(begin <= at < begin + 1 for at in due) for begin in range(4)] == [3, 7, 10, 10]
    assert due == sorted(due)
    assert LoadPlan("", ("m",), 10.0, seconds=1.0, ramp_s=2.0).planned() == 2
    assert [LoadPlan("", ("m",), 10.0, calls=3).due_s(index) for index in range(3)] == [0.0, 0.1, 0.2]
