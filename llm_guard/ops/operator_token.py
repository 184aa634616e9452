"""The token of a gateway whose config has none: from the file in `ops.store`, or in memory where that cannot be had.

Owns which of the two it is, and what is said of it in the log. Does not own the file (`store.token_file`), nor which
configs need such a token (`ops.credentials`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from llm_guard.clock import Clock
from llm_guard.config import Ops
from llm_guard.ops.credentials import needs_generated
from llm_guard.store.errors import StoreError
from llm_guard.store.folder import state_folder
from llm_guard.store.token_file import FILE, shared_token
from llm_guard.store.worker import Worker

_log = structlog.get_logger("llm_guard.ops.operator_token")


@dataclass(frozen=True, slots=True, repr=False)
class Generated:
    """A token that was not chosen by anybody."""

    token: str
    file: Path | None
    """None: it is in this process's memory alone, and another one after a restart."""
    is_new: bool
    """It was made now."""


class OperatorToken:
    """`prepare` blocks: before the gateway serves, and in the thread that reads a config."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        self.generated: Generated | None = None
        """None: none was needed so far."""

    def prepare(self, rules: Ops) -> None:
        """Sees to it that there is a token for this config. What was read is read again: a file that was deleted, so
        that a new token is made, takes effect with a reload."""
        self._adopt(self._look(rules))

    def _look(self, rules: Ops) -> Generated | None:
        """None where the config needs none."""
        if not needs_generated(rules):
            return None
        try:
            folder = state_folder(rules.store, self._env)
            token, is_new = shared_token(folder)
            return Generated(token, folder / FILE, is_new)
        except (OSError, StoreError) as error:
            return self._without_file(str(error))

    def _adopt(self, found: Generated | None) -> None:
        """One that is not needed any more stays: a roll back may bring back the config that needs it."""
        if found is None:
            return
        if self.generated is None or found.token != self.generated.token:
            _tell(found)
        self.generated = found

    async def prepare_within(self, seconds: float, rules: Ops, clock: Clock) -> None:
        """As `prepare`; goes on without the file where the disk does not answer, for calls do not need it."""
        thread = Worker("token")
        try:
            with clock.limit() as limit:
                limit.set(clock.now() + seconds, "token")
                found = await asyncio.get_running_loop().run_in_executor(thread, self._look, rules)
        except TimeoutError:
            found = self._without_file(f"the disk of ops.store has not answered in {seconds:g} s")
        self._adopt(found)
        thread.shutdown()

    def _without_file(self, problem: str) -> Generated:
        """Keeps the token that there is: a disk that fails must not lock operators out."""
        if self.generated is not None:
            _log.error("the file with the operator's token cannot be used; the token stays", problem=problem)
            return self.generated
        remedy = "set ops.token: it is required where ops.store is read-only, and for replicas without a common one"
        event = "the operator's token cannot be kept: away from a terminal nobody can log in"
        _log.error(event, problem=problem, remedy=remedy)
        return Generated(secrets.token_urlsafe(32), None, is_new=True)


def _tell(found: Generated) -> None:
    if found.file is not None:
        done = "was made" if found.is_new else "is read"
        _log.info(f"the operator's token {done}", file=str(found.file), next="llm-guard login prints a link to log in")
