"""Checks of what stands beside the upstreams: the fleet's store, webhooks, and collectors. Sends no notice."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from llm_guard.assembly import describe_store
from llm_guard.cli.doctor.findings import Report
from llm_guard.cli.store_problems import store_problems
from llm_guard.config import Config
from llm_guard.storage.shared.exchange_store import StoreUnavailable


async def check_store(config: Config) -> Report | None:
    """Checks the server of the fleet; None without one."""
    if config.fleet is None:
        return None
    report = Report("fleet.store")
    try:
        store = await describe_store(config.fleet)
    except StoreUnavailable as error:
        report.fail("store", f"none ({error})", "check address and password: until then each gateway works alone")
        return report
    report.ok("store", f"Redis {store.version}, {store.took_s * 1e3:.1f} ms, gateways there now: {store.replicas}")
    for problem, remedy, is_fatal in store_problems(store, keeps_calls=config.store.calls.kind == "redis"):
        (report.fail if is_fatal else report.warn)("settings", problem, remedy)
    return report


def addresses(config: Config) -> Iterator[tuple[str, str]]:
    """Yields key and URL of each webhook and collector."""
    for section, webhooks in (("ops", config.ops.webhooks), ("store", config.store.webhooks)):
        for index, webhook in enumerate(webhooks):
            yield f"{section}.webhooks[{index}]", webhook.url
    for key, url in (
        ("ops.traces.endpoint", config.ops.traces.endpoint),
        ("ops.metrics.otlp", config.ops.metrics.otlp),
    ):
        if url is not None:
            yield key, url


async def check_address(place: str, url: str, timeout_s: float) -> Report:
    """Connects to a receiver, without a request."""
    report, parts = Report(place), urlsplit(url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    try:
        async with asyncio.timeout(timeout_s):
            port = parts.port or (443 if context else 80)
            _, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
    except TimeoutError:
        report.fail("receiver", f"none within {timeout_s:g} s", "check host, port and firewalls")
    except ssl.SSLError as error:
        report.fail("receiver", f"TLS failed: {error.reason}", "renew its certificate, or correct the url")
    except OSError as error:
        report.fail("receiver", f"{error.strerror or error}", "check its url, and whether it runs")
    else:
        writer.close()
        report.ok("receiver", f"{parts.hostname} accepts a connection; nothing was sent")
    return report
