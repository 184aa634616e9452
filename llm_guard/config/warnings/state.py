"""Warns of a state folder that cannot be written, that other users can write, or that other gateways do not share."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from llm_guard.config.models import Config
from llm_guard.config.yaml_source import Finding, KeyPath

_OTHERS_WRITE = 0o022
_STORE: KeyPath = ("ops", "store")


def unshared_index(config: Config) -> Iterator[Finding]:
    """Warns in any case: how many gateways serve the same keys is not known here."""
    if config.store.objects.kind == "sqlite" and config.server.isolate_objects and config.ops.store is None:
        remedy = "" if config.fleet is None else "set store.objects.kind to redis, or "
        reason = (
            f"the index of objects is in this machine's default folder: {remedy}set ops.store to a folder that "
            "outlives the gateway, and that all gateways with these client keys share; without it a client gets 404 "
            "for its own objects"
        )
        yield ("server", "isolate_objects"), reason


def unshared_calls(config: Config) -> Iterator[Finding]:
    """Warns if gateways of a fleet store calls in files of their own."""
    if config.fleet is None or config.store.calls.kind != "sqlite" or config.ops.store is not None:
        return
    if any(model.deferred.mode != "off" for model in config.models.values()):
        reason = (
            "deferred calls are in this machine's files, and a client gets 404 for its call at the other gateways of "
            "the fleet: set it to redis, or ops.store to a folder that all of them share; or set deferred.mode: off"
        )
        yield ("store", "calls", "kind"), reason


def unwritable_state(state: Path) -> Iterator[Finding]:
    """Yields a warning if this user cannot create or write the folder."""
    folder = state.expanduser().absolute()
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        reason = f"{nearest} is not a folder: choose another path, or remove it"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        reason = f"{nearest} cannot be written by this user: change its owner or mode, or choose another path"
    else:
        return
    yield _STORE, f"{reason}; without it nothing survives a restart"


def shared_state(state: Path) -> Iterator[Finding]:
    """Yields a warning for each folder on the path, also behind symbolic links, through which other users can write to
    the state folder or replace it."""
    folder = state.expanduser().absolute()
    found = {path.resolve(): (path, mode) for path, mode in (*_shared_on(folder.resolve()), *_shared_on(folder))}
    for path, mode in found.values():
        yield _STORE, f"other users can write to {path} (mode {mode:o}), and so replace {folder}: chmod go-w {path}"


def _shared_on(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yields the folder and its parents, each with its mode, if others may write in them."""
    is_below = False  # True if the child of this folder exists
    for path in (folder, *folder.parents):
        mode = _mode(path)
        if mode is not None and _is_shared(mode, is_own=path == folder, is_below=is_below):
            yield path, mode
        is_below = mode is not None


def _is_shared(mode: int, *, is_own: bool, is_below: bool) -> bool:
    """In a sticky folder such as /tmp, users cannot replace another user's folder, but can create it first."""
    if is_own:
        return bool(mode & _OTHERS_WRITE)
    return bool(mode & stat.S_IWOTH) and not (mode & stat.S_ISVTX and is_below)


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
