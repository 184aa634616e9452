"""Walks one unary call through the gateway: `python -m benchmarks.call_path [--files]`.

Measures how far an engineer must read to follow a call: the coroutine frames of the gateway that await one another at
its deepest point, and the files of the gateway in which a function runs. The call is the third on a warm gateway, so
that its connection is kept alive and nothing is computed for the first time. Exits 1 above the limits.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import click

import llm_guard
from tests.chaos.forms import CHAT
from tests.chaos.stand import facing

MOST_FRAMES = 7
MOST_FILES = 40
_PACKAGE = str(Path(llm_guard.__file__).parent)


@dataclass(slots=True)
class CallPath:
    """What a profile function has seen of one call."""

    frames: list[str] = field(default_factory=list)
    """The longest chain of coroutines that awaited one another, the outermost first."""
    files: set[str] = field(default_factory=set)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(_PACKAGE):
            return
        self.files.add(name.removeprefix(f"{_PACKAGE}/"))
        chain: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            if at.f_code.co_flags & inspect.CO_COROUTINE and at.f_code.co_filename.startswith(_PACKAGE):
                chain.append(f"{at.f_code.co_filename.removeprefix(f'{_PACKAGE}/')}: {at.f_code.co_qualname}")
            at = at.f_back
        if len(chain) > len(self.frames):
            self.frames = chain[::-1]


async def walk() -> CallPath:
    """Returns the path of one of three equal calls after two others: that with the fewest files, since tasks in the
    background may run during a call, and only add to it."""
    paths = [CallPath() for _ in range(3)]
    async with facing(*[CHAT.ok] * 5) as (stand, _):
        url = stand.url
        for path in (None, None, *paths):
            if path is not None:
                sys.setprofile(path.note)
            try:
                await CHAT.ask(url)
                await stand.idle()
            finally:
                sys.setprofile(None)
    return min(paths, key=lambda path: len(path.files))


@click.command()
@click.option("--files", is_flag=True, help="List the files as well.")
def main(*, files: bool) -> None:
    """Print the path of one unary call."""
    path = asyncio.run(walk())
    click.echo(
        f"{len(path.frames)} coroutine frames (at most {MOST_FRAMES}), {len(path.files)} files (at most {MOST_FILES})"
    )
    for depth, frame in enumerate(path.frames, 1):
        click.echo(f"{depth:2} {frame}")
    if files:
        click.echo("\n".join(sorted(path.files)))
    raise SystemExit(len(path.frames) > MOST_FRAMES or len(path.files) > MOST_FILES)


if __name__ == "__main__":
    main()
