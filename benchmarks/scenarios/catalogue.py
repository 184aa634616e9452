"""The scenarios: the provider's faults and their times, the load, and the promises for calls through the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_guard.cli.demo import RECOMMENDED

MODEL = "gpt-4o"
SPARED = "gpt-4.1"
"""A model with a fallback."""
FALLBACK = "gpt-4.1-mini"
NEIGHBOUR = "gpt-4o-mini"
"""Another model of the same upstream."""
RENAMED = "my-gpt-4o"
"""The model's name at the second upstream of the recommended config."""

_CONFIG = """
upstreams:
  provider: {dialect: openai, base_url: "{provider}/v1", api_key: mock}
DEFAULTS
models:
  gpt-4o: {deployments: [{upstream: provider}]RULES}
  gpt-4o-mini: {deployments: [{upstream: provider}]}
  gpt-4.1: {deployments: [{upstream: provider}], fallbacks: [gpt-4.1-mini]RULES}
  gpt-4.1-mini: {deployments: [{upstream: provider}]}
"""

_LIMITS = "defaults: {timeout: {connect: 1s, first_token: LIMIT, idle: LIMIT, attempt: LIMIT}}"
_HEDGE = "hedge: {after: 150ms, max_extra: 0.06}"
_CONTINUE = "stream: {recover: continue}"
_ALL_AT_ONCE = "silence@5%, cut:4@10%, status:503@10%"
_SLOW_TAIL = "latency:80ms, latency:1900ms@5%"


@dataclass(frozen=True, slots=True)
class Promise:
    """Bounds on what clients see through the gateway; None: no promise."""

    success: float | None = None
    """Minimum."""
    requests_per_call: float | None = None
    """Maximum, as for all that follow except `after`."""
    p99_s: float | None = None
    """For successful calls."""
    median_failure_s: float | None = None
    outage_requests_per_call: float | None = None
    first_success_s: float | None = None
    last_success_s: float | None = None
    """Both from the provider's recovery on."""
    after: float | None = None
    """Minimum share of success in the ten seconds from the first success on: no collapse."""
    retry_after_off_s: float | None = None
    """Maximum error of the retry-after in 95 % of the refusals."""
    loses: float | None = None
    """Share of success below that of the best client without this gateway, for rows in which it cannot win."""
    silent: int | None = None
    """Streams that ended as if they were complete and were not, or had words lost, repeated or altered."""


@dataclass(frozen=True, slots=True)
class Act:
    """Sets the model's faults from `at_s` on; an empty text: none."""

    at_s: float
    faults: str
    model: str = MODEL


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of failure."""

    key: str
    """Name for `--only`."""
    name: str
    acts: tuple[Act, ...]
    promise: Promise = Promise()
    seconds: float = 15.0
    """Duration of the load."""
    is_scaled: bool = True
    """True if `--seconds` may shorten it; a sequence of events must not be cut."""
    rate_per_s: float = 100.0
    model: str = MODEL
    rules: str = ""
    """Settings of the model beyond the defaults."""
    limit_s: float = 1.0
    """Timeout of an attempt for clients without a gateway."""
    is_limited: bool = False
    """True if the gateway's attempts have the same limit; otherwise its timeouts are the defaults."""
    patience_s: float = 20.0
    """Timeout of a call for clients behind a gateway."""
    is_stream: bool = False
    outage: tuple[float, float] | None = None
    """Seconds between which no call succeeds."""
    neighbour: str | None = None
    """Another model, called at the same time; excluded from the figures."""
    clients_ask_for_s: float | None = None
    """Each client retries for this long until it succeeds."""
    is_recommended: bool = False
    """True if the gateway runs with the config that `docs/configuration.md` recommends, unmodified."""

    def config(self) -> str:
        """The gateway's config; `{provider}` stands for the provider's address."""
        if self.is_recommended:
            return RECOMMENDED.read_text(encoding="utf-8")
        rules = f", {self.rules}" if self.rules else ""
        limits = _LIMITS if self.is_limited else ""
        text = _CONFIG.replace("RULES", rules).replace("DEFAULTS", limits)
        return text.replace("LIMIT", f"{self.limit_s:g}s")

    @property
    def settings(self) -> str:
        """Settings of the gateway beyond the shipped defaults; empty for none."""
        if self.is_recommended:
            return f"config/{RECOMMENDED.name}"
        limits = f"timeouts of {self.limit_s:g} s" if self.is_limited else ""
        return ", ".join(filter(None, (limits, self.rules and f"`{self.rules}`")))

    def variables(self) -> dict[str, str]:
        """Environment variables for the config."""
        if not self.is_recommended:
            return {}
        url = "{provider}/v1"
        return {"OPENAI_URL": url, "AZURE_URL": url, "OPENAI_API_KEY": "mock", "AZURE_KEY": "mock"}


