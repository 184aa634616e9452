"""Overrides of the config from the command line of `llm-guard serve`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_guard.config.models import Config


@dataclass(frozen=True, slots=True)
class CommandLineOverrides:
    """Values by key; None: not given."""

    server: Mapping[str, int | str | None]
    log: Mapping[str, str | None]

    def applied(self, config: Config) -> Config:
        """Returns the config with these values."""
        log = config.ops.log.model_copy(update=_given(self.log))
        server, ops = config.server.model_copy(update=_given(self.server)), config.ops.model_copy(update={"log": log})
        return config.model_copy(update={"server": server, "ops": ops})


def _given(values: Mapping[str, int | str | None]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
