"""/admin/config: the running config, the source of each key, validation, reload and rollback.

`config_reloader` runs the configs, `config` masks secrets and finds lines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from llm_guard.admin.audit.changes import Changed, ChangeResult, Changes
from llm_guard.admin.http.endpoint import AdminRequest, AdminResponse, Change, Endpoint, EndpointGroup, Refused, answer
from llm_guard.clock import iso
from llm_guard.config import Config, ConfigError, ConfigProblem, KeyChange, KeyOrigin, KeyPath, effective_keys, shown
from llm_guard.config_reloader import Adopted, AdoptionCause, ConfigReloader, NothingToDo
from llm_guard.worker_thread import WorkerThread

_MOST_CHANGES = 1000
_WITHOUT_ENTRIES = ("server", "ops", "store", "probes", "defaults")
ROLLED_BACK = (
    "the running config differs from the file: a restart, a reload or the next change of the file undoes the rollback"
)


class ConfigLine(Struct, frozen=True):
    """A config that was adopted."""

    at: str
    how: AdoptionCause
    by: str
    """`start`, `file`, `signal`, or an operator."""
    digest: str
    """Equal for equal configs, also on other gateways; secrets are left out."""
    changes: int
    """Keys changed since the previous config."""


class RunningConfig(Struct, frozen=True):
    """Response of `GET /admin/config`."""

    source: str | None
    """Path of the file; null: there is none."""
    problems: list[str]
    """Problems of the file, if it has been read since and rejected: then the running config is older."""
    warnings: list[str]
    """Properties of the running config that a restart or reload undoes."""
    adopted: ConfigLine
    config: dict[str, Any]
    """The config. Durations in seconds, sizes in bytes; secrets are masked, or null."""


class KeysQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Selects entries of the config. Without a parameter: every section that has no entries."""

    model: str | None = None
    """A key of `models`."""
    upstream: str | None = None
    """A key of `upstreams`."""


class ConfigKey(Struct, frozen=True):
    """A key of the running config."""

    key: str
    """For example `models.gpt-4.timeout.total`."""
    value: Any
    """Effective value. Durations in seconds, sizes in bytes; a secret is masked, or null."""
    origin: KeyOrigin
    """file: a line of the file sets it. default: built in. other: the file as it is now has another value, or an option
    of the command line sets it."""
    set_by: str | None
    """The key in the file that sets it: its own, or one of `defaults`; null: no line does."""
    line: int | None
    """Line of `set_by`, from 1."""


class ConfigKeys(Struct, frozen=True):
    """Response of `GET /admin/config/keys`."""

    source: str | None
    """Path of the file; null: there is none."""
    problem: str | None
    """Why no lines are known; null: they are."""
    keys: list[ConfigKey]
    """Keys with their effective values."""


class ConfigText(Struct, forbid_unknown_fields=True):
    """Content of a config file."""

    text: Annotated[str, Meta(max_length=1_000_000)]


class TextProblem(Struct, frozen=True):
    line: int
    """Line from 1; 0: the text as a whole."""
    key: str
    reason: str


class ConfigCheck(Struct, frozen=True):
    """Result of a validation."""

    is_valid: bool
    problems: list[TextProblem]
    unchecked: list[str]
    """Keys with a value from a variable, which is not checked."""


class ConfigAdopted(Struct, frozen=True):
    """The config that runs now."""

    adopted: ConfigLine
    changes: list[KeyChange]
    """Changed keys, at most a thousand; what models inherit is listed once, under `defaults`."""


class ConfigHistory(Struct, frozen=True):
    """Response of `GET /admin/config/history`."""

    history: list[ConfigLine]
    """Adopted configs, latest first: that one is running."""
    rollback_to: ConfigLine | None
    """Config that a rollback would apply; null: there is none."""


