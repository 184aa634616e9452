"""`auth: aws | google | entra` and `query`: requests with a cloud's credentials, from stand-ins of its endpoints."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llm_guard.app import App
from llm_guard.cli.main import main
from llm_guard.config import AwsSettings, CloudSettings, Config, EntraSettings, GoogleSettings
from llm_guard.upstreams.credentials.providers import fetcher_of
from llm_guard.upstreams.credentials.sigv4 import SigningKeys, SigningScope, signature_headers
from llm_guard.upstreams.credentials.source import WAIT_S
from tests.admin_client import look
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, standing
from tests.chaos.wire import ask
from tests.e2e.clouds import chat, claude, said
from tests.e2e.clouds import standing as cloud_of
from tests.fakes.certificates import Authority
from tests.fakes.keyed_provider import REFUSED, KeyedProvider
from tests.fakes.provider import ScriptedProvider, whole
from tests.fakes.strict_clouds import TEXT
from tests.fakes.token_endpoints import AWS_PATH, SECRET_KEY, TokenEndpoint, service_account
from tests.fakes.waiting import eventually

CALLERS_KEY = "sk-of-the-caller-0123456789"
AWS = {"auth": "aws", "aws": {"region": "us-east-1", "service": "bedrock"}}
LIST = whole(200, b'{"object":"list","data":[{"id":"gpt"}]}')


@pytest.fixture(autouse=True)
def _machine_without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test finds what this machine has."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def one_of(url: str, settings: dict[str, Any], **sections: Any) -> Config:
    """Returns a config in which `gpt` is served by the upstream `one` with these settings."""
    one = {"dialect": "openai", "base_url": f"{url}/v1", **settings}
    return config_of(url, upstreams={"one": one}, **sections)


@asynccontextmanager
async def google(folder: Path, endpoint: TokenEndpoint, provider_url: str, **more: Any) -> AsyncIterator[Stand]:
    file = service_account(folder / "account.json", f"{endpoint.url}/google")
    async with standing(
        one_of(provider_url, {"auth": "google", "google": {"credentials_file": file}}, **more)
    ) as stand:
        yield stand


def headers_of(request: bytes) -> list[tuple[str, str]]:
    lines = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def assert_signed(request: bytes, access_key: str, token: str, service: str = "bedrock") -> dict[str, str]:
    """Verifies a signature as AWS does, and returns the headers. The judge of the function used is
    `tests/unit/upstreams/credentials/test_sigv4.py`."""
    head, _, body = request.partition(b"\r\n\r\n")
    method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
    headers = dict(headers_of(request))
    authorization = headers["authorization"]
    names = authorization.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-date"} <= set(names)
    at = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    kept = [(name, headers[name]) for name in names if name != "x-amz-date"]
    path, _, query = target.partition("?")
    scope = SigningScope("us-east-1", service)
    expected = dict(
        signature_headers(
            SigningKeys(), access_key, SECRET_KEY, scope, at.timestamp(), method, path, query, kept,
            hashlib.sha256(body).hexdigest(),
        )
    )  # fmt: skip
    assert authorization == expected["Authorization"]
    assert headers.get("x-amz-security-token", "") == token
    return headers


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Callable[[TokenEndpoint], None]:
    """Makes an endpoint the one of AWS's container credentials."""
    return lambda endpoint: monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint.url}{AWS_PATH}")


# each cloud


async def test_call_to_aws_is_signed_and_the_callers_key_stays_here(container: Callable[[TokenEndpoint], None]) -> None:
    async with TokenEndpoint() as endpoint, ScriptedProvider(CHAT.ok) as provider:
        container(endpoint)
        async with standing(one_of(provider.url, AWS)) as stand:
            headers = {"Authorization": f"Bearer {CALLERS_KEY}", "X-Amz-Security-Token": CALLERS_KEY}
            reply = await ask(stand.url, f"{CHAT.path}?b=2&a=%7E&X-Amz-Signature=1", CHAT.body(), headers)
        assert reply.status == 200, reply.text
        (request,) = provider.requests
        assert request.startswith(f"POST {CHAT.path}?a=~&b=2 ".encode())
        assert_signed(request, f"AKIA{1:016}", endpoint.token(1))
        assert CALLERS_KEY.encode() not in request


