"""Probes upstreams repeatedly, beside the calls. Each is probed by its own task, so that a slow one delays no other.

Schedules the probes, keeps their results and notifies subscribers. The requests are in `upstreams.probes.probe`, their
evaluation in `resilience.health.probe_policy`, and the effect on calls in `proxy.attempts.candidate_selection`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.log import BREAKER_LOGGER
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.telemetry.recorder import Distribution
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.health.probe_policy import (
    ProbeHistory,
    ProbeOutcome,
    ProbeResult,
    delay_s,
    first_delay_s,
    may_end_opening,
)
from llm_guard.routing.deployment import Deployment, FailingDeployments, Upstream
from llm_guard.upstreams.probes.probe import Probe, result_of_error
from llm_guard.upstreams.probes.targets import ProbeKey, ProbeListener, ProbeTarget, ProbeView, subjects_of

_log = structlog.get_logger("llm_guard.upstreams.probes.prober")
_breaker_log = structlog.get_logger(BREAKER_LOGGER)

_TOOK_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(slots=True, eq=False)
class _Watched:
    """State of one probed subject."""

    subject: ProbeTarget
    look: Probe
    history: ProbeHistory = field(default_factory=ProbeHistory)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    """Callers of `probe_and_wait` that need a probe that has not started yet."""
    last: ProbeOutcome | None = None
    last_ok_wall: float | None = None
    down_since_wall: float | None = None
    looked_wall: float | None = None
    took_s: float | None = None
    successes: float = 0.0
    """Time of the subject's last successful call, as of the previous probe."""


