"""Checks of one upstream, each of which needs the one before it: name, connection, certificate, key, models.

`cli.doctor.calls` has those that cost.
"""

from __future__ import annotations

import asyncio
import fnmatch
import socket
import ssl
import urllib.request
from collections.abc import Awaitable, Callable, Collection
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from llm_guard.cli.doctor.calls import ModelCalls
from llm_guard.cli.doctor.exchange import PROBLEM_CHARS, ReportedRequests
from llm_guard.cli.doctor.findings import Report
from llm_guard.cli.doctor.remedies import remedy_of
from llm_guard.cli.doctor.wanted import WantedModels
from llm_guard.clock import Clock
from llm_guard.config.names import did_you_mean
from llm_guard.proxy.http_client.connection_pool import ConnectionPool
from llm_guard.resilience.classification.classify import classify_answer
from llm_guard.routing.deployment import Upstream
from llm_guard.upstreams.probes.requests import (
    MOST_LIST_BYTES,
    ModelList,
    UpstreamRequests,
    UpstreamResponse,
    decoded,
)

_SOON_S = 14 * 86400.0
_DAY_S = 86400.0
_SLOW_S = 2.0
_SKEW_S = 60.0
_NO_CREDENTIALS = "set them up where the cloud's own tools find them, see docs/clouds.md"


