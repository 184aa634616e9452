"""The limits of a listener, by the config and the file descriptors of the process."""

from __future__ import annotations

import contextlib
import resource

import structlog

from llm_guard.config import Config, Server
from llm_guard.gateway.listener import ListenerSettings

_log = structlog.get_logger("llm_guard.gateway.listener_settings")

_OWN_DESCRIPTORS = 64
_FEWEST_CONNECTIONS = 16
_MOST_CONNECTIONS = 100_000


def listener_settings(config: Config) -> ListenerSettings:
    """By `server`, and by what the process may open."""
    rules = config.server
    return ListenerSettings(_max_connections(rules), rules.head_timeout, rules.body_timeout, rules.keep_alive)


def _max_connections(rules: Server) -> int:
    """As many as the config says and the file descriptors allow. A connection that cannot be accepted for want of a
    descriptor would be reset by libuv: instead, a new one takes the place of an idle one."""
    descriptors = _raised_descriptor_limit() - _OWN_DESCRIPTORS
    if rules.max_connections is None:  # a call takes two descriptors: its client's and its provider's
        return max(_FEWEST_CONNECTIONS, min(descriptors // 2, _MOST_CONNECTIONS))
    allowed = max(_FEWEST_CONNECTIONS, descriptors)
    if rules.max_connections > allowed:
        remedy = "raise the process's limit on open files (ulimit -n), or lower server.max_connections"
        _log.warning("server.max_connections is more than the open files allow", used=allowed, remedy=remedy)
    return min(rules.max_connections, allowed)


def _raised_descriptor_limit() -> int:
    """How many files the process may open, after raising that to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
