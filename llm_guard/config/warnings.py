"""Warnings of `llm-guard check` about settings that are allowed but rarely intended; the gateway runs with them.

Settings that are refused are in `config.checks`. Inspects the config file and the state folder, so it must run on the
gateway's machine.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from llm_guard.config.loader import text_in
from llm_guard.config.models import Config
from llm_guard.config.names import did_you_mean, matching_key
from llm_guard.config.yaml_source import dotted, read_document

_OTHERS_WRITE = 0o022
_SHORT = 16

_Place = tuple[int | str, ...]


def warnings_of(config: Config, path: Path, state: Path | None) -> list[str]:
    """`path`: the config file; `state`: the state folder, None if there is none."""
    found = [*_open_to_all(config), *_unrouted_models(config), *_unshared_index(config), *_short_tokens(config)]
    return [*found, *_readable_secrets(path), *_shared_state(state)]


def _open_to_all(config: Config) -> Iterator[str]:
    paid = [name for name, upstream in config.upstreams.items() if upstream.has_own_key]
    if paid and not config.server.client_keys and not _is_loopback(config.server.host):
        yield (
            f"server.host: {config.server.host} is reachable from other machines and there are no server.client_keys: "
            f"any client can use the API key of {', '.join(paid)}"
        )


def _unrouted_models(config: Config) -> Iterator[str]:
    for key in config.server.client_keys:
        for name in key.allow.models or ():
            if not name.endswith("*") and matching_key(config.models, name) is None:
                yield (
                    f"server.client_keys, {key.name}: allow.models has {name}, and no entry of models is for it: only "
                    f"/upstreams/NAME can serve it{did_you_mean(name, config.models)}"
                )


def _unshared_index(config: Config) -> Iterator[str]:
    """Warns in any case: how many gateways serve the same keys is not known here."""
    if config.server.isolate_objects and config.ops.store is None:
        yield (
            "server.isolate_objects: the index of objects is in this machine's default folder: set ops.store to a "
            "folder that outlives the gateway, and that all gateways with these client keys share; without it a client "
            "gets 404 for its own objects"
        )


def _short_tokens(config: Config) -> Iterator[str]:
    tokens = {
        "ops.token": config.ops.token,
        **{f"ops.tokens, {named.name}": named.token for named in config.ops.tokens},
    }
    for key, token in tokens.items():
        if token is not None and len(token) < _SHORT:
            yield f"{key}: has fewer than {_SHORT} characters and can be guessed: use `openssl rand -base64 32`"


def _readable_secrets(path: Path) -> Iterator[str]:
    """Warns of secrets in the config file if any user of the machine can read it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IROTH:
        for key in _plain_secrets(path):
            yield f"{key}: is in a file that all users of this machine can read (mode {mode:o}): chmod o-r {path}"


def _plain_secrets(path: Path) -> Iterator[str]:
    """Yields the places of secrets that the file itself contains, such as a default (`${NAME:-default}`) or a text with
    an escaped dollar sign. Their values are the same with and without the variables of the environment."""
    text = text_in(path)
    without_variables = _secrets(read_document(text, str(path), {}).data)
    for place, value in _secrets(read_document(text, str(path), os.environ).data).items():
        if value and value == without_variables.get(place):
            yield dotted(place)


def _secrets(data: object) -> dict[_Place, str]:
    found: dict[_Place, str] = {}
    left: list[tuple[_Place, object]] = [((), data)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            left += [((*place, key), member) for key, member in items]
        elif isinstance(value, str) and _is_secret(place):
            found[place] = value
    return found


def _is_secret(place: _Place) -> bool:
    match place:
        case ("ops", "token") | ("ops", "tokens", _, "token") | ("server", "client_keys", _, "key"):
            return True
        case ("upstreams", _, "api_key") | ("upstreams", _, "api_keys", _) | ("store", "encryption_key"):
            return True
        case ("upstreams", _, "api_keys", _, "key") | ("ops" | "store", "webhooks", _, "secret"):
            return True
        case _:
            return False


def _shared_state(state: Path | None) -> Iterator[str]:
    """Warns of a state folder that other users can write to or replace, also through a symbolic link on its path."""
    if state is None:
        return
    folder = state.expanduser().absolute()
    found = {path.resolve(): (path, mode) for path, mode in (*_shared_on(folder.resolve()), *_shared_on(folder))}
    for path, mode in found.values():
        yield f"ops.store: other users can write to {path} (mode {mode:o}), and so replace {folder}: chmod go-w {path}"


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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