def _steady(key: str, name: str, faults: str, promise: Promise = Promise(), **more: Any) -> Scenario:
    return Scenario(key, name, (Act(0, faults),), promise, **more)


def _brownout(percent: int, promise: Promise = Promise()) -> Scenario:
    """Long enough that the share of failures drawn is within 1.5 points of the one meant."""
    faults = f"status:503@{percent}%"
    return _steady(f"brownout-{percent}", f"{percent} % answer 503", faults, promise, seconds=60.0)


def _course(
    key: str, name: str, faults: str, promise: Promise = Promise(), down_s: float = 8.0, **more: Any
) -> Scenario:  # fmt: skip
    """Three seconds without faults, an outage, fourteen seconds of recovery, at 50 calls a second."""
    back_s = 3 + down_s
    acts = (Act(0, ""), Act(3, faults), Act(back_s, ""))
    fixed: dict[str, Any] = {"rate_per_s": 50.0, "outage": (3.0, back_s)}
    return Scenario(key, name, acts, promise, back_s + 14.0, False, **(fixed | more))


# Two retries of the SDKs save the calls of so many seconds at the end of an outage; and the scatter of the figures.
_SDK_SAVES_S = 1.4
_SCATTER = 0.005


def _outage(key: str, down_s: float, requests_per_call: float) -> Scenario:
    """The first success must come within 1 s and a twentieth of the outage. Beside the SDKs' retries it may lose what
    they save, and what passes until a probe notices the recovery (`resilience.circuit_breaker.open_duration`)."""
    unnoticed_s = min(0.8 + down_s / 40, 1.25)
    promise = Promise(
        median_failure_s=0.005,
        outage_requests_per_call=requests_per_call,
        first_success_s=1 + 0.05 * down_s,
        after=0.95,
        retry_after_off_s=0.1,
        loses=round((_SDK_SAVES_S + unnoticed_s) / (down_s + 17) + _SCATTER, 3),
    )  # fmt: skip
    return _course(key, f"down for {down_s:g} s", "status:503", promise, down_s)


def _midway(key: str, name: str, faults: str, promise: Promise = Promise(0.99, silent=0), **more: Any) -> Scenario:
    """Streams die after half of their tokens; the route resumes them, and a fallback works."""
    fixed: dict[str, Any] = {"model": SPARED, "rules": _CONTINUE, "is_stream": True} | more
    return Scenario(key, name, (Act(0, faults, fixed["model"]),), promise, **fixed)


# 20 requests, those in flight, and 1.5 probes a second, for 100 and for 400 calls.
_REQUESTS_IN_2_S = 0.25
_REQUESTS_IN_8_S = 0.08
# 1.1 times the ideal: 4 s, and 1,000 calls at 200 a second.
_LAST_OF_HERD_S = 1.1 * 9 - 4
_HERD_PROMISE = Promise(1.0, 1.3, last_success_s=_LAST_OF_HERD_S)
_FLAPPING = Scenario(
    "flapping", "5 s up, 5 s down", tuple(Act(at_s, "status:503" if at_s % 10 else "") for at_s in range(0, 40, 5)),
    Promise(success=0.85 / 2, loses=0.16), 40.0, False, rate_per_s=50.0,
)  # fmt: skip
_HERD = (Act(0, "status:503"), Act(4, "latency:80ms, capacity:20"))

