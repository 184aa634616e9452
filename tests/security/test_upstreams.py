"""Providers that are broken, redirected or impersonated.

A call goes only to the host in the config; the result is an HTTP response or a failure of the provider's; nothing from
one caller's response reaches another caller.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import ClassVar

import pytest
import trustme

from llm_guard.config import ConfigError, parse_config
from llm_guard.outcome import FailureKind
from llm_guard.proxy.gc_pause import uncollected
from llm_guard.resilience.classification.classify import classify_answer, classify_event
from llm_guard.resilience.classification.rules import user_rule
from tests.chaos.forms import CHAT
from tests.chaos.process import serving
from tests.chaos.sinks import TlsProvider
from tests.chaos.stand import CLOSE_S, Stand, config_text, facing, total
from tests.chaos.wire import Connection, ask, fetch
from tests.fakes.provider import END, Close, Pause, Respond, ScriptedProvider, Step, chunk, stream_head, whole
from tests.security.keys import UPSTREAM_KEY, keyed

POISON = Respond(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n"POISONED"')
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(CHAT.answer)


def answer(*fields: bytes, head: bytes = OK, body: bytes = CHAT.answer) -> list[Step]:
    """Builds a response with these additional fields; the connection stays open."""
    return [Respond(head + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body)]


def line(status: bytes, *fields: bytes, body: bytes = b"") -> list[Step]:
    return answer(*fields, head=b"HTTP/1.1 " + status + b"\r\n", body=body)


def faults(stand: Stand) -> int:
    """Counts failures in the breakers; broken connections count against the host's."""
    deployment = stand.deployment(CHAT.deployment)
    return sum(breaker.snapshot(time.monotonic()).failures for breaker in (deployment.breaker, deployment.host))


# where calls go


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {"api_base": "{}", "base_url": "{}", "api_key": "sk-x"}),
        ({}, {"metadata": {"api_base": "{}", "custom_llm_provider": "{}"}, "extra_body": {"base_url": "{}"}}),
        ({"x-portkey-custom-host": "{}", "x-base-url": "{}", "x-api-base": "{}"}, {}),
        ({"X-Forwarded-Host": "{}", "X-Original-URL": "{}", "X-Host": "{}", "Forwarded": "host={}"}, {}),
        ({"host": "{host}"}, {}),
        ({"x-llm-guard-upstream": "{}", "x-llm-guard-base-url": "{}"}, {}),
    ],
)
async def test_no_input_of_a_client_sends_its_call_or_our_key_elsewhere(
    headers: Mapping[str, str], fields: Mapping[str, object]
) -> None:
    """C40, CVE-2024-6587 and similar ones."""
    async with ScriptedProvider(CHAT.ok) as elsewhere, keyed() as front:
        host = elsewhere.url.removeprefix("http://")

        def aimed(text: str) -> str:
            return text.replace("{host}", host).replace("{}", elsewhere.url)

        body = json.loads(aimed(json.dumps({"model": "gpt", **fields})))
        sent = {name: aimed(value) for name, value in headers.items()}
        for target in (CHAT.path, f"{CHAT.path}?api_base={elsewhere.url}", "/upstreams/one/v1/chat/completions"):
            reply = await ask(front.url, target, json.dumps(body).encode(), sent)
            assert reply.status == 200
            (request,) = front.provider.requests
            assert request.values(b"authorization") == [b"Bearer " + UPSTREAM_KEY.encode()]
            assert json.loads(request.body) == body
            front.provider.requests.clear()
        assert not elsewhere.connections


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("is_stream", [False, True], ids=["unary", "stream"])
async def test_redirect_of_a_call_is_a_failure_and_harms_no_other_call(status: int, is_stream: bool) -> None:
    """C41: neither the gateway with its key nor the client with its own follows a provider's redirect."""
    async with ScriptedProvider(CHAT.ok) as elsewhere:
        pointing = whole(status, b"{}", {"Location": f"{elsewhere.url}/v1/chat/completions"})
        async with facing([pointing]) as (stand, _):
            reply = await CHAT.ask(stand.url, stream=is_stream)
            assert reply.status == 502
            assert "location" not in reply.headers
            assert CHAT.error_of(reply)["code"] == "upstream_misrouted"
            assert elsewhere.url not in reply.text
            assert faults(stand) == 0
        assert not elsewhere.connections


