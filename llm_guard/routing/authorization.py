"""How requests to an upstream are authorised: the header with its key, and the names of its connections."""

from __future__ import annotations

import hashlib

from llm_guard.config import Auth, CloudSettings


def key_header(auth: Auth, secret: str | None) -> tuple[str, str] | None:
    """Returns the header in which an upstream expects its key; None without a key, or if it takes none."""
    if secret is None or auth == "none":
        return None
    return ("Authorization", f"Bearer {secret}") if auth == "bearer" else (auth, secret)


def key_digest(api_key: str | None, cloud: CloudSettings | None) -> str:
    """Returns a digest of a key, or of the place where credentials come from: these change each hour."""
    secret = api_key or "" if cloud is None else repr(cloud)
    return hashlib.sha256(secret.encode()).hexdigest()


def link_of(origin: str, name: str | None) -> str:
    """Returns the name of a connection pool; `name` is its only upstream, or None if several may share it."""
    return origin if name is None else f"{origin} {name}"


def mark_of(cloud: CloudSettings | None, query: tuple[tuple[str, str], ...]) -> str:
    """Returns what a link ends with, different for requests that are authorised differently; "" if the gateway adds
    nothing to requests on their way to the connections."""
    if cloud is None and not query:
        return ""
    added = f"{cloud!r} {query!r}"
    return f" @{hashlib.sha256(added.encode()).hexdigest()[:16]}"
