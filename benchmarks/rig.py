"""Starts and stops provider and gateway as separate processes, on separate processors if there are two."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import NotStartedError, Started, started
from llm_guard.event_loop import calm_collector

GATEWAYS_CPU = 0


class ConfigRefusedError(Exception):
    """The gateway refuses this config; the message is its output."""


@contextmanager
def provider(*mock_options: str, port: int = 0) -> Iterator[str]:
    """Starts a provider; yields its address."""
    with started("llm_guard", "mock", "--port", str(port), *mock_options) as running:
        yield running.url


@contextmanager
def gateway(
    config: str, provider_url: str, package: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[Started]:
    """Starts a gateway before a running provider. `{provider}` in `config` and in the environment's `variables` is
    replaced by the provider's address. Raises ConfigRefusedError. `package`: the folder of another llm_guard than this
    one."""
    env = {name: value.replace("{provider}", provider_url) for name, value in (variables or {}).items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(config.replace("{provider}", provider_url))
        try:
            arguments = ("serve", "-c", str(path), "--port", "0")
            with started("llm_guard", *arguments, cpu=GATEWAYS_CPU, package=package, env=env) as running:
                yield running
        except NotStartedError as error:
            if error.code == 2:
                raise ConfigRefusedError(str(error)) from None
            raise


def keep_off_the_gateways_processor() -> None:
    """Pins this process to the other processors, which load and provider share."""
    if (os.cpu_count() or 1) > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(1, os.cpu_count() or 1))


def begin_simulation() -> None:
    """Prepares a worker process of a simulation: it may use every processor, because it has no gateway process."""
    calm_collector()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