class UpstreamDoctor:
    """Checks one upstream."""

    def __init__(
        self,
        upstream: Upstream,
        wanted: WantedModels,
        connections: ConnectionPool,
        context: ssl.SSLContext,
        clock: Clock,
        timeout_s: float,
        callers_key: str | None,
        credential_problem: Callable[[str], Awaitable[str | None]],
    ) -> None:
        """`wanted`: names that the config sends to it. `callers_key`: sent if the upstream has no key of its own.
        `credential_problem` returns why an upstream has no credentials of its cloud."""
        self._upstream = upstream
        self._wanted = wanted
        self._context = context
        self._clock = clock
        self._timeout_s = timeout_s
        self._has_key = upstream.has_own_key or callers_key is not None or upstream.auth == "none"
        self._credential_problem = credential_problem
        self._report = Report(f"upstreams.{upstream.name}")
        requests = UpstreamRequests(upstream, connections, callers_key)
        self._requests = ReportedRequests(requests, self._report, timeout_s)

    async def run(self, *, allows_calls: bool) -> Report:
        """Runs all checks. With `allows_calls` it sends two or three calls for each model."""
        if await self._is_reached() and await self._has_api(lists_models=not allows_calls) and allows_calls:
            calls = ModelCalls(self._upstream, self._requests, self._report, self._clock)
            for model, prefill in self._wanted.models.items():
                await calls.check(model, prefill or self._upstream.prefill)
        return self._report

    # name, connection, certificate

    async def _is_reached(self) -> bool:
        parts = urlsplit(self._upstream.base_url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if (proxy := _proxy_for(parts.scheme, host)) is not None:
            self._report.skip("connection", f"through the proxy {proxy}")
            return True
        report = self._report
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError):
            report.fail("name", f"{host} is not known here", "check the host in base_url, and the DNS")
            return False
        if (address := found[0][4][0]) != host:
            report.ok("name", f"{host} is {address}")
        return await self._is_connected(host, port, is_tls=parts.scheme == "https")

    async def _is_connected(self, host: str, port: int, *, is_tls: bool) -> bool:
        report, began_at = self._report, self._clock.now()
        context = self._context if is_tls else None
        try:
            async with asyncio.timeout(self._timeout_s):
                _, writer = await asyncio.open_connection(
                    host, port, ssl=context, server_hostname=host if is_tls else None
                )
        except ssl.SSLCertVerificationError as error:
            remedy = "renew it, correct base_url, or set tls.ca to the authority that has signed it"
            report.fail("certificate", f"is refused: {error.verify_message}", remedy)
            return False
        except ssl.SSLError as error:
            remedy = "check whether base_url begins with http:// or https://"
            report.fail("connection", f"TLS failed: {error.reason or 'no TLS there'}", remedy)
            return False
        except TimeoutError:
            report.fail("connection", f"none within {self._timeout_s:g} s", "check port and firewalls")
            return False
        except OSError as error:
            report.fail("connection", f"port {port}: {error.strerror or error}", "check the port, and whether it runs")
            return False
        report.ok("connection", f"{(self._clock.now() - began_at) * 1e3:.0f} ms{' with TLS' if is_tls else ''}")
        if (certificate := writer.get_extra_info("peercert")) and "notAfter" in certificate:
            self._judge_certificate(ssl.cert_time_to_seconds(certificate["notAfter"]) - self._clock.wall())
        writer.close()
        return True

    def _judge_certificate(self, left_s: float) -> None:
        detail = f"ends in {left_s / _DAY_S:.0f} days"
        if left_s < _SOON_S:
            self._report.warn("certificate", detail, "have it renewed, or every call fails then")
        else:
            self._report.ok("certificate", detail)

    # key and models

    async def _has_api(self, *, lists_models: bool) -> bool:
        """Requests the list of models, which costs nothing. Returns whether calls make sense. `lists_models`: looks the
        models up in it; calls show it better, since providers know models that they do not list."""
        if (problem := await self._credential_problem(self._upstream.name)) is not None:
            self._report.fail("key", f"there are no credentials: {problem[:PROBLEM_CHARS]}", _NO_CREDENTIALS)
            return False
        if self._upstream.form is not None:
            self._report.skip("models", f"the form {self._upstream.form} has no list; --calls tries them")
            return True
        dialect, began_at = self._requests.dialect, self._clock.now()
        target = f"{self._requests.target(dialect.MODELS_PATH)}?{dialect.WHOLE_LIST}".rstrip("?")
        response = await self._requests.ask("api", "GET", target, most=MOST_LIST_BYTES)
        if response is None:
            return False
        took_s = self._clock.now() - began_at
        self._judge_clock(response)
        if not self._has_key:
            self._report.skip("key", "callers send their own", "give --key to check with one")
            return False
        listed = decoded(response.body, ModelList) if response.status == 200 else None
        if listed is not None:
            self._report.ok("key", "is accepted")
            self._judge_latency(took_s)
            names = {model.id for model in listed.data}
            if lists_models:
                self._judge_models(names)
            self._judge_patterns(names)
            return True
        return self._judge_refusal(response)

    def _judge_refusal(self, response: UpstreamResponse) -> bool:
        """Judges a response that is no list of models. Some servers have none, which is no problem."""
        status, report = response.status, self._report
        if status in (401, 403):
            report.fail("key", f"is refused with {status}", remedy_of("auth"))
            return False
        if status in (404, 405, 501) and response.is_json:
            report.warn("models", f"there is no list ({status})", f"if calls fail as well: {remedy_of('not_found')}")
            for pattern in self._wanted.patterns:
                report.skip("pattern", "is unchecked: there is no list of models", model=pattern)
            return True
        if status in (200, 404) or 300 <= status < 400:
            report.fail("api", f"{status}, and no list of models", remedy_of("not_found"))
            return False
        found = classify_answer(status, response.headers, response.body, self._clock.wall(), self._upstream.family)
        report.fail("api", f"{status}: {found.why[:PROBLEM_CHARS]}", remedy_of(found.kind.category))
        return False

    def _judge_models(self, listed: Collection[str]) -> None:
        for model in self._wanted.models:
            if model in listed:
                self._report.ok("model", "is in the list", model)
            else:
                remedy = f"{remedy_of('model_not_found')}; --calls tries it"
                self._report.warn("model", f"is not in the list{did_you_mean(model, listed)}", remedy, model)

    def _judge_patterns(self, listed: Collection[str]) -> None:
        """Looks for names that match a pattern. Those that clients will send are not known."""
        for pattern in self._wanted.patterns:
            found = sorted(name for name in listed if fnmatch.fnmatchcase(name, pattern))
            if found:
                detail = f"matches {len(found)} in the list, such as {found[0]}; those that clients send are unchecked"
                self._report.ok("pattern", detail, pattern)
            else:
                remedy = "check its spelling: calls with a name that the provider does not know fail"
                self._report.warn("pattern", "matches no name in the list", remedy, pattern)

    def _judge_clock(self, response: UpstreamResponse) -> None:
        try:
            theirs = parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return
        if abs(ahead_s := self._clock.wall() - theirs) > _SKEW_S:
            which = "ahead of" if ahead_s > 0 else "behind"
            remedy = "set this machine's clock (NTP): waits that providers name as instants would be wrong"
            self._report.warn("clock", f"{abs(ahead_s):.0f} s {which} the provider's", remedy)

    def _judge_latency(self, took_s: float) -> None:
        if took_s > _SLOW_S:
            self._report.warn("latency", f"{took_s:.1f} s for the list of models", "check the network from here")


def _proxy_for(scheme: str, host: str) -> str | None:
    """Returns the forward proxy's address, without its credentials; None: there is none for this host."""
    proxies = urllib.request.getproxies()
    if scheme not in proxies or urllib.request.proxy_bypass(host):
        return None
    return urlsplit(proxies[scheme]).netloc.rpartition("@")[2]
