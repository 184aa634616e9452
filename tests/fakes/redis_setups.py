"""Real Redis servers on loopback in the setups that operators have: a master with Sentinels, and a cluster."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from tests.integration.test_engines import free_port
from tests.tools import need

_TRIES = 1000
_SLOTS = 16384


class Node:
    """One server on a TCP port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        folder.mkdir()
        command = [need("redis-server"), *options, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(folder), *(() if "--sentinel" in options else ("--save", ""))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(lambda: self.client().ping())

    def client(self) -> Redis:
        return Redis(port=self.port, socket_timeout=5)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def until(is_so: Callable[[], object]) -> None:
    for _ in range(_TRIES):
        with suppress(RedisError):
            if is_so():
                return
        time.sleep(0.01)
    raise AssertionError("the servers are not ready")


class SentinelSetup:
    """A master, a replica, and three Sentinels that name another master after one second."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.master = Node(folder / "master", "--repl-diskless-sync-delay", "0")
        stack.callback(self.master.kill)
        self.replica = Node(folder / "replica", "--replicaof", "127.0.0.1", str(self.master.port))
        stack.callback(self.replica.kill)
        until(lambda: self.replica.client().info("replication")["master_link_status"] == "up")
        self.sentinels = []
        for number in range(3):
            file = folder / f"sentinel-{number}.conf"
            file.write_text(
                f"sentinel monitor prod 127.0.0.1 {self.master.port} 2\n"
                "sentinel down-after-milliseconds prod 1000\nsentinel failover-timeout prod 3000\n"
            )
            self.sentinels.append(Node(folder / f"sentinel-{number}", str(file), "--sentinel"))
            stack.callback(self.sentinels[-1].kill)
        until(lambda: all(self._sees_all(sentinel) for sentinel in self.sentinels))
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/prod"

    def master_port(self) -> int:
        """Returns the port of the master that the Sentinels name."""
        address: Any = self.sentinels[0].client().sentinel_get_master_addr_by_name("prod")
        return int(address[1])

    @staticmethod
    def _sees_all(sentinel: Node) -> bool:
        seen: Any = sentinel.client().sentinel_master("prod")
        return int(seen["num-other-sentinels"]) == 2 and int(seen["num-slaves"]) == 1


class ClusterSetup:
    """Three masters without replicas, each with a third of the slots."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.nodes = []
        for number in range(3):
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", str(free_port()))
            self.nodes.append(Node(folder / f"node-{number}", *options))
            stack.callback(self.nodes[-1].kill)
        bounds = [number * _SLOTS // 3 for number in range(4)]
        for node, first, last in zip(self.nodes, bounds[:-1], bounds[1:], strict=True):
            node.client().execute_command("CLUSTER", "ADDSLOTSRANGE", first, last - 1)  # type: ignore[no-untyped-call]  # untyped in redis
        first_node = self.nodes[0].client()
        for node in self.nodes[1:]:
            bus = node.client().config_get("cluster-port")["cluster-port"]
            first_node.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)  # type: ignore[no-untyped-call]  # untyped in redis
        until(lambda: all(self._is_ready(node) for node in self.nodes))
        self._bounds = bounds
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[1:])

    def owner(self, tag: str) -> Node:
        """Returns the node that has the keys with this hash tag."""
        slot = self.nodes[0].client().cluster("keyslot", f"{{{tag}}}")
        return next(node for node, last in zip(self.nodes, self._bounds[1:], strict=True) if slot < last)

    @staticmethod
    def _is_ready(node: Node) -> bool:
        found = node.client().execute_command("CLUSTER", "INFO").split()  # type: ignore[no-untyped-call]  # untyped in redis
        return {b"cluster_state:ok", b"cluster_known_nodes:3"} <= set(found)


@contextmanager
def sentinel_setup(folder: Path) -> Iterator[SentinelSetup]:
    with ExitStack() as stack:
        yield SentinelSetup(folder, stack)


@contextmanager
def cluster_setup(folder: Path) -> Iterator[ClusterSetup]:
    with ExitStack() as stack:
        yield ClusterSetup(folder, stack)
