"""`llm-guard chaos`: plays outages against a config, and shows what its clients would see.

Exit codes: 0, or 1 if less than --require of the calls were served in a scene; 2 for an invalid config.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click
import structlog

from llm_guard.cli.chaos.advice import advice_on
from llm_guard.cli.chaos.page import page_of
from llm_guard.cli.chaos.scenes import ChaosResult, ChaosScene, play, scenes_of
from llm_guard.cli.chaos.stand_ins import LEFT_OUT
from llm_guard.cli.config_option import config_option, load
from llm_guard.cli.direct import without_proxies
from llm_guard.config import Config
from llm_guard.event_loop import run
from llm_guard.resilience.units import parse_ratio

_POSITIVE = click.FloatRange(0, min_open=True)
_AT_ONCE = 6
_CALLS_PER_S = 120.0
"""Of all scenes at a time: gateways, stand-ins and clients share one processor."""
_LATE_S = 0.1
_COLORS = {"good": "green", "poor": "yellow", "bad": "red"}
_Played = tuple[ChaosResult, Sequence[str]]


class _Load(NamedTuple):
    """What clients do in each scene."""

    rate_per_s: float
    seconds: float
    patience_s: float


def _share(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_ratio(float(text[:-1]) / 100 if text.endswith("%") else float(text))
    except ValueError:
        raise click.BadParameter(f"{text} is no share: write 99% or 0.99") from None


@click.command()
@config_option
@click.option("--upstream", "only", multiple=True, help="Play only with this upstream; repeatable.")
@click.option("--rate", type=_POSITIVE, default=20.0, show_default=True, help="Calls per second.")
@click.option("--seconds", type=_POSITIVE, default=6.0, show_default=True, help="Of each trouble.")
@click.option("--patience", type=_POSITIVE, default=15.0, show_default=True, help="Clients' timeout, seconds.")
@click.option(
    "--require", "least", callback=_share, metavar="SHARE", help="Exit with 1 if less of a scene is served: 99%, 0.99."
)
@click.option("--html", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Also write a page.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def chaos(
    path: Path, only: tuple[str, ...], rate: float, seconds: float, patience: float, least: float | None,
    html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Play outages against a config: each upstream is down, refuses, is silent, cuts streams, limits, is slow.

    The upstreams are replaced by local stand-ins; nothing is sent to a provider.
    """
    config = load(path)
    if unknown := sorted(set(only) - set(config.upstreams)):
        raise click.BadParameter(f"no upstream is named {unknown[0]}", param_hint="--upstream")
    if html is not None and not html.parent.is_dir():
        raise click.BadParameter(f"there is no directory {html.parent}", param_hint="--html")
    if rate * seconds < 1:
        raise click.UsageError("--rate and --seconds must make at least one call in each scene")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    scenes, at_once = list(scenes_of(config, only)), scenes_at_once(rate)
    click.echo(f"{path}: {len(scenes)} scenes, {at_once} at a time, of {seconds:g} s and more", err=True)
    with without_proxies(), click.progressbar(length=len(scenes), label="scenes", file=sys.stderr) as bar:
        played: list[_Played] = []
        run(_play(config, scenes, _Load(rate, seconds, patience), at_once, played, lambda: bar.update(1)))
    if as_json:
        found = [asdict(result) | {"wasted": result.wasted, "advice": advice} for result, advice in played]
        click.echo(json.dumps(found, indent=2))
    else:
        _show(played)
    if html is not None:
        html.write_text(page_of(path.name, played, LEFT_OUT), encoding="utf-8")
        click.echo(f"page: {html}", err=True)
    late_s = max((result.sent_late_s for result, _ in played), default=0.0)
    if late_s > _LATE_S:
        click.echo(
            f"calls were sent up to {late_s:.1f} s late, latencies are too long by as much: lower --rate", err=True
        )
    worst = min((result.served for result, _ in played), default=1.0)
    if least is not None and worst < least:
        click.echo(f"served in the worst scene: {worst:.1%}, required: {least:.1%}", err=True)
        sys.exit(1)


def scenes_at_once(rate_per_s: float) -> int:
    """Returns how many scenes are played at a time: fewer with more calls, which would wait for each other."""
    return max(1, min(_AT_ONCE, int(_CALLS_PER_S / rate_per_s)))


async def _play(
    config: Config,
    scenes: Sequence[ChaosScene],
    load: _Load,
    at_once: int,
    played: list[_Played],
    advance: Callable[[], None],
) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(scene: ChaosScene) -> _Played:
        async with places:
            result = await play(config, scene, *load)
        advance()
        return result, list(advice_on(result, config.models[scene.model]))

    played += await asyncio.gather(*map(one, scenes))


def _show(played: Sequence[_Played]) -> None:
    names = f"{'upstream':16}{'trouble':24}{'model':24}{'without':>8}{'served':>8}{'p50':>9}{'p99':>9}{'wasted':>8}"
    click.echo(f"{names}  requests per call")
    for result, advice in played:
        served = click.style(f"{result.served:8.1%}", fg=_COLORS[result.grade], bold=True)
        click.echo(
            f"{result.upstream:16}{result.trouble:24}{result.model:24}{result.direct:8.1%}{served}"
            f"{result.p50_s:7.2f} s{result.p99_s:7.2f} s{result.wasted:8.1%}  {result.requests_per_call:.2f}"
        )
        for line in advice:
            click.echo(f"{'':16}{click.style(line, fg='cyan')}")
