"""`llm-guard mock`: runs a mock provider.

Exit codes: 0 if it was told to stop, 1 if it cannot listen, 2 for invalid arguments.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import click

from llm_guard.event_loop import run
from llm_guard.mock.provider import MockProvider


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=9009, show_default=True, help="0 takes a free port.")
@click.option("--seed", default=0, show_default=True, help="The same seed and requests get the same faults.")
@click.option("--tokens", type=click.IntRange(1), default=8, show_default=True, help="Tokens in each response.")
@click.option("--latency-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="Before response headers.")
@click.option("--token-delay-ms", type=click.FloatRange(0), default=0.0, show_default=True, help="Before each token.")
def mock(host: str, port: int, seed: int, tokens: int, latency_ms: float, token_delay_ms: float) -> None:
    """Run a mock provider with faults on request.

    Faults are appended to the model's name with +, or listed in the header x-mock-fault:

    \b
      gpt-4o+status:503@10%          503 for 10 % of the requests
      gpt-4o+status:429:2            429 with a Retry-After of 2 s
      gpt-4o+latency:50ms~20ms       slow response headers
      gpt-4o+silence  +headers       no response at all; headers, then nothing
      gpt-4o+reset  +close           the connection ends without a response
      gpt-4o+cut:3  +stall:3         a stream is cut, or falls silent, after 3 tokens
      gpt-4o+error:0                 an error event in a 200, before the first token
      gpt-4o+truncated  +malformed:2 broken JSON
      gpt-4o+limit:40/s              a rate limit; +limit:40/s:bare sends no Retry-After
      gpt-4o+quota                   a spent quota
      gpt-4o+capacity:20             20 requests at once, the rest wait
      gpt-4o+noprefill               a request that ends in an assistant message is refused
      gpt-4o+overlap:3               a continuation repeats the last 3 words of the text
      gpt-4o+another@50%             generates another text

    While it runs, POST /mock/faults {"model": "gpt-4o", "faults": "status:503@40%"} sets a model's faults ("" clears
    them; "/health" as the model means the health page), and GET /mock/stats returns request counts
    and the times of the latest requests.
    """
    provider = MockProvider(seed, tokens, token_delay_ms / 1000, latency_ms / 1000)
    try:
        run(_mock(provider, host, port))
    except OSError as error:
        click.echo(f"llm-guard mock cannot listen on {host}:{port}: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        pass


async def _mock(provider: MockProvider, host: str, port: int) -> None:
    # The kernel ignores SIGTERM for a process 1 without a handler, so that a container would have to be killed.
    is_told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_told_to_stop.set)
    click.echo(f"mock provider listens on {await provider.start(host, port)}", err=True)
    try:
        await is_told_to_stop.wait()
    finally:
        await provider.stop()
