"""Connections to stand-ins on this machine, for commands that play with them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_proxies() -> Iterator[None]:
    """Lets gateways that start in this block connect directly: a proxy (`HTTP_PROXY`) reaches no stand-in here, and
    must not get what is meant for one."""
    before = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "*"
    try:
        yield
    finally:
        if before is None:
            del os.environ["no_proxy"]
        else:
            os.environ["no_proxy"] = before
