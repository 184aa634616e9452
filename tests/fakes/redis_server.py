"""A real redis-server on a UNIX socket, which can be frozen, killed and started again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import AuthenticationError, RedisError

from tests.tools import need

_TRIES = 1000


class RedisServer:
    """One server. `url` stays the same when it is started again; nothing is kept."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._options = options
        self._socket = folder / "redis.sock"
        self.url = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it answers."""
        command = [need("redis-server"), "--port", "0", "--unixsocket", str(self._socket), "--save", "", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(_TRIES):
            try:
                with self.client() as client:
                    client.ping()
                return
            except AuthenticationError:  # it wants a password, so it runs
                return
            except RedisError:
                pass
            time.sleep(0.01)
        raise AssertionError("redis-server does not answer")

    def client(self) -> Redis:
        return Redis.from_url(self.url, socket_timeout=5)  # the server may be killed in the middle

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    """Runs a server, with more options of its command line."""
    server = RedisServer(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
