"""The `engines` section: local inference engines behind upstreams, and their restarts.

Defines these keys, their ranges and their defaults. The restart schedule is in `resilience.health.restart_policy`;
engines are started in `upstreams`.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema, field_validator, model_validator

from llm_guard.config.fields import AlsoWritten, NonEmptyText, Strict, wrong
from llm_guard.resilience.health.restart_policy import PRESETS, Preset, RestartSettings
from llm_guard.resilience.units import RATIO, OptionalSeconds, Seconds, Unit, nullable, or_none, parse_ratio


def _times(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1000:
        raise wrong("must be a whole number from 1 to 1000")
    return value


def _texts(pattern: str, reason: str) -> BeforeValidator:
    def check(value: object) -> object:
        if isinstance(value, str) and not re.fullmatch(pattern, value):
            raise wrong(reason)
        return value

    return BeforeValidator(check)


def _provision(value: object) -> object:
    if value not in (True, False, "on_get"):
        raise wrong("must be true, false or on_get")
    return value


_Times = Annotated[int, BeforeValidator(_times), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 1000})]
_Variable = Annotated[str, _texts("[A-Za-z_][A-Za-z0-9_]*", "is not a valid variable name: use letters, digits and _")]
_Argument = Annotated[str, _texts("[^\x00]*", "must not contain the NUL character")]
# github.com/moby/moby, daemon/names. It is part of a URL path.
_Container = Annotated[str, _texts("[A-Za-z0-9][A-Za-z0-9_.-]{0,254}", "is not a valid container name")]
# systemd.unit(5). It must not look like an option.
_Unit = Annotated[
    str, _texts(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,254}", "is not a valid unit name such as vllm.service")
]


class CommandConfig(Strict):
    """A child process of the gateway."""

    argv: tuple[_Argument, ...] = Field(min_length=1)
    """Program and arguments, run without a shell."""
    env: dict[_Variable, _Argument] = Field(default_factory=dict, repr=False)
    """Variables in addition to those that every engine gets."""
    pass_env: tuple[_Variable, ...] = ()
    """Variables of the gateway's environment that are passed on."""
    folder: NonEmptyText | None = None
    """Working directory; None: the gateway's."""

    @field_validator("argv")
    @classmethod
    def _check_argv(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        if not argv[0].strip():
            raise wrong("must start with the program")
        return argv


class ContainerConfig(Strict):
    """An existing container on this machine."""

    container: _Container
    """Name of the container."""
    socket: NonEmptyText | None = None
    """The daemon's socket; None: its default."""


class UnitConfig(Strict):
    """A systemd unit."""

    unit: _Unit
    """Name of the unit, such as `vllm.service`."""
    user: bool = False
    """True: a unit of the user's own service manager."""


class RestartConfig(Strict):
    """A preset and what differs from it; None: as in the preset. Durations in seconds."""

    preset: Preset = "production"
    """Values of all keys that are not set here."""
    base_delay: OptionalSeconds = None
    """The first wait; each further one is twice as long. None: the preset's."""
    max_delay: OptionalSeconds = None
    """The longest wait. None: the preset's."""
    jitter: Annotated[float | None, Unit(or_none(parse_ratio), nullable(RATIO))] = None
    """Share by which a wait is shorter or longer. None: the preset's."""
    max_attempts: _Times | None = None
    """Attempts in a row until the engine is given up. None: the preset's."""
    max_per_hour: _Times | None = None
    """Restarts an hour; a further one waits. None: the preset's."""
    reset_after: OptionalSeconds = None
    """How long it must run well until its attempts are forgotten. None: the preset's."""

    @property
    def settings(self) -> RestartSettings:
        own = {name: value for name in _OF_A_SCHEDULE if (value := getattr(self, name)) is not None}
        return dataclasses.replace(PRESETS[self.preset], **own)


_OF_A_SCHEDULE = tuple(field.name for field in dataclasses.fields(RestartSettings))


_ONE_WAY: list[JsonValue] = [
    {"required": [way], "properties": {way: {"type": "object"}}} for way in ("command", "docker", "podman", "systemd")
]


class EngineConfig(Strict):
    """One engine. Exactly one of command, docker, podman and systemd is set."""

    model_config = ConfigDict(json_schema_extra={"oneOf": _ONE_WAY})

    upstreams: tuple[NonEmptyText, ...] = Field(min_length=1)
    """Upstreams that it serves."""
    command: CommandConfig | None = None
    """A child process of the gateway."""
    docker: ContainerConfig | None = None
    """An existing Docker container."""
    podman: ContainerConfig | None = None
    """An existing Podman container."""
    systemd: UnitConfig | None = None
    """A systemd unit."""
    start_timeout: Seconds = 120.0
    """Maximum duration of its start."""
    stop_timeout: Seconds = 20.0
    """How long it may take to end by itself before it is killed."""
    restart: Annotated[RestartConfig, AlsoWritten({"enum": list(PRESETS)})] = RestartConfig()
    """When it is restarted: a preset, or a preset with changes."""
    standby: bool = False
    """A standby engine: not started with the gateway."""
    auto_provision: Annotated[
        bool | Literal["on_get"], BeforeValidator(_provision), WithJsonSchema({"enum": [True, False, "on_get"]})
    ] = False
    """A standby engine: POST /admin/admit starts it; on_get: GET /admin/admit?auto_provision=true does too."""

    @field_validator("restart", mode="before")
    @classmethod
    def _read_restart(cls, value: object) -> object:
        return {"preset": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self._ways()) != 1:
            raise wrong("needs exactly one of command, docker, podman and systemd")
        if self.auto_provision and not self.standby:
            raise wrong("auto_provision only works for standby engines: set standby: true as well")
        return self

    @property
    def kind(self) -> Literal["command", "docker", "podman", "systemd"]:
        """Name of the key that says how it is run."""
        if self.command is not None:
            return "command"
        return "systemd" if self.systemd is not None else "docker" if self.docker is not None else "podman"

    @property
    def provision(self) -> Literal["never", "on_post", "on_get"]:
        """Method of /admin/admit that starts it."""
        return "on_get" if self.auto_provision == "on_get" else "on_post" if self.auto_provision else "never"

    @property
    def way(self) -> CommandConfig | ContainerConfig | UnitConfig:
        """How it is run."""
        return self._ways()[0]

    def _ways(self) -> list[CommandConfig | ContainerConfig | UnitConfig]:
        return [way for way in (self.command, self.docker, self.podman, self.systemd) if way is not None]
