"""Warns of tokens that can be guessed, and of secrets in a file that other users can read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from llm_guard.config.loader import text_in
from llm_guard.config.models import Config
from llm_guard.config.yaml_source import Finding, KeyPath, read_document

_SHORT = 16
_PASSWORD = re.compile(r"[a-z+]+://[^/?#@:]*:[^/?#]+@")
"""Matches the beginning of a URL with a password."""
_SUSPICIOUS = re.compile("auth|cred|key|pass|secret|sig|token", re.IGNORECASE)
"""Matches names of parameters that may be secret: Google's `key`, Azure's `sig`."""


def short_tokens(config: Config) -> Iterator[Finding]:
    """Yields a warning for each token of the operators that can be guessed."""
    tokens: dict[KeyPath, str | None] = {("ops", "token"): config.ops.token}
    tokens |= {("ops", "tokens", index, "token"): named.token for index, named in enumerate(config.ops.tokens)}
    for key, token in tokens.items():
        if token is not None and len(token) < _SHORT:
            yield key, f"has fewer than {_SHORT} characters and can be guessed: use `openssl rand -base64 32`"


def readable_secrets(path: Path) -> Iterator[Finding]:
    """Yields a warning for each secret in the config file if any user of the machine can read it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IROTH:
        for key in _plain_secrets(path):
            yield key, f"is in a file that all users of this machine can read (mode {mode:o}): chmod o-r {path}"


def _plain_secrets(path: Path) -> Iterator[KeyPath]:
    """Yields the places of secrets that the file itself contains, such as a default (`${NAME:-default}`) or a text with
    an escaped dollar sign. Their values are the same with and without the variables of the environment."""
    text = text_in(path)
    without_variables = _secrets(read_document(text, str(path), {}).data)
    document = read_document(text, str(path), os.environ)
    for place, value in _secrets(document.data).items():
        if value and value == without_variables.get(place) and place not in document.unread:
            yield place


def _secrets(data: object) -> dict[KeyPath, str]:
    found: dict[KeyPath, str] = {}
    left: list[tuple[KeyPath, object]] = [((), data)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            left += [((*place, key), member) for key, member in items]
        elif isinstance(value, str) and (_is_secret(place) or _is_url_with_password(place, value)):
            found[place] = value
    return found


def _is_secret(place: KeyPath) -> bool:
    match place:
        case ("ops", "token") | ("ops", "tokens", _, "token") | ("server", "client_keys", _, "key"):
            return True
        case ("upstreams", _, "api_key") | ("upstreams", _, "api_keys", _) | ("store", "encryption_key"):
            return True
        case ("upstreams", _, "api_keys", _, "key") | ("ops" | "store", "webhooks", _, "secret"):
            return True
        case ("upstreams", _, "query", name):
            return _SUSPICIOUS.search(str(name)) is not None
        case _:
            return False


def _is_url_with_password(place: KeyPath, value: str) -> bool:
    return place == ("fleet", "store") and _PASSWORD.match(value) is not None