async def test_default_credentials_of_google_are_those_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TokenEndpoint() as endpoint, ScriptedProvider(CHAT.ok) as provider:
        file = service_account(tmp_path / "account.json", f"{endpoint.url}/google")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
        async with standing(one_of(provider.url, {"auth": "google"})) as stand:
            assert (await CHAT.ask(stand.url)).status == 200, stand.log
        assert ("authorization", f"Bearer {endpoint.token(1)}") in headers_of(provider.requests[0])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sdk", [claude, chat])
async def test_request_in_the_form_of_bedrock_is_signed(
    container: Callable[[TokenEndpoint], None], sdk: Callable[[App], Any], stream: bool
) -> None:
    settings = ", auth: aws, aws: {region: us-east-1, service: bedrock}"
    async with TokenEndpoint() as endpoint:
        container(endpoint)
        async with cloud_of("bedrock-invoke", key=settings) as (cloud, app), sdk(app) as client:
            cloud.is_authorized = lambda _: bool(assert_signed(cloud.latest, f"AKIA{1:016}", endpoint.token(1)))
            assert await said(client, stream=stream) == TEXT
            assert cloud.refused == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sdk", [claude, chat])
async def test_request_in_the_form_of_vertex_has_a_token(
    tmp_path: Path, sdk: Callable[[App], Any], stream: bool
) -> None:
    async with TokenEndpoint() as endpoint:
        file = service_account(tmp_path / "account.json", f"{endpoint.url}/google")
        settings = f", auth: google, google: {{credentials_file: {file}}}"
        async with cloud_of("vertex", key=settings) as (cloud, app), sdk(app) as client:
            cloud.is_authorized = lambda headers: headers["authorization"] == f"Bearer {endpoint.token(1)}"
            assert await said(client, stream=stream) == TEXT
            assert cloud.refused == []


async def test_keys_of_the_environment_need_no_session_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    async with ScriptedProvider(CHAT.ok) as provider, standing(one_of(provider.url, AWS)) as stand:
        assert (await CHAT.ask(stand.url)).status == 200
        assert_signed(provider.requests[0], "AKIDEXAMPLE", "")


async def test_call_to_google_has_a_token_in_place_of_the_callers_key(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, ScriptedProvider(CHAT.ok) as provider:
        async with google(tmp_path, endpoint, provider.url) as stand:
            headers = {"Authorization": f"Bearer {CALLERS_KEY}", "X-Goog-Api-Key": CALLERS_KEY, "Cookie": CALLERS_KEY}
            assert (await ask(stand.url, CHAT.path, CHAT.body(), headers)).status == 200
        sent = headers_of(provider.requests[0])
        assert [value for name, value in sent if name == "authorization"] == [f"Bearer {endpoint.token(1)}"]
        assert CALLERS_KEY.encode() not in provider.requests[0]
        assert b"scope" in endpoint.requests[0] or b"assertion" in endpoint.requests[0]


async def test_call_to_azure_has_a_token_of_entra_and_the_version_of_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.file))
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_CLIENT_ID", "client")
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "CANARY-client-secret-0123456789")
    async with TokenEndpoint(authority.server()) as endpoint, ScriptedProvider(CHAT.ok) as provider:
        azure = {"auth": "entra", "entra": {"authority": endpoint.url}, "query": {"api-version": "2024-10-21"}}
        async with standing(one_of(provider.url, azure)) as stand:
            reply = await ask(stand.url, f"{CHAT.path}?api-version=2023&user=1", CHAT.body())
            assert reply.status == 200, (reply.text, stand.log)
        (request,) = provider.requests
        assert request.startswith(f"POST {CHAT.path}?user=1&api-version=2024-10-21 ".encode())
        assert ("authorization", f"Bearer {endpoint.token(1)}") in headers_of(request)


