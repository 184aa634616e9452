"""The generated token of a gateway that has none in its config: from the file in `ops.store`, or in memory if that
fails."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from llm_guard.admin.http.credentials import needs_generated
from llm_guard.clock import Clock
from llm_guard.config import Ops
from llm_guard.storage.errors import StoreError
from llm_guard.storage.state_dir import state_folder
from llm_guard.storage.token_file import FILE, shared_token
from llm_guard.worker_thread import WorkerThread, wait_at_most

_log = structlog.get_logger("llm_guard.admin.http.operator_token")


@dataclass(frozen=True, slots=True, repr=False)
class Generated:
    """A generated token."""

    token: str
    file: Path | None
    """None: the token is in memory only, and a restart generates another one."""
    is_new: bool
    """It was generated just now."""


class OperatorToken:
    """Provides the generated token. `prepare` blocks: call it before the gateway serves, or in the thread that reads a
    config."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        self.generated: Generated | None = None
        """None: no config has needed one so far."""

    def prepare(self, rules: Ops) -> None:
        """Provides a token if the config needs one. Reads the file again, so that after deleting it a reload makes a
        new token."""
        self._adopt(self._look(rules))

    def _look(self, rules: Ops) -> Generated | None:
        """Returns the token, or None where the config needs none."""
        if not needs_generated(rules):
            return None
        try:
            folder = state_folder(rules.store, self._env)
            token, is_new = shared_token(folder)
            return Generated(token, folder / FILE, is_new)
        except (OSError, StoreError) as error:
            return self._without_file(str(error))

    def _adopt(self, found: Generated | None) -> None:
        """Keeps a token that is no longer needed: a rollback may restore the config that needs it."""
        if found is None:
            return
        if self.generated is None or found.token != self.generated.token:
            _tell(found)
        self.generated = found

    async def prepare_within(self, seconds: float, rules: Ops, clock: Clock) -> None:
        """Does the same as `prepare`, but goes on without the file if the disk is too slow: calls do not need the
        token."""
        try:
            found = await wait_at_most(seconds, WorkerThread("token").run(self._look, rules), clock)
        except TimeoutError:
            found = self._without_file(f"the disk of ops.store has not responded within {seconds:g} s")
        self._adopt(found)

    def _without_file(self, problem: str) -> Generated:
        """Keeps the current token, if there is one: a disk failure must not lock operators out."""
        if self.generated is not None:
            _log.error("the operator token file cannot be used; the current token stays valid", error=problem)
            return self.generated
        remedy = "set ops.token: it is required where ops.store is read-only, and for replicas that do not share it"
        event = "the operator token cannot be stored: login is possible at this terminal only"
        _log.error(event, error=problem, remedy=remedy)
        return Generated(secrets.token_urlsafe(32), None, is_new=True)


def _tell(found: Generated) -> None:
    if found.file is not None:
        done = "was generated" if found.is_new else "was read"
        _log.info(f"the operator token {done}", file=str(found.file), next="llm-guard login prints a link to log in")