async def test_call_that_was_redirected_may_be_answered_by_its_fallback() -> None:
    """C41: the next deployment is tried."""
    models = {"gpt": {"deployments": [{"upstream": "one"}, {"upstream": "one", "model": "spare"}]}}
    async with facing([whole(307, b"{}", {"Location": "http://169.254.169.254/"})], CHAT.ok, models=models) as (
        stand,
        _,
    ):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-llm-guard-deployment"]) == (200, "one/spare")


async def test_redirect_of_a_file_is_the_clients_to_follow() -> None:
    """C41: a call without a model is passed through, redirect included; the gateway does not follow it."""
    async with ScriptedProvider(CHAT.ok) as elsewhere:
        async with facing([whole(302, b"", {"Location": f"{elsewhere.url}/file"})]) as (stand, _):
            reply = await ask(stand.url, "/v1/files/file-1/content", method="GET")
            assert (reply.status, reply.headers["location"]) == (302, f"{elsewhere.url}/file")
        assert not elsewhere.connections


# what comes back

BROKEN_HEADS = {
    "C48 CR in a value": answer(b"X-Odd: a\rX-Evil: 1"), "C48 NUL in a value": answer(b"X-Odd: a\0b"),
    "C48 a folded line": answer(b"X-Odd: a", b" folded"), "C48 a space before the colon": answer(b"X-Odd : a"),
    "C48 no colon": answer(b"X-Odd"), "C48 a header of a megabyte": answer(b"X-Odd: " + b"a" * (1 << 20)),
    "C48 a megabyte of headers": answer(*(b"X-%d: " % each + b"a" * 1000 for each in range(1000))),
    "C48 chunked, and a length": answer(b"Transfer-Encoding: chunked"),
    "C48 two lengths that differ": answer(b"Content-Length: 5"),
    "C48 a length below zero": answer(head=b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n"),
    "C48 a length with a plus": answer(head=b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n"),
    "C48 a coding besides chunked": answer(head=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n"),
    "C48 a broken chunk": answer(
        head=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", body=b"zz\r\n{}\r\n0\r\n\r\n"
    ),
    "C49 no HTTP": [Respond(b"SSH-2.0-OpenSSH_9.6\r\n"), Close()],
    "C49 HTTP/0.9": [Respond(b"<html>hello</html>"), Close()],
    "C49 HTTP/3.0": [Respond(b"HTTP/3.0 200 OK\r\nContent-Length: 0\r\n\r\n")],
    "C49 a word for a status": line(b"OK 200"), "C49 two digits": line(b"20 OK", b"Content-Length: 0"),
    "C49 four digits": line(b"2000 OK", b"Content-Length: 0"),
    "C49 protocols switched unasked": line(b"101 Switching Protocols", b"Upgrade: h2c", b"Connection: Upgrade"),
    "C49 nothing but interim answers": [Respond(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50), Close()],
}  # fmt: skip


@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in BROKEN_HEADS.items()])
async def test_answer_that_is_not_http_is_the_providers_failure(script: list[Step]) -> None:
    """A 502 and not a client error, though a parser's exception may say 400; the connection is not reused."""
    async with facing(script, CHAT.ok) as (stand, provider):
        reply = await CHAT.ask(stand.url)
        assert reply.status == 502, reply
        assert reply.is_whole
        assert CHAT.error_of(reply)["code"] in ("upstream_malformed", "upstream_network", "upstream_truncated")
        assert "x-evil" not in reply.headers
        assert not any(word in reply.text for word in ("X-Odd", "SSH", "<html>"))
        assert faults(stand) == 1
        assert await provider.connections[0].closed_within(CLOSE_S + stand.lag_s)
        assert (await CHAT.ask(stand.url)).body == CHAT.answer
        assert len(provider.connections) == 2


async def test_folded_line_of_a_response_is_one_line_or_an_error() -> None:
    """C48, RFC 9112, section 5.2: the lines are joined, or the response is refused."""
    async with facing(answer(b"X-Odd: a", b" X-Evil: 1")) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert reply.status == 502 or " ".join(reply.headers["x-odd"].split()) == "a X-Evil: 1"
        assert "x-evil" not in reply.headers


@pytest.mark.parametrize("script", [BROKEN_HEADS["C48 two lengths that differ"], BROKEN_HEADS["C49 no HTTP"]])
async def test_answer_that_is_not_http_is_retried(script: list[Step]) -> None:
    """C48: the failure may be a single one."""
    async with facing(script, CHAT.ok, retry={"max_attempts": 2}) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-llm-guard-attempts"]) == (200, "2")


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (line(b"999 Whatever", b"Content-Length: 2", body=b"{}"), 999),
        (line(b"299 Odd", b"Content-Length: 2", body=b"{}"), 299),
        ([Respond(b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" * 20), *answer()], 200),
        ([Respond(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"), *answer()], 200),
    ],
    ids=["C49 999", "C49 299", "C49 early hints", "C49 progress"],
)
async def test_odd_status_is_passed_on_as_it_is_or_refused_as_a_whole(script: list[Step], status: int) -> None:
    async with facing(script) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert reply.status in (status, 502)
        assert reply.is_whole
        assert 103 not in reply.interim
        assert "link" not in reply.headers


async def test_answer_without_content_is_passed_on_without_content() -> None:
    """C49: a 204 has no body and no framing headers."""
    scripts = line(b"204 No Content"), CHAT.ok
    async with facing(*scripts, answers="off") as (stand, _), Connection(stand.url) as connection:
        connection.writer.write(CHAT.request())
        first = await connection.head()
        assert first.status == 204
        assert not {"content-length", "transfer-encoding"} & set(first.headers)
        assert (await connection.ask(CHAT.request())).body == CHAT.answer


EXTRA = {
    "C50 at once": [Respond(whole(200, CHAT.answer).data + POISON.data)],
    "C50 later, while nobody asks": [whole(200, CHAT.answer), Pause(0.01), POISON],
    "C50 behind a stream": [stream_head(), chunk(CHAT.token + CHAT.end), Respond(END.data + POISON.data)],
    "C50 behind an error": [Respond(whole(400, b'{"error":{"message":"m"}}').data + POISON.data)],
    "C50 behind no content": [Respond(b"HTTP/1.1 204 No Content\r\n\r\n" + POISON.data)],
    "C50 a body that a 204 has not": [Respond(b'HTTP/1.1 204 No Content\r\nContent-Length: 10\r\n\r\n"POISONED"')],
    "C50 bytes that are no HTTP": [Respond(whole(200, CHAT.answer).data + b"POISON POISON")],
    "C50 one line break": [Respond(whole(200, CHAT.answer).data + b"\r\n" + POISON.data)],
    "C50 an interim answer": [whole(200, CHAT.answer), Pause(0.01), Respond(b"HTTP/1.1 100 Continue\r\n\r\n"), POISON],
}  # fmt: skip


@pytest.mark.parametrize("script", [pytest.param(script, id=name) for name, script in EXTRA.items()])
async def test_data_after_a_response_reaches_no_client(script: list[Step]) -> None:
    """C50: the next call on that connection belongs to another client."""
    async with facing(script, CHAT.ok) as (stand, _):
        async with Connection(stand.url) as connection:
            connection.writer.write(CHAT.request())
            first = await connection.head()
            if first.status == 200:
                await connection._body(first)
            assert b"POISON" not in first.body
        if any(isinstance(step, Pause) for step in script):
            await asyncio.sleep(0.05)
        second = await CHAT.ask(stand.url)
        assert (second.status, second.body) == (200, CHAT.answer)


async def test_answer_to_head_has_no_body_that_could_be_the_next_one() -> None:
    """C50: the connection is not reused with the body still on it."""
    async with facing([Respond(whole(200, b'"POISONED"').data)], CHAT.ok) as (stand, _):
        head = await ask(stand.url, "/v1/files", method="HEAD")
        assert head.status == 200
        assert (await CHAT.ask(stand.url)).body == CHAT.answer


async def test_cookie_of_one_callers_answer_reaches_no_other_callers_request() -> None:
    """C51: aiohttp's own cookie jar would replay it."""
    cookie = {"Set-Cookie": "tenant=A; Path=/", "Set-Cookie2": "tenant=A"}
    async with facing([whole(200, CHAT.answer, cookie)], CHAT.ok) as (stand, provider):
        assert "tenant=A" in (await CHAT.ask(stand.url)).headers["set-cookie"]
        reply = await CHAT.ask(stand.url)
        assert "set-cookie" not in reply.headers
        assert len(provider.requests) == 2
        assert b"tenant" not in provider.requests[1]


# classification


MOST_SHARE = 0.25
"""Fraction of `Unit.least_s`: more than twice the cost of the worst of these. A quadratic pattern takes thousands of
times that unit."""


def cost_of(act: Callable[[], object], times: int = 1) -> float:
    """Returns the least processor time of this thread, in seconds, over some tries: other load on the machine does not
    count."""
    costs = []
    for _ in range(times):
        before = time.thread_time()
        act()
        costs.append(time.thread_time() - before)
    return min(costs)


class Unit:
    """The unit of cost: one match of a regular expression for each of 340,000 bytes, without garbage collection.

    It takes a hundred times as long as what it is compared with, so it is measured once, and again only if the
    comparison fails: processors that are shared get slower and faster.
    """

    least_s: ClassVar[float] = inf

    @classmethod
    def measure(cls, times: int) -> float:
        text = b"a " * 170_000
        measured_s = cost_of(lambda: uncollected(list, re.finditer(b".", text)), times)
        cls.least_s = min(cls.least_s, measured_s)
        return measured_s


def is_cheap(act: Callable[[], object]) -> bool:
    """Returns whether `act` takes a fraction of the unit: of the least one so far, or of one measured beside it."""
    if Unit.least_s == inf:
        Unit.measure(3)
    if cost_of(act) <= MOST_SHARE * Unit.least_s:
        return True
    return any(cost_of(act, 2) <= MOST_SHARE * Unit.measure(2) for _ in range(5))


RULES = tuple(
    user_rule(FailureKind.OVERLOADED, message=message)
    for message in ("a * a * a * a * a * a * b", "*a*a*a*a*a*a*a*a*b", "(a+)+$ (.*)* x")
)


def endless_bodies() -> Iterator[bytes]:
    """Yields bodies of 200 kB, each of one repeated piece, as they are and as a provider's sentence."""
    for piece in (
        b"a", b"a ", b" ", b'"', b"'a' ", b"`", b"{", b"[", b'{"error":', b"{'error': ", b"\\", b"<a ", b"<title>",
        b"try again in ", b"1h1m1s ", b"9", b"retry after 9", b"limit 1, used 1, requested 1. ", b"\xff", "é".encode(),
    ):  # fmt: skip
        text = piece * (200_000 // len(piece))
        yield text + b"!"
        yield b'{"error":{"message":"' + text + b'!"}}'


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_no_error_body_keeps_the_classifier_busy(status: int) -> None:
    """C82: reading any of these takes a fraction of the time that one match per byte takes."""
    for body in endless_bodies():
        assert is_cheap(partial(classify_answer, status, {}, body, 0.0, rules=RULES)), body[:40]


def test_no_error_event_keeps_the_classifier_busy() -> None:
    """C82: the same of an error inside a stream."""
    for body in endless_bodies():
        assert is_cheap(partial(classify_event, body, rules=RULES)), body[:40]


def test_operator_pattern_is_words_and_never_a_regular_expression() -> None:
    """C82: an operator's pattern is matched literally."""
    rule = user_rule(FailureKind.OVERLOADED, message="(a+)+$")
    for text, kind in ((b"a" * 50 + b"!", FailureKind.SERVER_ERROR), (b"(a+)+$", FailureKind.OVERLOADED)):
        assert classify_answer(500, {}, b'{"error":{"message":"%b"}}' % text, 0.0, rules=(rule,)).kind is kind


@pytest.mark.parametrize("name", ["retry-after", "x-ratelimit-reset-requests", "date", "ratelimit", "retry-after-ms"])
def test_no_header_keeps_the_classifier_busy(name: str) -> None:
    """C82: headers have at most 32 kB."""
    for piece in ("9", "1h", " ", "a", "1.", "r=1;", '"a";', "Mon, ", "-", ":"):
        value = (piece * 30_000)[:30_000]
        headers = {name: value, "x-ratelimit-limit": value}
        assert is_cheap(partial(classify_answer, 429, headers, b"{}", 0.0)), piece


# verification of the provider


async def test_provider_without_a_valid_certificate_gets_no_call(tmp_path: Path) -> None:
    """C89: no config key turns the check off, and such a failure is not retried on the same host."""
    authority, stranger, trusted = trustme.CA(), trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)
    past = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    future = dt.datetime(2090, 1, 1, tzinfo=dt.UTC)
    certificates = {
        "good": authority.issue_cert("127.0.0.1"),
        "wrong-host": authority.issue_cert("api.openai.com"),
        "wrong-address": authority.issue_cert("127.0.0.2"),
        "expired": authority.issue_cert("127.0.0.1", not_before=past, not_after=past + dt.timedelta(days=1)),
        "not-yet": authority.issue_cert("127.0.0.1", not_before=future, not_after=future + dt.timedelta(days=1)),
        "stranger": stranger.issue_cert("127.0.0.1"),
    }
    async with AsyncExitStack() as stack:
        providers = {}
        for name, certificate in certificates.items():
            providers[name] = TlsProvider(CHAT.ok)
            certificate.configure_cert(providers[name].context)
        for provider in providers.values():
            await stack.enter_async_context(provider)
        upstreams = {
            name: {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": UPSTREAM_KEY}
            for name, provider in providers.items()
        }
        models = {name: {"deployments": [{"upstream": name}]} for name in providers}
        config = config_text("http://127.0.0.1:1", upstreams=upstreams, models=models, retry={"max_attempts": 3})
        served = await stack.enter_async_context(
            serving(tmp_path / "config.yaml", config, env={"SSL_CERT_FILE": str(trusted)})
        )
        for name, provider in providers.items():
            reply = await ask(served.url, CHAT.path, json.dumps({"model": name}).encode())
            if name == "good":
                assert reply.body == CHAT.answer
                continue
            assert reply.status == 502, name
            assert not provider.requests, name
            assert CHAT.error_of(reply)["code"] == "upstream_certificate", name
            assert reply.headers["x-llm-guard-attempts"] == "1", name
            assert UPSTREAM_KEY not in reply.text
        counted = (await fetch(f"{served.url}/metrics")).text
        assert total(counted, "llm_guard_attempts_total", outcome="certificate") == len(providers) - 1


TRUSTING = ["verify", "verify_ssl", "ssl_verify", "insecure"]


@pytest.mark.parametrize("key", [*TRUSTING, *[f"tls.{key}" for key in TRUSTING]])
def test_config_has_no_option_to_skip_certificate_checks(key: str) -> None:
    """C89: keys that would turn off verification are unknown keys."""
    section, _, last = key.rpartition(".")
    upstream = {
        "dialect": "openai",
        "base_url": "https://h/v1",
        **({section: {last: False}} if section else {key: False}),
    }
    text = json.dumps({"upstreams": {"one": upstream}, "models": {"gpt": {"deployments": [{"upstream": "one"}]}}})
    with pytest.raises(ConfigError, match=f"upstreams.one.{key}: unknown key"):
        parse_config(text, env={})