class ConfigApi(EndpointGroup):
    """Endpoints of the config. Texts are parsed outside the event loop."""

    def __init__(self, reloads: ConfigReloader, changes: Changes) -> None:
        self._reloads = reloads
        self._changes = changes
        self._thread = WorkerThread("config shown")

    def pages(self) -> list[Endpoint]:
        adopted = Changed[ConfigAdopted]
        check = "Validates a config. Changes nothing."
        return [
            Endpoint(
                "GET",
                "/admin/config",
                "Returns the running config, with secrets masked.",
                self._show,
                gives=RunningConfig,
            ),
            Endpoint(
                "GET",
                "/admin/config/keys",
                "Returns each key's effective value, and the line of the file that sets it.",
                self._keys,
                query=KeysQuery,
                gives=ConfigKeys,
                may_miss=True,
            ),
            Endpoint("GET", "/admin/config/history", "Lists the last configs.", self._history, gives=ConfigHistory),
            Endpoint("POST", "/admin/config/validate", check, self._validate, takes=ConfigText, gives=ConfigCheck),
            Endpoint(
                "POST",
                "/admin/config/reload",
                "Reads the config file and applies it.",
                self._reload,
                takes=Change,
                gives=adopted,
            ),
            Endpoint(
                "POST",
                "/admin/config/rollback",
                "Applies the previous config.",
                self._rollback,
                takes=Change,
                gives=adopted,
            ),
        ]

    async def _show(self, _asked: AdminRequest) -> AdminResponse:
        reloads = self._reloads
        source = str(reloads.path) if reloads.path is not None else None
        config = await self._thread.run(shown, reloads.current.config)
        warnings = _warnings(reloads)
        return answer(RunningConfig(source, list(reloads.problems), warnings, _line(reloads.current), config))

    async def _keys(self, asked: AdminRequest) -> AdminResponse:
        reloads, config = self._reloads, self._reloads.current.config
        found = await self._thread.run(effective_keys, config, _sections(config, asked.wants), reloads.path)
        keys = [ConfigKey(key.key, key.value, key.origin, key.set_by, key.line) for key in found.keys]
        return answer(ConfigKeys(str(reloads.path) if reloads.path is not None else None, found.problem, keys))

    async def _history(self, _asked: AdminRequest) -> AdminResponse:
        before = self._reloads.rollback_target
        lines = [_line(adopted) for adopted in reversed(self._reloads.history)]
        return answer(ConfigHistory(lines, _line(before) if before is not None else None))

    async def _validate(self, asked: AdminRequest) -> AdminResponse:
        tried = await self._reloads.check(asked.body.text)
        problems = [TextProblem(problem.line, problem.key, problem.reason) for problem in tried.problems]
        return answer(ConfigCheck(not problems, problems, list(tried.unchecked)))

    async def _reload(self, asked: AdminRequest) -> AdminResponse:
        return await self._adopt(asked, "config.reload", self._reloads.reload)

    async def _rollback(self, asked: AdminRequest) -> AdminResponse:
        return await self._adopt(asked, "config.rollback", self._reloads.rollback)

    async def _adopt(self, asked: AdminRequest, what: str, adopt: Callable[[str], Awaitable[Adopted]]) -> AdminResponse:
        async def do() -> ChangeResult:
            try:
                adopted = await adopt(asked.who)
            except ConfigError as error:
                raise Refused(422, "invalid_config", _rejection(error.problems)) from None
            except NothingToDo as nothing:
                raise Refused(409, "nothing_to_do", str(nothing)) from None
            warnings = [f"{key}: the change needs a restart" for key in adopted.needs_restart]
            detail = detail_of(adopted)
            now = ConfigAdopted(_line(adopted), detail["changes"])
            return ChangeResult(now, detail, [*_warnings(self._reloads), *warnings])

        return await self._changes.make(asked, what, str(self._reloads.path or "config"), do)


def detail_of(adopted: Adopted) -> dict[str, Any]:
    """Returns the details for the audit trail."""
    return {"digest": adopted.digest, "changes": list(adopted.changes[:_MOST_CHANGES])}


def _sections(config: Config, wanted: KeysQuery) -> list[KeyPath]:
    """Returns the selected sections. Raises Refused for an unknown name."""
    if wanted.model is None and wanted.upstream is None:
        return [(section,) for section in _WITHOUT_ENTRIES]
    found: list[KeyPath] = []
    for section, name, known in (
        ("upstreams", wanted.upstream, config.upstreams),
        ("models", wanted.model, config.models),
    ):
        if name is not None and name not in known:
            raise Refused(404, "unknown_name", f"{section} has no entry {name}")
        if name is not None:
            found.append((section, name))
    return found


def _warnings(reloads: ConfigReloader) -> list[str]:
    return [ROLLED_BACK] if reloads.is_rolled_back else []


def _rejection(problems: tuple[ConfigProblem, ...]) -> str:
    more = f"\nand {len(problems) - 20} more" if len(problems) > 20 else ""
    return "the config was rejected, and the running one is unchanged:\n" + "\n".join(map(str, problems[:20])) + more


def _line(adopted: Adopted) -> ConfigLine:
    return ConfigLine(iso(adopted.at), adopted.how, adopted.by, adopted.digest, len(adopted.changes))