SCENARIOS = (
    _steady("healthy", "nothing is wrong", "", Promise(1.0, 1.0), seconds=10.0),
    Scenario(
        "blips", "down for 200 ms every 2 s",
        tuple(act for at_s in range(1, 19, 2) for act in (Act(at_s, "status:503"), Act(at_s + 0.2, ""))),
        promise=Promise(loses=0.01), seconds=20.0, is_scaled=False,
    ),
    _brownout(10, Promise(0.999, 1.13)),
    _brownout(20, Promise(0.995, 1.27)),
    _brownout(40, Promise(0.97, 1.7, 2.5)),
    _brownout(60, Promise(0.8, 2.2, 4.0)),
    _brownout(80, Promise(0.5, 3.0)),
    _brownout(90, Promise(0.28, 3.5)),
    Scenario("brownout-fallback", "40 % answer 503, with a fallback", (Act(0, "status:503@40%", SPARED),),
             Promise(0.999), 20.0, model=SPARED),
    _steady("reset", "10 % reset the connection", "reset@10%", Promise(0.998, 1.15), seconds=30.0),
    _steady("cut", "20 % of streams cut before a token", "cut:0@20%", Promise(0.99, silent=0), seconds=40.0,
            is_stream=True),
    _steady("error", "20 % of streams err inside a 200", "error:0@20%", Promise(0.99, silent=0), seconds=40.0,
            is_stream=True),
    _steady("midway", "20 % of streams cut midway, no recovery", "cut:4@20%", Promise(silent=0), is_stream=True),
    _midway("midway-cut", "20 % of streams cut midway", "cut:4@20%"),
    _midway("midway-stall", "20 % of streams stall midway, limit 1 s", "stall:4@20%", is_limited=True),
    _midway("midway-error", "20 % of streams err midway", "error:4@20%"),
    _midway("midway-alone", "20 % of streams cut midway, no fallback", "cut:4@20%", Promise(silent=0), model=MODEL),
    _steady("hang-5", "5 % never answer, limit 1 s", "silence@5%", Promise(0.995, None, 1.4), seconds=20.0,
            is_limited=True),
    _steady("tail", "5 % take 2 s", _SLOW_TAIL, Promise(loses=0.0), limit_s=10.0),
    _steady("tail-hedged", "5 % take 2 s, with hedging", _SLOW_TAIL, Promise(1.0, 1.06, 0.3), seconds=20.0,
            limit_s=10.0, rules=_HEDGE),
    Scenario("recommended", "recommended config: 5 % of streams hang, 10 % are cut, 10 % answer 503",
             (Act(0, _ALL_AT_ONCE), Act(0, _ALL_AT_ONCE, RENAMED)), Promise(0.995, 1.35, 11.0, silent=0), 20.0,
             is_stream=True, limit_s=10.0, patience_s=40.0, is_recommended=True),
    _outage("outage-2", 2.0, _REQUESTS_IN_2_S),
    _outage("outage", 8.0, _REQUESTS_IN_8_S),
    _outage("outage-60", 60.0, 0.06),
    _course("outage-hang", "silent for 8 s, limit 1 s", "silence", Promise(loses=0.17), is_limited=True),
    Scenario("outage-fallback", "down for 8 s, with a fallback",
             (Act(0, "", SPARED), Act(3, "status:503", SPARED), Act(11, "", SPARED)), Promise(1.0), 15.0, False,
             model=SPARED, outage=(3.0, 11.0)),
    _FLAPPING,
    _steady("down", "the model is down", "status:500", Promise(None, 0.06, None, 0.01)),
    _steady("quota", "the quota is spent", "quota", Promise(None, 0.06, None, 0.01), seconds=10.0),
    Scenario("neighbour", "another model of the upstream is down", (Act(0, "status:500", NEIGHBOUR),),
             Promise(1.0, 1.0), 10.0, neighbour=NEIGHBOUR),
    _steady("limit", "40/s allowed, 60/s offered", "limit:40/s", Promise(0.98, 1.25), seconds=20.0, is_scaled=False,
            rate_per_s=60.0),
    _steady("limit-bare", "the same, without retry-after", "limit:40/s:bare", Promise(0.98, 1.25), seconds=20.0,
            is_scaled=False, rate_per_s=60.0),
    Scenario("herd", "1,000 clients, 200/s served after 4 s", _HERD, seconds=1.0, is_scaled=False, rate_per_s=1000.0,
             promise=_HERD_PROMISE, limit_s=2.0, outage=(0.0, 4.0), clients_ask_for_s=40.0),
)  # fmt: skip
