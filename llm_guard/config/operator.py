"""The operator's part of the config: where the gateway is looked into, and what it keeps for that.

Owns these keys, their ranges and their defaults. Does not own what is done with them (`ops`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llm_guard.config.fields import OptionalSecret, Port, Text
from llm_guard.config.strict import Strict
from llm_guard.policy.units import Size

Calls = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]


class TimelineSettings(Strict):
    """What is kept of calls that are over, in memory."""

    calls: Calls = 1000
    """The last ones; of failed ones as many again."""
    memory: Size = 16 * 1024**2
    """Of both together, in bytes."""


class Ops(Strict):
    """Where the operator reaches it; `port` None: on the server's port."""

    port: Port | None = None
    host: Text = "127.0.0.1"
    token: OptionalSecret = Field(default=None, repr=False)
    hosts: tuple[Text, ...] = ()
    """Names under which /admin may be asked for besides localhost, the listeners' own and addresses; `*`: any."""
    store: Text | None = None
    """The folder for what outlives the process; None: XDG_STATE_HOME/llm-guard, and memory if that cannot be had."""
    timelines: TimelineSettings = TimelineSettings()
