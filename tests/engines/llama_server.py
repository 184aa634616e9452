"""Runs llama.cpp's server: `python llama_server.py MODEL PORT`, with its package on PYTHONPATH."""

from __future__ import annotations

import signal
import sys

from xllamacpp import CommonParams, Server


def main(model: str, port: str) -> None:
    settings = CommonParams()
    settings.model.path = model
    settings.hostnames = ["127.0.0.1"]
    settings.port = int(port)
    settings.n_ctx = 4096
    settings.n_parallel = 1
    settings.cpuparams.n_threads = 1  # tests run beside each other
    server = Server(settings)
    print(f"llama.cpp listens on {server.listening_address}", flush=True)  # noqa: T201
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
