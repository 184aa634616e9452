"""The messages between the parent and a worker, and their encoding. Both are always of one version."""

from __future__ import annotations

import msgspec

from llm_guard.resilience.capacity.slot_sharing import SlotRequest
from llm_guard.storage.shared.exchange_store import Exchanged, Override, StoredOverrides
from llm_guard.workers.snapshot import FamilySnapshot


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class StartWorker(_Message, frozen=True):
    """Parent: the first message, with all that the worker needs."""

    number: int
    workers: int
    """Number of all workers."""
    port: int
    admin_socket: str
    path: str
    """The config file, for messages and relative paths; it is not read."""
    text: str
    """The content of the config file."""
    server: dict[str, int | str | None]
    log: dict[str, str | None]
    """Overrides from the command line."""


class WorkerReady(_Message, frozen=True):
    """Worker: it accepts connections."""

    digest: str
    """Digest of its config."""


class StartFailed(_Message, frozen=True):
    """Worker: it cannot start, and ends."""

    problem: str
    is_config: bool
    """The config is the reason, else the system."""


class Beat(_Message, frozen=True):
    """Worker: its event loop runs."""

    digest: str
    """Digest of the config that it uses."""
    drain_s: float
    """The longest that its drain may take by this config."""


class StopWorker(_Message, frozen=True):
    """Parent: drain and end; a second one ends the running calls."""


class ExchangeRequest(_Message, frozen=True):
    """Worker: `ExchangeStore.exchange`. The reply is an `ExchangeReply`."""

    content: bytes
    wanted: dict[str, float]
    slots: dict[str, SlotRequest]


class ExchangeReply(_Message, frozen=True):
    found: Exchanged


class OverridesRequest(_Message, frozen=True):
    """Worker: `ExchangeStore.change_overrides`. The reply is an `OverridesReply`."""

    changed: dict[str, Override]


class OverridesReply(_Message, frozen=True):
    found: StoredOverrides


class Withdraw(_Message, frozen=True):
    """Worker: `ExchangeStore.close`."""


class ReadConfig(_Message, frozen=True):
    """Worker: it is about to reload. The reply is a `ConfigRead`, or `ReloadRefused`."""


class ConfigRead(_Message, frozen=True):
    text: str


class Agree(_Message, frozen=True):
    """Worker: it has read a config. The reply, `Agreed` or `ReloadRefused`, comes when all workers have."""

    digest: str
    is_rollback: bool


class Agreed(_Message, frozen=True):
    pass


class ReloadRefused(_Message, frozen=True):
    problems: list[str]


class Reload(_Message, frozen=True):
    """Parent: reload now. The reply is `Agreed` once the config is in use, or a `ReloadRefused`."""

    by: str


class TakeMetrics(_Message, frozen=True):
    """Parent: the reply is a `MetricsTaken`."""


class MetricsTaken(_Message, frozen=True):
    """Worker: its metrics; sent unasked before it ends."""

    families: list[FamilySnapshot]


Message = (
    StartWorker | WorkerReady | StartFailed | Beat | StopWorker | ExchangeRequest | ExchangeReply | OverridesRequest
    | OverridesReply | Withdraw | ReadConfig | ConfigRead | Agree | Agreed | ReloadRefused | Reload | TakeMetrics
    | MetricsTaken
)  # fmt: skip


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A message with its place in the conversation."""

    number: int
    """Number of a request, which its reply repeats; 0: no reply is expected."""
    is_reply: bool
    body: Message


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Frame).decode
