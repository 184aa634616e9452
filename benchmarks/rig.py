"""Provider and gateway as processes of their own, on processors of their own where there are two.

Owns starting, stopping and asking them. Does not own what is measured.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.processes import NotStartedError, started


@dataclass(frozen=True, slots=True)
class Rig:
    """A running gateway and the provider behind it."""

    provider_url: str
    gateway_url: str
    gateway: psutil.Process

    def upstream_requests(self, model: str) -> int:
        """Requests for `model`, faults included in its name, that the provider has seen since its start."""
        with urllib.request.urlopen(f"{self.provider_url}/mock/stats", timeout=10) as answer:
            stats: dict[str, Any] = json.load(answer)
        return int(stats["by_model"].get(model, 0))

    def cpu_s(self) -> float:
        """Processor seconds the gateway has used since its start."""
        times = self.gateway.cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        """The gateway's resident memory."""
        return int(self.gateway.memory_info().rss)


class ConfigRefusedError(Exception):
    """The gateway does not take this config; the message is what it said."""


@contextmanager
def rig(config: str, *mock_options: str) -> Iterator[Rig]:
    """Both processes; `{provider}` in `config` becomes the provider's address."""
    with provider(*mock_options) as provider_url, gateway(config, provider_url) as running:
        yield running


@contextmanager
def provider(*mock_options: str, port: int = 0) -> Iterator[str]:
    """A provider alone: its address."""
    with started("llm_guard", "mock", "--port", str(port), *mock_options) as running:
        yield running.url


@contextmanager
def gateway(config: str, provider_url: str) -> Iterator[Rig]:
    """A gateway before a provider that runs already; raises ConfigRefusedError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(config.replace("{provider}", provider_url))
        try:
            with started("llm_guard", "serve", "-c", str(path), "--port", "0", cpu=0) as running:
                yield Rig(provider_url, running.url, running.process)
        except NotStartedError as error:
            if error.code == 2:
                raise ConfigRefusedError(str(error)) from None
            raise


def keep_off_the_gateways_processor() -> None:
    """Load and provider share the other one."""
    if (os.cpu_count() or 1) > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(1, os.cpu_count() or 1))
