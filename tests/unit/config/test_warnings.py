"""Warnings of `llm-guard check`."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from click.testing import CliRunner

from llm_guard.cli.main import main
from llm_guard.config.warnings.routes import unrouted_models
from tests.chaos.stand import config_of

UPSTREAM = "{dialect: openai, base_url: 'https://api.example/v1', api_key: '${PROVIDER_KEY}'}"
MODELS = "models: {'*': {deployments: [{upstream: paid}]}}\n"
LONG = "0123456789abcdef-of-this-test"
KEY = base64.b64encode(bytes(range(32))).decode()


def check(
    tmp_path: Path, text: str = "", mode: int = 0o600, store: Path | None = None, upstream: str = UPSTREAM
) -> list[str]:
    """Returns the warnings without file and line."""
    path = tmp_path / "guard.yaml"
    ops = text if "ops:" in text else f"{text}\nops: {{store: '{store or tmp_path / 'state'}'}}\n"
    path.write_text(f"{ops}\nupstreams: {{paid: {upstream}}}\n{MODELS}")
    path.chmod(mode)
    env = {"PROVIDER_KEY": "sk-provider", "OPS_TOKEN": LONG, "XDG_STATE_HOME": str(tmp_path / "xdg")}
    done = CliRunner().invoke(main, ["check", "-c", str(path)], env=env)
    assert done.exit_code == 0, done.output
    found = [line for line in done.stderr.splitlines() if line.startswith(f"warning: {path}:")]
    return [line.removeprefix(f"warning: {path}:").partition(": ")[2] for line in found]


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """Makes the directory inaccessible to other users."""
    tmp_path.chmod(0o700)
    return tmp_path


def test_usual_config_has_no_warning(tmp_path: Path) -> None:
    assert check(tmp_path) == []


def test_index_of_objects_in_a_folder_that_no_other_gateway_shares(tmp_path: Path) -> None:
    server = "server: {isolate_objects: true, client_keys: [{name: a, key: '${OPS_TOKEN}'}]}"
    (warning,) = check(tmp_path, f"{server}\nops: {{}}")
    assert warning.startswith("server.isolate_objects: ")
    assert "set ops.store" in warning
    assert check(tmp_path, server) == []


def test_password_of_a_store_that_all_can_read(tmp_path: Path) -> None:
    with_password = "fleet: {store: 'redis://:secret@localhost:6379'}\nops: {token: '${OPS_TOKEN}'}"
    assert [warning for warning in check(tmp_path, with_password, 0o644) if warning.startswith("fleet.store: is in a")]
    assert not any(warning.startswith("fleet.store") for warning in check(tmp_path, with_password))
    of_sentinels = with_password.replace("redis://:secret@localhost:6379", "redis+sentinel://:secret@one,two/prod")
    assert any(found.startswith("fleet.store: is in a") for found in check(tmp_path, of_sentinels, 0o644))
    for url in ("redis://localhost:6379", "redis://user@localhost:6379", "unix:///run/a:b@c.sock"):
        found = check(tmp_path, with_password.replace("redis://:secret@localhost:6379", url), 0o644)
        assert [warning for warning in found if warning.startswith("fleet.store")] == []


# provider keys without client authentication


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example"])
def test_key_of_a_provider_at_a_public_address_without_client_keys(tmp_path: Path, host: str) -> None:
    (warning,) = check(tmp_path, f"server: {{host: '{host}'}}")
    assert warning.startswith(f"server.host: {host} is reachable from other machines")
    assert "can use the API key of paid" in warning


@pytest.mark.parametrize(
    "server",
    ["{host: 127.0.0.1}", "{host: '::1'}", "{host: localhost}",
     "{host: '0.0.0.0', client_keys: [{name: a, key: '${OPS_TOKEN}'}]}"],
)  # fmt: skip
def test_key_of_a_provider_that_strangers_cannot_reach_is_none(tmp_path: Path, server: str) -> None:
    assert check(tmp_path, f"server: {server}") == []


def test_model_that_a_key_may_use_and_no_route_serves() -> None:
    keys = [{"name": "a", "key": "x", "allow": {"models": ["gpt", "gtp", "mini-*", "*"]}}]
    config = config_of("http://127.0.0.1:9", server={"client_keys": keys})
    ((key, reason),) = unrouted_models(config)
    assert key == ("server", "client_keys", 0, "allow", "models", 1)
    assert reason.startswith("no entry of models is for gtp")
    assert reason.endswith("did you mean gpt?")


# secrets in a file


def test_token_in_a_world_readable_file(tmp_path: Path) -> None:
    text = f"ops: {{token: {LONG}, tokens: [{{name: ann, token: {LONG}-ann, role: viewer}}]}}"
    assert check(tmp_path, text) == []
    assert check(tmp_path, text, mode=0o640) == []
    warnings = check(tmp_path, text, mode=0o644)
    assert sorted(warning.partition(":")[0] for warning in warnings) == ["ops.token", "ops.tokens[0].token"]
    assert "mode 644" in warnings[0]
    assert LONG not in str(warnings)


def test_token_from_a_variable_is_not_in_the_file(tmp_path: Path) -> None:
    assert check(tmp_path, "ops: {token: '${OPS_TOKEN}'}", mode=0o644) == []


@pytest.mark.parametrize(
    "text",
    [f"ops: {{token: '${{UNSET:-{LONG}}}'}}", f"ops: {{token: 'a$$b-{LONG}'}}",
     f"ops: {{token: '${{OPS_TOKEN}}', webhooks: [{{url: 'http://hook', secret: {LONG}}}]}}",
     f"ops: {{token: '${{OPS_TOKEN}}'}}\nstore: {{webhooks: [{{name: a, url: 'http://hook', secret: {LONG}}}]}}",
     f"ops: {{token: '${{OPS_TOKEN}}'}}\nstore: {{encryption_key: {KEY}}}"],
    ids=["default of a variable", "escaped dollar sign", "webhook of alerts", "webhook of calls", "store"],
)  # fmt: skip
def test_secret_that_is_in_the_file_in_another_form(tmp_path: Path, text: str) -> None:
    assert check(tmp_path, text) == []
    (warning,) = check(tmp_path, text, mode=0o644)
    assert "all users of this machine can read" in warning
    assert LONG not in warning
    assert KEY not in warning


def test_parameter_with_the_name_of_a_secret(tmp_path: Path) -> None:
    upstream = f"{UPSTREAM[:-1]}, query: {{api-version: 2024-10-21, Sig: {LONG}}}}}"
    (warning,) = check(tmp_path, mode=0o644, upstream=upstream)
    assert warning.startswith("upstreams.paid.query.Sig: is in a file that all users of this machine can read")


def test_default_that_a_variable_replaces_is_no_secret(tmp_path: Path) -> None:
    assert check(tmp_path, f"ops: {{token: '${{OPS_TOKEN:-{LONG}-unused}}'}}", mode=0o644) == []


def test_short_token(tmp_path: Path) -> None:
    (warning,) = check(tmp_path, "ops: {token: hunter2hunter2}")
    assert warning.startswith("ops.token: has fewer than 16 characters")
    assert "hunter2" not in warning


# a fleet


def test_fleet_whose_gateways_store_calls_each_for_itself(tmp_path: Path) -> None:
    fleet = "fleet: {store: 'redis://localhost'}\nops: {token: '${OPS_TOKEN}'}"
    (warning,) = check(tmp_path, fleet)
    assert warning.startswith("store.calls.kind:")
    assert "a client gets 404 for its call" in warning
    assert check(tmp_path, f"{fleet}\ndefaults: {{deferred: {{mode: 'off'}}}}") == []


# the state directory


def test_store_that_others_may_write_in(tmp_path: Path) -> None:
    for mode in (0o777, 0o770, 0o1777):
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state").chmod(mode)
        (warning,) = check(tmp_path)
        assert warning.startswith(f"ops.store: other users can write to {tmp_path / 'state'} (mode {mode:o})")
    (tmp_path / "state").chmod(0o755)
    assert check(tmp_path) == []


def test_store_that_others_may_put_another_folder_in_the_place_of(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "state").mkdir(mode=0o700)
    (warning,) = check(tmp_path, store=shared / "state")
    assert f"other users can write to {shared} " in warning


def test_store_in_a_linked_folder_that_others_may_write_to(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "state").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(shared / "state")
    (warning,) = check(tmp_path, store=tmp_path / "link")
    assert f"other users can write to {shared} " in warning
    (shared / "state").chmod(0o777)
    shared.chmod(0o755)
    (warning,) = check(tmp_path, store=tmp_path / "link")
    assert f"other users can write to {tmp_path / 'link'} " in warning


def test_store_in_a_folder_like_tmp_is_safe_once_it_is_there(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    assert len(check(tmp_path, store=shared / "state")) == 1
    (shared / "state").mkdir(mode=0o700)
    assert check(tmp_path, store=shared / "state") == []