class Prober:
    """Probes all subjects of the config. `adopt` starts it or applies a new config; `stop` ends it. Belongs to one
    event loop."""

    def __init__(
        self,
        new_look: Callable[[ProbeTarget], Probe],
        deployments: Callable[[], Iterable[Deployment]],
        down: FailingDeployments,
        end_hints: Callable[[Iterable[Deployment]], None],
        on_change: Callable[[ProbeView], None],
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        """`deployments` returns all current deployments; calls read from `down` which of them are down; `end_hints` is
        called with the deployments that a probe found healthy (`Handler.end_hints`), `on_change` when a subject goes
        from up to down or back."""
        self._new_look = new_look
        self._deployments = deployments
        self._down = down
        self._end_hints = end_hints
        self._on_change = on_change
        self._clock = clock
        self._draw = draw
        self._watched: dict[ProbeKey, _Watched] = {}
        self._tasks: dict[ProbeKey, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(1)
        self._hearers: dict[str, list[ProbeListener]] = {}
        self._failed: dict[str, str] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """Probes since the start, by upstream, kind and finding."""
        self.durations: dict[str, Distribution] = {}
        """Durations in seconds of the probes that were answered, by upstream."""

    def adopt(self, config: Config, upstreams: Mapping[str, Upstream]) -> None:
        """Probes the subjects of this config. Unchanged subjects keep their state, changed ones start from scratch,
        removed ones are forgotten."""
        self._turns = asyncio.Semaphore(config.probes.concurrency)
        wanted = subjects_of(config, upstreams)
        for key, watched in list(self._watched.items()):
            if wanted.get(key) != watched.subject:
                self._end(key)
        for key, subject in wanted.items():
            if key not in self._watched:
                self._begin(key, subject)
        self._watched = {key: self._watched[key] for key in wanted}
        self._failed = {name: why for name, why in self._failed.items() if name in config.upstreams}
        self._tell_calls()

    async def stop(self) -> None:
        """Cancels all probes at once."""
        for key in list(self._watched):
            self._end(key)
        if self._ending:
            await asyncio.wait(self._ending)

    # results

    def views(self) -> list[ProbeView]:
        """All probed subjects in the config's order, upstreams first."""
        return [self._view(watched) for watched in self._watched.values()]

    def subjects(self) -> list[ProbeTarget]:
        """All probed subjects, as configured, in the same order."""
        return [watched.subject for watched in self._watched.values()]

    def view(self, upstream: str, model: str | None = None) -> ProbeView | None:
        """State of an upstream as a whole, or of one deployment; None: it is not probed."""
        watched = self._watched.get((upstream, model))
        return None if watched is None else self._view(watched)

    def why_down(self, deployment: Deployment) -> str | None:
        """Reason why probes found this deployment or its upstream down; None: they did not."""
        if not self._down.has(deployment):
            return None
        for key in _keys(deployment):
            watched = self._watched.get(key)
            seen = None if watched is None else watched.history.snapshot(self._clock.now())
            if seen is not None and seen.state == "down":
                return seen.why
        return None

    def last_ok_wall(self, deployment: Deployment) -> float | None:
        """Time of the last `ok` probe of this deployment or its upstream, in seconds since the epoch."""
        found = (self._watched.get(key) for key in _keys(deployment))
        return max((watched.last_ok_wall or 0.0 for watched in found if watched is not None), default=0.0) or None

    def why_failed(self, upstream: str) -> str | None:
        """Reason why the upstream's engine was given up; None: it was not."""
        return self._failed.get(upstream)

    # requests from other modules

    def subscribe(self, upstream: str, hear: ProbeListener) -> Callable[[], None]:
        """Calls `hear` after each probe of this upstream, also across reloads. Returns a function that unsubscribes."""
        hearers = self._hearers.setdefault(upstream, [])
        hearers.append(hear)

        def end() -> None:
            if hear in hearers:
                hearers.remove(hear)

        return end

    def probe_now(self, upstream: str) -> None:
        """Probes this upstream as soon as possible; if a probe is running, once more after it. Does nothing if it is
        not probed."""
        for key, watched in self._watched.items():
            if key[0] == upstream:
                watched.wake.set()

    async def probe_and_wait(self, upstream: str | None) -> list[ProbeView]:
        """Probes this upstream and its deployments (None: all subjects) and returns the results."""
        asked = {key: watched for key, watched in self._watched.items() if upstream in (None, key[0])}
        waiters = {key: asyncio.get_running_loop().create_future() for key in asked}
        for key, watched in asked.items():
            watched.waiters.append(waiters[key])
            watched.wake.set()
        if waiters:
            await asyncio.wait(list(waiters.values()))
        return [self._view(watched) for key, watched in self._watched.items() if key in asked]

    def set_failed(self, upstream: str, why: str | None) -> None:
        """Marks the upstream as failed because its engine was given up: its deployments are tried last. None clears the
        mark."""
        if why is None:
            self._failed.pop(upstream, None)
        else:
            self._failed[upstream] = why
        self._tell_calls()

    # the loop of each subject

    def _begin(self, key: ProbeKey, subject: ProbeTarget) -> None:
        watched = self._watched[key] = _Watched(subject, self._new_look(subject))
        watched.successes = self._successes(subject)
        self._tasks[key] = asyncio.get_running_loop().create_task(self._watch(watched))

    def _end(self, key: ProbeKey) -> None:
        """Ends the subject's task and releases the callers that wait for a probe."""
        task, watched = self._tasks.pop(key), self._watched.pop(key)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()
        _resolve(watched.waiters)

    async def _watch(self, watched: _Watched) -> None:
        rules = watched.subject.settings
        await self._pause(watched, first_delay_s(rules.interval, self._draw()))
        while True:
            waiters, watched.waiters = watched.waiters, []
            try:
                async with self._turns:
                    await self._look(watched)
            except Exception:  # noqa: BLE001  # the loop must go on: without probes a down upstream would stay down
                _log.exception("a probe failed unexpectedly", upstream=watched.subject.upstream.name)
            finally:
                _resolve(waiters)
            await self._pause(watched, delay_s(rules.interval, rules.jitter, self._draw()))

    async def _pause(self, watched: _Watched, seconds: float) -> None:
        """Waits until the next probe is due or requested."""
        alarm = self._clock.call_at(self._clock.now() + seconds, watched.wake.set)
        try:
            await watched.wake.wait()
        finally:
            alarm.cancel()
        watched.wake.clear()

    async def _look(self, watched: _Watched) -> None:
        subject = watched.subject
        began_at = self._clock.now()
        result = await self._sight(watched.look.look(), subject.settings.timeout)
        took_s = self._clock.now() - began_at
        upstream = subject.upstream.name
        self.counts[upstream, subject.kind, result.finding] += 1
        watched.last, watched.looked_wall = result.finding, self._clock.wall()
        if result.finding in ("ok", "answered"):
            watched.took_s = took_s
            self.durations.setdefault(upstream, Distribution(_TOOK_S)).note(took_s)
        if result.finding == "ok":
            watched.last_ok_wall = watched.looked_wall
        self._conclude(watched, result)

    async def _sight(self, looking: Awaitable[ProbeResult], timeout_s: float) -> ProbeResult:
        try:
            with self._clock.limit() as limit:
                limit.set(self._clock.now() + timeout_s, "probe")
                return await looking
        except TimeoutError:
            return ProbeResult("failed", f"it did not respond within {timeout_s:g} s")
        except UpstreamError as error:
            return result_of_error(error)

    # effects of a result

    def _conclude(self, watched: _Watched, result: ProbeResult) -> None:
        subject, history = watched.subject, watched.history
        before = history.snapshot(self._clock.now())
        successes, watched.successes = watched.successes, self._successes(subject)
        is_news = history.note(
            result, subject.settings.max_failures, have_calls_succeeded=successes != watched.successes
        )  # fmt: skip
        if history.snapshot(self._clock.now()).state != "down":
            watched.down_since_wall = None
        elif watched.down_since_wall is None:
            watched.down_since_wall = self._clock.wall()
        view = self._view(watched)
        if view.state != before.state:
            self._tell_calls()
        self._tell_breakers(subject, result, before.failures)
        if is_news:
            _log.warning("probe", upstream=view.upstream, deployment=view.deployment, state=view.state, reason=view.why)
            self._on_change(view)
        for hear in tuple(self._hearers.get(view.upstream, ())) if view.deployment is None else ():
            hear(view)

    def _tell_calls(self) -> None:
        down = {
            key for key, watched in self._watched.items() if watched.history.snapshot(self._clock.now()).state == "down"
        }
        self._down.keys = frozenset(down | {(name, None) for name in self._failed})

    def _tell_breakers(self, subject: ProbeTarget, result: ProbeResult, failures_before: int) -> None:
        """Lets open breakers admit a call early. A host's breaker judges connections, so any response counts; a
        deployment's judges responses."""
        if result.finding not in ("ok", "answered"):
            return
        for host in {
            deployment.host for deployment in self._deployments() if deployment.upstream.name == subject.upstream.name
        }:
            self._half_open(host, upstream=subject.upstream.name)
        deployments = self._of(subject)
        if result.finding == "ok":
            self._end_hints(deployments)
        if may_end_opening(subject.kind, result, failures_before):
            for deployment in deployments:
                self._half_open(deployment.breaker, deployment=deployment.label)

    def _half_open(self, breaker: Breaker, **whose: str) -> None:
        transition = breaker.note_probe(True, self._clock.now())
        if transition is not None:
            said = {"before": transition.before, "after": transition.after, "reason": transition.why}
            _breaker_log.warning("breaker", **whose, **said)

    def _successes(self, subject: ProbeTarget) -> float:
        return max((deployment.last_success_wall or 0.0 for deployment in self._of(subject)), default=0.0)

    def _of(self, subject: ProbeTarget) -> list[Deployment]:
        """The deployments that this subject's probes are evidence for. Excludes those without a model: a reachable list
        of files says nothing about models."""
        name, model = subject.key
        return [
            deployment
            for deployment in self._deployments()
            if deployment.upstream.name == name and deployment.model is not None and model in (None, deployment.model)
        ]

    def _view(self, watched: _Watched) -> ProbeView:
        subject, seen = watched.subject, watched.history.snapshot(self._clock.now())
        return ProbeView(
            subject.upstream.name,
            seen.state,
            seen.why,
            seen.failures,
            watched.last_ok_wall,
            watched.looked_wall,
            watched.took_s,
            subject.kind,
            watched.last,
            subject.label,
            watched.down_since_wall,
        )


def _keys(deployment: Deployment) -> tuple[ProbeKey, ...]:
    """Keys of the subjects with probes that are evidence for this deployment."""
    name, model = deployment.upstream.name, deployment.model
    return ((name, None),) if model is None else ((name, None), (name, model))


def _resolve(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
