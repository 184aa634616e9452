"""The demo: where it stores files, and which commands it prints for people to type."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import structlog
from click.testing import CliRunner

from llm_guard.admin.http.operator_token import Generated
from llm_guard.app import App
from llm_guard.cli import demo
from llm_guard.cli import main as cli
from llm_guard.cli.demo_command import _invitation
from llm_guard.cli.program_name import called
from llm_guard.mock.faults import parse_plan
from tests.chaos.wire import ask
from tests.tokens import bearer


async def test_demo_leaves_the_users_own_state_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    provider, app = await demo.start("127.0.0.1", 0, str(tmp_path / "demo"))
    try:
        generated = app.operator_token.generated
        assert generated is not None
        headers = {"host": "localhost", **bearer(generated.token)}
        body = b'{"level": "warning", "reason": "quiet"}'
        assert (await ask(app.addresses[0], "/admin/log-levels", body, headers)).status == 200
    finally:
        await app.stop()
        await provider.stop()
    assert [*(tmp_path / "demo").iterdir()]
    assert not (tmp_path / "own").exists()


async def test_demo_ends_healthy(tmp_path: Path) -> None:
    provider, app = await demo.start("127.0.0.1", 0, str(tmp_path))
    try:
        demo._switch((provider,), demo.SCENES[-1], "status:500")
        await demo._load(app.addresses[0], demo.SCENES[-1])
        assert (await app.ops.overview.snapshot()).health != "healthy"
        assert not await demo.recover(provider, app, within_s=0.0)
        assert not await demo.recover(provider, app, within_s=0.5)  # with faults of its own
        body = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}'
        answers = [await ask(provider.url, "/v1/chat/completions", body) for _ in range(20)]
        assert {answer.status for answer in answers} == {200}, "they have ended"
        demo._switch((provider,), demo.SCENES[-1], "")
        assert await demo.recover(provider, app)
        assert (await app.ops.overview.snapshot()).health == "healthy"
    finally:
        await app.stop()
        await provider.stop()


async def test_dashboard_explains_what_the_demo_has_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, app = await demo.start("127.0.0.1", 0, str(tmp_path))
    try:
        assert (await app.ops.overview.snapshot()).notice == []
        monkeypatch.setattr(demo, "SCENES", demo.SCENES[:1])
        app.ops.overview.notice = demo.notice(await demo.play(provider, app, lambda _: None))
        head, line = (await app.ops.overview.snapshot()).notice
        assert head.startswith("This is the demo.")
        assert line == "one provider is down, the other one serves: 0% and 100%"
    finally:
        await app.stop()
        await provider.stop()


def test_demo_leaves_no_files_or_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    async def play(_provider: object, app: App, _show: object) -> list[demo.SceneResult]:
        folders.append(Path(str(app.config.ops.store)))
        assert folders[0].is_dir()
        return []

    monkeypatch.setattr(demo, "play", play)
    logging = structlog.get_config()
    try:
        assert CliRunner().invoke(cli.main, ["demo"]).exit_code == 0
    finally:
        structlog.configure(**logging)
    assert not folders[0].exists()


def test_instructions_name_commands_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(Path("llm_guard", "__main__.py"))])
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert called() == ".venv/bin/python -m llm_guard"
    monkeypatch.setattr(sys, "executable", f"{os.sep}a b{os.sep}python")
    assert called() == "'/a b/python' -m llm_guard"
    monkeypatch.setattr(sys, "argv", [".venv/bin/llm-guard"])
    assert called() == ".venv/bin/llm-guard"


def test_invitation_names_the_tokens_file_and_shows_no_token(tmp_path: Path) -> None:
    token = Generated("t" * 43, tmp_path / "ops-token", is_new=True)
    said = _invitation("http://127.0.0.1:8080", "llm-guard", token)  # standard output is not a terminal here
    assert (
        f'LLM_GUARD_OPS_TOKEN="$(cat {tmp_path / "ops-token"})" llm-guard explain --url http://127.0.0.1:8080' in said
    )
    assert f"http://127.0.0.1:8080/dashboard, with the token in {tmp_path / 'ops-token'}" in said
    assert "login=" not in said
    assert token.token not in said


@pytest.mark.parametrize("scene", demo.SCENES, ids=lambda scene: scene.trouble)
def test_no_call_of_a_scene_that_can_be_recovered_is_struck_by_chance_at_every_attempt(scene: demo.Scene) -> None:
    struck = strikes(scene, demo.SCENES.index(scene))
    first = sum(attempts[0] for attempts in struck) / scene.calls
    share = parse_plan(scene.model, scene.faults).faults[0].share
    assert abs(first - share) < 0.04  # the scene matches its title
    enough = 2 if "silence" in scene.faults else 3  # a client's timeout does not cover two silent attempts
    if share < 1:
        assert not [attempts for attempts in struck if all(attempts[:enough])]


async def test_scene_shows_the_same_in_each_run() -> None:
    scene = next(scene for scene in demo.SCENES if scene.faults == "status:503@20%")
    struck = strikes(scene, 0)  # played alone
    direct = sum(not attempts[0] for attempts in struck) / scene.calls
    requests = sum(1 + attempts.index(False) for attempts in struck)
    for _ in range(2):
        assert await play_once(scene) == (direct, 1.0, requests)


async def test_claude_serves_while_openai_is_down() -> None:
    scene = next(scene for scene in demo.SCENES if scene.trouble == "OpenAI is down, Claude serves")
    direct, guarded, requests = await play_once(scene)
    assert (direct, guarded) == (0.0, 1.0)
    assert requests < 2 * scene.calls


def strikes(scene: demo.Scene, number: int) -> list[list[bool]]:
    """Returns, for each call of the scene with this number, which of its first four attempts fail."""
    plan = parse_plan(scene.model, scene.faults)
    return [
        [bool(plan.draw_for(demo._SEED, f"{number}-{call}", attempt).faults) for attempt in (1, 2, 3, 4)]
        for call in range(scene.calls)
    ]


async def play_once(scene: demo.Scene) -> tuple[float, float, int]:
    """Returns the success shares without and with the gateway, and the number of requests that the gateway made."""
    shown: list[demo.SceneResult] = []
    with TemporaryDirectory() as store, pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo, "SCENES", (scene,))
        provider, app = await demo.start("127.0.0.1", 0, store)
        try:
            await demo.play(provider, app, shown.append)
        finally:
            await app.stop()
            await provider.stop()
    return shown[0].direct.success_share, shown[0].guarded.success_share, shown[0].upstream_requests
