"""`upstreams.X.tls`: the CAs that the gateway trusts, and the certificate it presents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, standing
from tests.fakes.certificates import Authority, replace
from tests.fakes.keyed_provider import KeyedProvider
from tests.fakes.waiting import eventually


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    folder = tmp_path / "other"
    folder.mkdir()
    return Authority(folder)


@asynccontextmanager
async def trusting(provider: KeyedProvider, **tls: str) -> AsyncIterator[Stand]:
    one = {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": "k", **({"tls": tls} if tls else {})}
    async with standing(config_of(provider.url, upstreams={"one": one, "two": {**one, "tls": None}})) as stand:
        yield stand


def names_in(provider: KeyedProvider) -> list[str]:
    """Returns the common names of the certificates that the gateway has presented, by connection."""
    return [
        dict(pair for (pair,) in certificate["subject"])["commonName"]
        for certificate in provider.certificates
        if certificate
    ]


def used(stand: Stand) -> list[object]:
    return [line for line in stand.log if line["event"] == "changed files are in use"]


async def test_private_authority_is_trusted_only_where_configured(authority: Authority) -> None:
    async with KeyedProvider(tls=authority.server()) as provider:
        async with trusting(provider) as stand:
            reply = await CHAT.ask(stand.url)
            assert (reply.status, provider.keys) == (502, [])
        async with trusting(provider, ca=str(authority.file)) as stand:
            assert (await CHAT.ask(stand.url)).status == 200


async def test_upstream_at_the_same_address_without_the_authority_shares_no_connection(authority: Authority) -> None:
    async with KeyedProvider(tls=authority.server()) as provider:
        own = {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": "k"}
        upstreams = {"trusting": {**own, "tls": {"ca": str(authority.file)}}, "plain": own}
        models = {name: {"deployments": [{"upstream": name, "model": "gpt"}]} for name in upstreams}
        async with standing(config_of(provider.url, upstreams=upstreams, models=models)) as stand:
            assert (await CHAT.ask(stand.url)).status == 502
            for model, status in (("trusting", 200), ("plain", 502), ("trusting", 200)):
                assert (await CHAT.ask(stand.url, model=model)).status == status
        assert provider.keys == ["k", "k"]


async def test_certificate_of_a_stranger_or_for_another_host_is_refused(authority: Authority, other: Authority) -> None:
    for context in (other.server(), authority.server("elsewhere.example")):
        async with (
            KeyedProvider(tls=context) as provider,
            trusting(provider, ca=str(authority.file)) as stand,
        ):
            assert (await CHAT.ask(stand.url)).status == 502
            assert provider.keys == []


async def test_authority_of_the_config_replaces_that_of_the_environment(
    authority: Authority, other: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(other.file))
    async with KeyedProvider(tls=other.server()) as provider:
        async with trusting(provider) as stand:
            assert (await CHAT.ask(stand.url)).status == 200
        async with trusting(provider, ca=str(authority.file)) as stand:
            assert (await CHAT.ask(stand.url)).status == 502


async def test_gateway_shows_its_certificate_to_an_upstream_that_demands_one(authority: Authority) -> None:
    async with KeyedProvider(tls=authority.server(client_ca=authority)) as provider:
        async with trusting(provider, ca=str(authority.file)) as stand:
            assert (await CHAT.ask(stand.url)).status == 502
        async with trusting(provider, ca=str(authority.file), **authority.pair("gateway")) as stand:
            assert (await CHAT.ask(stand.url)).status == 200
    assert names_in(provider)[-1] == "gateway"


async def test_changed_certificate_is_for_new_connections(authority: Authority) -> None:
    files = authority.pair("gateway")
    async with (
        KeyedProvider(tls=authority.server(client_ca=authority)) as provider,
        trusting(provider, ca=str(authority.file), **files) as stand,
    ):
        assert [(await CHAT.ask(stand.url)).status for _ in range(2)] == [200, 200]
        assert len(provider.certificates) == 1
        replace(files, authority.pair("renewed"))
        await eventually(lambda: used(stand))
        assert (await CHAT.ask(stand.url)).status == 200
        assert names_in(provider) == ["gateway", "renewed"]


async def test_connection_in_use_outlives_the_change_and_serves_no_further_call(authority: Authority) -> None:
    files = authority.pair("gateway")
    async with (
        KeyedProvider(tls=authority.server(client_ca=authority)) as provider,
        trusting(provider, ca=str(authority.file), **files) as stand,
    ):
        provider.holds["k"] = asyncio.Event()
        running = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: provider.keys)
        replace(files, authority.pair("renewed"))
        await eventually(lambda: used(stand))
        provider.holds["k"].set()
        assert (await running).status == 200
        assert (await CHAT.ask(stand.url)).status == 200
        assert len(provider.certificates) == 2


async def test_broken_authority_leaves_the_one_before_in_use(authority: Authority) -> None:
    async with (
        KeyedProvider(tls=authority.server()) as provider,
        trusting(provider, ca=str(authority.file)) as stand,
    ):
        authority.file.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        await eventually(lambda: [line for line in stand.log if line["event"].startswith("changed files cannot")])
        assert (await CHAT.ask(stand.url)).status == 200
