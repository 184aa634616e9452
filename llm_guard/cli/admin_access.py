"""Finds the address of a config's gateway, and a token that it accepts, for commands; the gateway need not run."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import click

from llm_guard.admin.http.credentials import OPERATOR, Credential, Role
from llm_guard.config import ConfigError, Ops, Server, load_access
from llm_guard.storage.errors import StoreError
from llm_guard.storage.state_dir import state_folder
from llm_guard.storage.token_file import FILE, read_token

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # loopback address to reach a listener on all addresses

Access = tuple[Server, Ops]
"""Sections of a config that are needed to reach the gateway."""


class NoToken(Exception):
    """No token was found. The message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A token with its name and role."""

    name: str
    role: Role
    token: str = field(repr=False)

    @property
    def credential(self) -> Credential:
        return Credential.of(self.name, self.role, self.token)


def load(path: Path | None) -> Access | None:
    """Loads the sections. Exits if they are invalid; the rest of the config may be."""
    try:
        return None if path is None else load_access(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def token_of(access: Access | None, name: str | None = None) -> AdminToken:
    """Returns the token called `name`, else an operator's: the config's, or that of the file in `ops.store` (by default
    in the usual directory). Raises NoToken."""
    rules = access[1] if access is not None else Ops()
    if name not in (None, OPERATOR):
        return _named(rules, name)
    if rules.token is not None:
        return AdminToken(OPERATOR, "operator", rules.token)
    for token in rules.tokens:
        if token.role == "operator" and name is None:
            return AdminToken(token.name, token.role, token.token)
    return AdminToken(OPERATOR, "operator", _from_file(rules))


def address(access: Access | None) -> str | None:
    """Returns the URL of the admin API; None without a config, and if the system chooses the port."""
    if access is None:
        return None
    server, ops = access
    host, port = (server.host, server.port) if ops.port is None else (ops.host, ops.port)
    scheme = "https" if ops.port is None and server.tls is not None else "http"
    return url_of(host, port, scheme) if port else None


def url_of(host: str, port: int, scheme: str) -> str:
    """Returns a URL for a browser on this machine."""
    host = _ANY_HOST.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _named(rules: Ops, name: str | None) -> AdminToken:
    for token in rules.tokens:
        if token.name == name:
            return AdminToken(token.name, token.role, token.token)
    names = ", ".join(token.name for token in rules.tokens)
    raise NoToken(f"ops.tokens has no token named {name}" + (f"; known: {names}" if names else ""))


def _from_file(rules: Ops) -> str:
    try:
        folder = state_folder(rules.store, os.environ)
        token = read_token(folder)
    except PermissionError as error:
        raise NoToken(f"{error.filename} cannot be read: run this command as the gateway's user") from None
    except (OSError, StoreError) as error:
        raise NoToken(str(error)) from None
    if token is None:
        remedy = "start the gateway, which generates one, or run this as the gateway's user with its config (-c FILE)"
        raise NoToken(f"there is no token in {folder / FILE}: {remedy}")
    return token