@pytest.mark.parametrize("auth", ["aws", "google", "entra"])
async def test_expiry_of_the_credentials_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: Callable[[TokenEndpoint], None], auth: str
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.file))
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.setenv(name, "CANARY-of-entra-0123456789")
    async with TokenEndpoint(authority.server() if auth == "entra" else None) as endpoint:
        endpoint.lifetime_s = 1800
        container(endpoint)
        file = service_account(tmp_path / "account.json", f"{endpoint.url}/google")
        settings: dict[str, CloudSettings] = {
            "aws": AwsSettings(region="us-east-1", service="bedrock"),
            "google": GoogleSettings(credentials_file=file),
            "entra": EntraSettings(authority=endpoint.url.replace("http:", "https:")),
        }
        credential = await asyncio.to_thread(fetcher_of(settings[auth]))
        assert credential.token == endpoint.token(1)
        left_s = (credential.expires_at or 0.0) - datetime.now(UTC).timestamp()
        assert 1000 < left_s <= 1801  # a busy machine may take a while


async def test_machine_without_credentials_is_a_problem_that_names_the_remedy() -> None:
    async with KeyedProvider() as provider, standing(one_of(provider.url, AWS)) as stand:
        assert (await CHAT.ask(stand.url)).status == 502
        assert str(stand.app.credentials.problems()["one"]).startswith("NoCredentials: AWS's chain finds none: set ")


async def test_query_is_added_beside_an_api_key_and_its_values_are_not_shown() -> None:
    secret = "CANARY-query-0123456789"
    settings = {"api_key": "sk-own-0123456789", "auth": "api-key", "query": {"key": secret}}
    async with ScriptedProvider(CHAT.ok) as provider, standing(one_of(provider.url, settings)) as stand:
        assert (await CHAT.ask(stand.url)).status == 200
        assert provider.requests[0].startswith(f"POST {CHAT.path}?key={secret} ".encode())
        shown = (await look(stand.url, "/admin/config")).text
        assert '"query"' in shown
        assert secret not in f"{shown} {stand.log}"


# renewal


async def test_token_is_renewed_while_calls_go_on(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, KeyedProvider() as provider:
        endpoint.lifetime_s = 2
        async with google(tmp_path, endpoint, provider.url) as stand, asyncio.timeout(10):
            while endpoint.issued < 3:
                assert (await CHAT.ask(stand.url)).status == 200
                await asyncio.sleep(0.02)
        assert set(provider.keys) >= {endpoint.token(1), endpoint.token(2)}


async def test_calls_at_the_start_ask_once(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, KeyedProvider() as provider:
        endpoint.hold = asyncio.Event()
        async with google(tmp_path, endpoint, provider.url) as stand:
            calls = [asyncio.ensure_future(CHAT.ask(stand.url)) for _ in range(200)]
            await eventually(lambda: endpoint.requests and stand.app.gateway.running >= 100)
            endpoint.hold.set()
            assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
        assert endpoint.issued == 1
        assert set(provider.keys) == {endpoint.token(1)}


async def test_dead_endpoint_costs_no_call_while_the_old_token_is_valid(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, KeyedProvider() as provider:
        endpoint.lifetime_s = 6
        async with google(tmp_path, endpoint, provider.url) as stand:
            assert (await CHAT.ask(stand.url)).status == 200
            endpoint.is_dead = True
            await eventually(lambda: stand.app.credentials.problems()["one"], 8)
            assert (await CHAT.ask(stand.url)).status == 200
        assert provider.keys == [endpoint.token(1)] * 2


async def test_call_without_valid_credentials_falls_back(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, KeyedProvider() as provider:
        endpoint.is_dead = True
        other = {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": "sk-other-0123456789"}
        file = service_account(tmp_path / "account.json", f"{endpoint.url}/google")
        one = {**other, "api_key": None, "auth": "google", "google": {"credentials_file": file}}
        models = {"gpt": {"deployments": [{"upstream": "one"}, {"upstream": "other"}]}}
        config = config_of(provider.url, upstreams={"one": one, "other": other}, models=models)
        async with standing(config) as stand:
            replies = [await CHAT.ask(stand.url) for _ in range(3)]
            assert [reply.status for reply in replies] == [200] * 3
            assert provider.keys == ["sk-other-0123456789"] * 3
            (line, *_) = await stand.calls()
            assert [attempt["outcome"] for attempt in line["attempts"]] == ["credentials", "ok"]
            await eventually(lambda: stand.app.credentials.problems()["one"])
            assert "***" in str(stand.app.credentials.problems()["one"])  # the endpoint quotes what it was sent


async def test_call_without_valid_credentials_fails_with_a_reason(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, KeyedProvider() as provider:
        endpoint.is_dead = True
        async with google(tmp_path, endpoint, provider.url) as stand:
            reply = await CHAT.ask(stand.url)
            assert (reply.status, provider.keys) == (502, [])
            error = CHAT.error_of(reply)
            assert error["code"] == "upstream_credentials"
            assert "has no valid credentials (auth: google): renewing them fails, see the log" in error["message"]
            endpoint.is_dead = False
            await eventually(lambda: endpoint.issued, 8)
            await eventually(lambda: stand.app.credentials.problems()["one"] is None)
            assert (await CHAT.ask(stand.url)).status == 200  # no cooldown and no breaker is in the way


async def test_call_waits_no_longer_than_its_client_for_a_slow_endpoint(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, KeyedProvider() as provider:
        endpoint.hold = asyncio.Event()
        short = {"total": "300ms"}
        async with google(tmp_path, endpoint, provider.url, timeout=short) as stand, asyncio.timeout(WAIT_S / 2):
            assert (await CHAT.ask(stand.url)).status == 504


async def test_wait_for_the_first_credentials_is_no_time_of_the_connection(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, KeyedProvider() as provider:
        endpoint.hold = asyncio.Event()
        async with google(tmp_path, endpoint, provider.url, timeout={"connect": "200ms"}) as stand:
            call = asyncio.ensure_future(CHAT.ask(stand.url))
            await eventually(lambda: endpoint.requests and stand.app.gateway.running)
            await asyncio.sleep(0.5)
            endpoint.hold.set()
            assert (await call).status == 200


async def test_gateway_stops_while_an_endpoint_hangs(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, KeyedProvider() as provider:
        endpoint.hold = asyncio.Event()
        async with google(tmp_path, endpoint, provider.url) as stand:
            await eventually(lambda: endpoint.requests)
            await asyncio.wait_for(stand.app.stop(), 3)


async def test_reload_keeps_the_credentials_and_ends_those_that_are_not_needed(tmp_path: Path) -> None:
    async with (
        TokenEndpoint() as endpoint,
        KeyedProvider() as provider,
        google(tmp_path, endpoint, provider.url) as stand,
    ):
        assert (await CHAT.ask(stand.url)).status == 200
        config = stand.app.config
        again = config.model_copy(update={"upstreams": {**config.upstreams, "three": config.upstreams["one"]}})
        stand.app.credentials.adopt(_table(stand, again))
        assert (await CHAT.ask(stand.url)).status == 200
        assert endpoint.issued == 1
        stand.app.credentials.adopt({})
        assert stand.app.credentials.problems() == {}


def _table(stand: Stand, config: Config) -> Any:
    return stand.app._compiled(config, stand.app.gateway.table).upstreams


# AWS


async def test_retry_is_signed_anew(container: Callable[[TokenEndpoint], None]) -> None:
    refused = whole(503, b'{"error":{"message":"overloaded"}}')
    async with TokenEndpoint() as endpoint, ScriptedProvider([refused], CHAT.ok) as provider:
        container(endpoint)
        async with standing(one_of(provider.url, AWS, retry={"max_attempts": 2})) as stand:
            assert (await CHAT.ask(stand.url)).status == 200
        assert len(provider.requests) == 2
        for request in provider.requests:
            assert_signed(request, f"AKIA{1:016}", endpoint.token(1))


async def test_body_that_names_another_model_is_signed_as_it_is_sent(
    container: Callable[[TokenEndpoint], None],
) -> None:
    async with TokenEndpoint() as endpoint, ScriptedProvider(CHAT.ok) as provider:
        container(endpoint)
        models = {"gpt": {"deployments": [{"upstream": "one", "model": "anthropic.claude-sonnet-4-5"}]}}
        async with standing(one_of(provider.url, AWS, models=models)) as stand:
            assert (await CHAT.ask(stand.url)).status == 200
        assert b"anthropic.claude-sonnet-4-5" in provider.requests[0]
        assert_signed(provider.requests[0], f"AKIA{1:016}", endpoint.token(1))


@pytest.mark.parametrize("model", ["gpt", "another"])
async def test_body_in_a_file_is_signed(container: Callable[[TokenEndpoint], None], model: str) -> None:
    async with TokenEndpoint() as endpoint, ScriptedProvider(CHAT.ok) as provider:
        container(endpoint)
        models = {"gpt": {"deployments": [{"upstream": "one", "model": model}]}}
        async with standing(one_of(provider.url, AWS, models=models)) as stand:
            reply = await ask(stand.url, CHAT.path, CHAT.body(user="x" * 3_000_000))
            assert reply.status == 200, reply.text
        assert_signed(provider.requests[0], f"AKIA{1:016}", endpoint.token(1))


async def test_upload_is_signed_once_all_of_it_has_come(container: Callable[[TokenEndpoint], None]) -> None:
    part = b"--b0\r\nContent-Disposition: form-data; name="
    form = part + b'"purpose"\r\n\r\nbatch\r\n' + part + b'"file"; filename="a.jsonl"\r\n\r\n'
    form += b"x" * 3_000_000 + b"\r\n--b0--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=b0"}
    answer = whole(200, b'{"id":"file-1","object":"file","bytes":1,"created_at":1,"filename":"a","purpose":"batch"}')
    async with TokenEndpoint() as endpoint, ScriptedProvider([answer]) as provider:
        container(endpoint)
        async with standing(one_of(provider.url, AWS)) as stand:
            reply = await ask(stand.url, "/upstreams/one/v1/files", form, headers)
            assert reply.status == 200, reply.text
        assert provider.requests[0].endswith(form)
        assert_signed(provider.requests[0], f"AKIA{1:016}", endpoint.token(1))


async def test_refused_signature_is_repeated_with_the_time_of_aws(container: Callable[[TokenEndpoint], None]) -> None:
    theirs = datetime.now(UTC) + timedelta(hours=2)
    body = b'{"message":"Signature expired: 20261128T000000Z is now earlier than 20261128T020000Z"}'
    refused = whole(403, body, {"date": format_datetime(theirs, usegmt=True)})
    async with TokenEndpoint() as endpoint, ScriptedProvider([refused], CHAT.ok) as provider:
        container(endpoint)
        async with standing(one_of(provider.url, AWS)) as stand:
            assert [(await CHAT.ask(stand.url)).status for _ in range(2)] == [200, 200]
        first, *later = (assert_signed(each, f"AKIA{1:016}", endpoint.token(1)) for each in provider.requests)
        assert len(later) == 2
        assert {each["x-amz-date"][:11] for each in later} == {theirs.strftime("%Y%m%dT%H")}
        assert first["x-amz-date"][:11] != later[0]["x-amz-date"][:11]
        (warning,) = [line for line in stand.log if "clock" in line["event"]]
        assert abs(warning["behind_s"] - 7200) < 60


async def test_refusal_with_the_right_time_is_not_repeated(container: Callable[[TokenEndpoint], None]) -> None:
    body = b'{"message":"The security token included in the request is invalid."}'
    refused = whole(403, body, {"date": format_datetime(datetime.now(UTC), usegmt=True)})
    async with TokenEndpoint() as endpoint, ScriptedProvider([refused], CHAT.ok) as provider:
        container(endpoint)
        async with standing(one_of(provider.url, AWS)) as stand:
            assert (await CHAT.ask(stand.url)).status == 403
        assert len(provider.requests) == 1


# everything else that is sent


async def test_probes_lists_and_calls_to_an_upstream_have_the_credentials(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, ScriptedProvider([LIST]) as provider:
        file = service_account(tmp_path / "account.json", f"{endpoint.url}/google")
        settings = {
            "auth": "google", "google": {"credentials_file": file}, "query": {"v": "1"},
            "probe": {"kind": "models", "interval": "100ms"},
        }  # fmt: skip
        async with standing(one_of(provider.url, settings)) as stand:
            await stand.app.prober.probe_and_wait("one")
            probes = len(provider.requests)
            assert probes
            headers = {"Authorization": f"Bearer {CALLERS_KEY}"}
            assert (await ask(stand.url, "/upstreams/one/v1/models", b"", headers, "GET")).status == 200
            assert len(provider.requests) > probes
        for request in provider.requests:
            assert request.startswith(b"GET /v1/models?v=1 ")
            assert ("authorization", f"Bearer {endpoint.token(1)}") in headers_of(request)


async def test_refused_token_is_renewed_for_later_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_guard.upstreams.credentials.source._REFUSED_S", 0.0)
    async with TokenEndpoint() as endpoint, KeyedProvider({TokenEndpoint.token(1): REFUSED}) as provider:
        async with google(tmp_path, endpoint, provider.url) as stand:
            assert (await CHAT.ask(stand.url)).status == 401
            await eventually(lambda: endpoint.issued == 2)
        assert provider.keys == [endpoint.token(1)]


async def test_nothing_of_the_clouds_is_loaded_without_one() -> None:
    code = (
        "import sys, asyncio; from llm_guard.app import create_app; from llm_guard.config import parse_config\n"
        "config = parse_config('''{server: {port: 0}, upstreams: {a: {dialect: openai, base_url: http://h/v1}}, "
        "models: {m: {deployments: [{upstream: a}]}}}''')\n"
        "async def main():\n    app = create_app(config)\n    await app.start()\n    await app.stop()\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('botocore', 'azure', 'msal', 'requests') "
        "or name.startswith(('google.auth', 'llm_guard.upstreams.credentials.'))])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode().splitlines()[-1] == "['llm_guard.upstreams.credentials.registry']"


async def doctored(path: Path, config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Runs `llm-guard doctor`, and returns check, verdict and detail of each result about the upstream."""

    def invoke() -> Result:
        path.write_text(json.dumps(config))
        arguments = ["doctor", "-c", str(path), "--json", "--timeout", "5"]
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    result = await asyncio.to_thread(invoke)
    found = [one for one in json.loads(result.stdout) if one["place"] == "upstreams.one"]
    assert all(one["remedy"] for one in found if one["verdict"] == "failed")
    return [(one["check"], one["verdict"], one["detail"]) for one in found]


async def test_doctor_uses_the_credentials_and_says_why_there_are_none(tmp_path: Path) -> None:
    async with TokenEndpoint() as endpoint, ScriptedProvider([LIST]) as provider:
        file = service_account(tmp_path / "account.json", f"{endpoint.url}/google")
        one = {
            "dialect": "openai",
            "base_url": f"{provider.url}/v1",
            "auth": "google",
            "google": {"credentials_file": file},
        }
        config = {"upstreams": {"one": one}, "models": {"gpt": {"deployments": [{"upstream": "one"}]}}}
        assert ("key", "ok", "is accepted") in await doctored(tmp_path / "c.yaml", config)
        assert ("authorization", f"Bearer {endpoint.token(1)}") in headers_of(provider.requests[0])
        endpoint.is_dead = True
        (failed,) = [found for found in await doctored(tmp_path / "c.yaml", config) if found[1] == "failed"]
        assert failed[:1] == ("key",)
        assert failed[2].startswith("there are no credentials: RefreshError: ('invalid_grant: refused ***")
