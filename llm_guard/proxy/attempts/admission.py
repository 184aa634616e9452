"""Admission: takes the permits of one attempt, and gives them back with what the attempt has shown.

Checks a deployment's hold, cooldowns, breakers and capacity, in this order, and queues calls where there is no room. At
an attempt's end releases its lease, and reports its outcome to breakers, budgets, gates and latencies. The states
themselves are in `resilience.circuit_breaker.cooldown`, `resilience.circuit_breaker.breaker` and
`resilience.capacity.gate`; `proxy.attempts.candidate_selection` decides which deployment is tried first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from types import TracebackType

import structlog

from llm_guard.clock import Alarm, Clock
from llm_guard.log import BREAKER_LOGGER
from llm_guard.outcome import Failure, FailureKind, Signal
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Attempt, Call, Delivered
from llm_guard.proxy.caller_identity import breaker_of, caller_of, share_of, source_of
from llm_guard.resilience.capacity.fair_queue import Slot, Ticket
from llm_guard.resilience.capacity.gate import Ending, Gate
from llm_guard.resilience.capacity.rate_limit_headers import rate_hint
from llm_guard.resilience.causes.provider_errors import ErrorLog, provider_error
from llm_guard.resilience.circuit_breaker.breaker import Breaker, Permit
from llm_guard.resilience.circuit_breaker.cooldown import (
    Cooldown,
    CooldownKey,
    Cooldowns,
    as_of,
    deployment_key,
    quota_key,
)
from llm_guard.resilience.circuit_breaker.history import Transition
from llm_guard.resilience.retry.key_selection import KeyState, choose
from llm_guard.resilience.retry.limits import RetryBudget
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.deployment import Deployment, MaintenanceHold
from llm_guard.routing.lease import Lease
from llm_guard.routing.route_table import Target

OUR_OWN = " "
"""The account of an upstream's own key, where the caller names none."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A deployment that must not be tried now: it is held or in cooldown, or it or its host is failing."""

    why: str
    """A phrase for the log line."""
    wait_s: float
    rest: Failure | None = None
    """The failure behind the cooldown, as it may be shown to this call; None: a breaker or an operator refuses."""
    is_held: bool = False
    """True if an operator holds it."""
    awaits_lease: bool = False
    """True if the call would be a probe, and the lease for that has been requested (`fleet`)."""


@dataclass(frozen=True, slots=True)
class AtCapacity:
    """A deployment that has no room: calls wait in its queue."""

    wait_s: float
    """Estimated."""
    has_place: bool
    """True if the queue takes one more call."""

    @property
    def why(self) -> str:
        return "wait queue too slow" if self.has_place else "wait queue full"


@dataclass(frozen=True, slots=True)
class QueueGrant:
    """A slot granted to a queued call. It belongs to this gate, even if new calls would by now pass another one."""

    gate: Gate
    ticket: Ticket
    key: ApiKey | None = None
    """The key of the upstream's pool that the gate paces; None: the upstream has no pool."""


class AdmissionControl:
    """Admits calls to all deployments."""

    def __init__(self, cooldowns: Cooldowns, clock: Clock) -> None:
        self._cooldowns = cooldowns
        self._clock = clock
        self._alarms: dict[Gate, tuple[float, Alarm]] = {}

    def try_enter(
        self, call: Call, target: Target, *, hint_patience_s: float, grant: QueueGrant | None = None
    ) -> Lease | Unavailable | AtCapacity:
        """Tries to get a lease on a target now.

        `hint_patience_s`: a cooldown from a provider's hint of up to this length does not stop the call, which waits
        out such hints itself (see `candidate_selection.hint_patience_s`). `grant`: a slot that the call was granted
        before; it is given back if it does not lead to a lease.
        """
        now = self._clock.now()
        if grant is None:
            key = key_for(self._cooldowns, call, target, now)
            return self._admitted(call, target, key, gate_of(call, target, key, now), None, now, hint_patience_s)
        found = self._admitted(call, target, grant.key, grant.gate, grant.ticket.slot, now, hint_patience_s)
        if isinstance(found, Lease):
            return found
        self.give_back(grant)
        if grant.key is None:
            return found
        # The key's cooldown may have begun while the call was queued; the other keys are still there.
        return self.try_enter(call, target, hint_patience_s=hint_patience_s)

    def has_cooldowns(self) -> bool:
        """Returns whether any cooldown may stop a call now."""
        return self._clock.now() < self._cooldowns.quiet_from

    def is_free(self, call: Call, target: Target) -> bool:
        """Returns whether `try_enter` would give a lease now."""
        now = self._clock.now()
        deployment = target.deployment
        key = key_for(self._cooldowns, call, target, now)
        return (
            deployment.hold is None
            and cooldown_of(self._cooldowns, call, target, key, 0.0, now) is None
            and max(breaker_of(call, deployment, now).retry_after_s(now), deployment.host.retry_after_s(now)) <= 0
            and wait_s_at(gate_of(call, target, key, now), call, deployment, now) == 0.0
        )

    def has_free_key(self, call: Call, target: Target) -> bool:
        """Returns whether the target's pool has a free key that has not failed in this call."""
        states = key_states(self._cooldowns, call, target, self._clock.now())
        return any(state.is_free for state in states)

    def end_refusals(self, call: Call, target: Target) -> None:
        """Ends the cooldowns of the refused keys of a key file, after another key of it was refused: a provider that
        revokes the old key accepts the new one, which it may have refused before."""
        pool, now = target.deployment.upstream.keys, self._clock.now()
        if pool is None or not pool.is_ranked or target.model is None:
            return
        failed = {attempt.key for attempt in call.attempts if attempt.gave_way}
        for key in pool.keys:
            if key not in failed:
                credential = credential_of(call, target, key)
                rest = self._cooldowns.find(credential, target.model, now, source_of(call, target.deployment))
                if rest is not None and rest.failure.kind is FailureKind.AUTH:
                    self._cooldowns.lift([credential], now)

    async def wait_turn(self, call: Call, target: Target, until: float) -> QueueGrant | AtCapacity:
        """Queues the call until it is granted a slot. Returns Full, with the wait as estimated by then, if that has not
        happened by `until` or the call lost its place to another. Leaves nothing behind when cancelled."""
        key = key_for(self._cooldowns, call, target, self._clock.now())
        gate = gate_of(call, target, key, self._clock.now())
        turn = asyncio.Event()
        share, source = share_of(call), source_of(call, target.deployment)
        ticket = gate.enqueue(call.priority, turn.set, share, source)
        if ticket is None:
            return AtCapacity(gate.estimated_wait_s(self._clock.now(), call.priority, share, source), has_place=False)
        taken: QueueGrant | None = None
        limit = self._clock.limit()
        try:
            with limit:
                limit.set(until, "total")
                self.advance(gate)
                await turn.wait()
            if not ticket.is_evicted:
                taken = QueueGrant(gate, ticket, key)
        except TimeoutError:
            pass
        finally:
            if taken is None:
                self.give_back(QueueGrant(gate, ticket))
        if taken is not None:
            return taken
        return AtCapacity(
            gate.estimated_wait_s(self._clock.now(), call.priority, share, source), has_place=not ticket.is_evicted
        )

    def give_back(self, grant: QueueGrant) -> None:
        """Gives back a slot that is not used, or a place in the queue."""
        grant.gate.dequeue(grant.ticket, self._clock.now())
        self.advance(grant.gate)

    def advance(self, gate: Gate) -> None:
        """Grants slots to the calls that are next, and sets a timer for the next ones."""
        now = self._clock.now()
        next_at = gate.dispatch(now)
        alarm = self._alarms.get(gate)
        if alarm is not None:
            if next_at is not None and alarm[0] <= next_at:
                return
            alarm[1].cancel()
            del self._alarms[gate]
        if next_at is not None:
            self._alarms[gate] = (next_at, self._clock.call_at(next_at, lambda: self._on_alarm(gate)))

    def _on_alarm(self, gate: Gate) -> None:
        del self._alarms[gate]
        self.advance(gate)

    def _admitted(
        self,
        call: Call,
        target: Target,
        key: ApiKey | None,
        gate: Gate,
        slot: Slot | None,
        now: float,
        hint_patience_s: float,
    ) -> Lease | Unavailable | AtCapacity:
        deployment = target.deployment
        if deployment.hold is not None:
            return refusal_by_hold(deployment.hold, deployment.breaker.settings.open_for, now)
        may_rest = now < self._cooldowns.quiet_from
        if may_rest and (rest := cooldown_of(self._cooldowns, call, target, key, hint_patience_s, now)) is not None:
            self._cooldowns.note_stopped(cooldown_keys(call, target, key))
            breaker = breaker_of(call, deployment, now)
            refused_s = max(breaker.retry_after_s(now), deployment.host.retry_after_s(now))
            if rest.until - now >= refused_s:
                return Unavailable("in cooldown", rest.until - now, as_of(rest, now))
            return Unavailable("in cooldown", refused_s)
        host = deployment.host.try_acquire(now)
        if host is None:
            return Unavailable("host breaker open", deployment.host.retry_after_s(now))
        caller = caller_of(call, deployment, now)
        suspect = deployment.callers.suspect(caller) if deployment.callers.has_failures else None
        breaker = deployment.judge_of(suspect)
        permit = breaker.try_acquire(now) or _extra_probe(deployment, breaker, caller, now)
        if permit is None:
            deployment.host.settle(host, Signal.NO_EVIDENCE, now)
            why, come_back_s = f"breaker {breaker.state}", breaker.come_back_s(now)
            return Unavailable(why, come_back_s, awaits_lease=breaker.awaits_lease(now))
        source = source_of(call, deployment)
        slot = slot or gate.try_enter(now, call.priority, source)
        if slot is None:
            deployment.host.settle(host, Signal.NO_EVIDENCE, now)
            breaker.settle(permit, Signal.NO_EVIDENCE, now)
            share = share_of(call)
            has_place = gate.wait_s(now, call.priority, share, source) is not None
            return AtCapacity(gate.estimated_wait_s(now, call.priority, share, source), has_place=has_place)
        deployment.gates.in_flight += 1
        if may_rest and target.model is not None:
            self._cooldowns.note_sent(cooldown_keys(call, target, key), now, slot.source)
        if key is not None and deployment.upstream.keys is not None:
            deployment.upstream.keys.begin(key)
        if breaker is deployment.breaker:
            suspect = None
        own_key = "" if deployment.upstream.has_own_key else call.key_digest
        return Lease(permit, host, gate, slot, breaker.state, caller, own_key, suspect, self.advance, key)


def _extra_probe(deployment: Deployment, breaker: Breaker, caller: str, now: float) -> Permit | None:
    """Returns a permit to probe a breaker that other callers' failures opened, if `resilience.circuit_breaker.callers`
    allows it."""
    if breaker is not deployment.breaker:
        return None
    may_probe = deployment.callers.try_probe(caller, now, has_lease=breaker.has_lease(now))
    return breaker.try_acquire_extra(now) if may_probe else None


def key_for(cooldowns: Cooldowns, call: Call, target: Target, now: float) -> ApiKey | None:
    """Returns the key to send the call with; None: the upstream has no pool."""
    pool = target.deployment.upstream.keys
    if pool is None:
        return None
    states = key_states(cooldowns, call, target, now)
    return pool.keys[choose(states, is_ranked=pool.is_ranked)]


def key_states(cooldowns: Cooldowns, call: Call, target: Target, now: float) -> list[KeyState]:
    """Returns the state of each key of the target's pool, in its order; empty without a pool. A provider's hint counts
    however short it is: the call takes another key rather than wait it out."""
    pool = target.deployment.upstream.keys
    if pool is None:
        return []
    failed = {attempt.key for attempt in call.attempts if attempt.gave_way}
    states = []
    for key in pool.keys:
        rest = cooldown_of(cooldowns, call, target, key, 0.0, now)
        wait_s = wait_s_at(gate_of(call, target, key, now), call, target.deployment, now)
        rests_until = 0.0 if rest is None else rest.until
        states.append(
            KeyState(key in failed, rests_until, inf if wait_s is None else wait_s, key.in_flight, key.last_use)
        )
    return states


def cooldown_keys(call: Call, target: Target, key: ApiKey | None) -> tuple[CooldownKey, CooldownKey, CooldownKey]:
    """Returns the keys of the cooldowns that can stop a call: of the credential, the model's quota and the deployment's
    hint."""
    credential, model = credential_of(call, target, key), target.model or ""
    return credential, quota_key(credential, model), deployment_key(credential, model)


def cooldown_of(
    cooldowns: Cooldowns, call: Call, target: Target, key: ApiKey | None, hint_patience_s: float, now: float
) -> Cooldown | None:
    """Returns the cooldown that stops a call, if any; see `AdmissionControl.try_enter`."""
    if now >= cooldowns.quiet_from or target.model is None:
        return None  # files and the like cost nothing, and have permissions of their own
    credential, source = credential_of(call, target, key), source_of(call, target.deployment)
    stop = cooldowns.find(credential, target.model, now, source)
    if stop is not None:
        return stop
    stop = cooldowns.find_hint(deployment_key(credential, target.model), now, source)
    return stop if stop is not None and (stop.failure.retry_after_s or 0.0) > hint_patience_s else None


def wait_s_at(gate: Gate, call: Call, deployment: Deployment, now: float) -> float | None:
    """Returns about how long the call would wait at a gate; None: the queue would not take it."""
    return gate.wait_s(now, call.priority, share_of(call), source_of(call, deployment))


def refusal_by_hold(hold: MaintenanceHold, guess_s: float, now: float) -> Unavailable:
    """Returns the refusal of a held deployment. `guess_s`: seconds until a retry where the hold has no known end."""
    why = "drained by an operator" if hold.kind == "drained" else "cordoned by an operator"
    return Unavailable(why, guess_s if hold.until is None else max(0.0, hold.until - now), is_held=True)


def gate_of(call: Call, target: Target, key: ApiKey | None, now: float) -> Gate:
    """Returns the gate that the call passes. A provider limits the rate of an account, so callers with their own keys
    do not wait for each other, and neither do calls with different keys of a pool."""
    deployment = target.deployment
    if key is not None:
        return deployment.gates.of(account_of(key, call.account_digest), now)
    if (shared := deployment.gates.shared) is not None:
        return shared
    if deployment.credential is not None and not call.account_digest:
        return deployment.gates.of(OUR_OWN, now)
    caller = "" if deployment.credential is not None else call.key_digest
    return deployment.gates.of(f"{caller} {call.account_digest}", now)


def account_of(key: ApiKey, account_digest: str) -> str:
    """Returns the name of the gate for a pool key, on the account that the caller has named, if any."""
    if key.account:
        return f"{key.account}\n{account_digest}"
    return f" {account_digest}" if account_digest else OUR_OWN


def credential_of(call: Call, target: Target, key: ApiKey | None) -> CooldownKey:
    """Returns the credential and account that the target is tried with: the upstream's own key, or the caller's. `key`:
    the one of the upstream's pool; None where it has none."""
    deployment = target.deployment
    if key is None and deployment.credential is not None and not call.account_digest:
        return deployment.credential
    upstream = deployment.upstream
    if key is not None:
        return upstream.credential(key.digest, call.account_digest)
    digest = upstream.key_digest if upstream.has_one_credential else call.key_digest
    return upstream.credential(digest, call.account_digest)


_log = structlog.get_logger(BREAKER_LOGGER)

_CUT = frozenset({FailureKind.TIMEOUT, FailureKind.SUPERSEDED, FailureKind.CLIENT_CANCELLED})
"""Outcomes that cut an exchange off: it would have taken longer."""
_WORTH_HOLDING_S = 2.0
"""A Retry-After shorter than this does not hold the gate: the pacer finds the rate, whereas all calls that wait for the
same second would return together."""
_OVERLOADS = frozenset({FailureKind.OVERLOADED, FailureKind.TIMEOUT, FailureKind.GPU_OOM})
# Looking up a member of an Enum takes as long as the rest of a comparison (CPython 3.11: 50 ns).
_HEALTHY = Signal.HEALTHY
_UNHEALTHY = Signal.UNHEALTHY
_NO_EVIDENCE = Signal.NO_EVIDENCE


class ResponseScope:
    """A context manager for a response on its way to the client. At its end the exchange is closed, and the lease
    released with the outcome that the attempt has by then."""

    __slots__ = ("_clock", "_served")

    def __init__(self, served: Delivered, clock: Clock) -> None:
        self._served = served
        self._clock = clock

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        served = self._served
        if served.opened.exchange is not None:
            served.opened.exchange.abort()
        failure = served.attempt.failure
        settle(served.attempt, served.lease, _HEALTHY if failure is None else failure.signal, self._clock)


def settle(attempt: Attempt, lease: Lease, signal: Signal, clock: Clock) -> None:
    """Ends an attempt: releases its lease and records its outcome. Further calls do nothing."""
    if lease.is_over:
        return
    lease.is_over = True
    deployment, gate = attempt.target.deployment, lease.gate
    now = attempt.ended_at = clock.now()
    if signal is _HEALTHY:
        deployment.last_success_wall = clock.wall()
    elif attempt.failure is not None and not attempt.failure.is_before_sending:
        _note_error(attempt, attempt.failure, now)
    took_s = (now if attempt.answered_at is None else attempt.answered_at) - attempt.timed_from
    _settle_breaker(attempt, lease, signal, now, took_s)
    if attempt.target.model is not None:
        _note_latency(attempt, signal, now, took_s)
    ending = "ok" if signal is _HEALTHY else _ending(attempt, signal)
    _note_recent(attempt, ending, now, is_begun=lease.is_begun)
    deployment.gates.in_flight -= 1
    if lease.key is not None:
        lease.key.in_flight -= 1
    if signal is _UNHEALTHY and deployment.callers.suspect(lease.caller) is not None:
        ending = "ignored"  # failures of one caller alone say nothing about the deployment's capacity
    is_waited_for = gate.exit(lease.slot, now, ending, took_s if ending == "ok" else None)
    if ending == "rate_limited":
        _note_rate_limit(attempt, lease, clock)
    if is_waited_for:
        lease.notify_waiters(gate)


def settle_begun(attempt: Attempt, lease: Lease, clock: Clock) -> None:
    """Records a success when a long response has begun well. If it dies, `settle` revises that to a failure."""
    now = clock.now()
    took_s = None if attempt.answered_at is None else attempt.answered_at - attempt.timed_from
    _settle_breaker(attempt, lease, _HEALTHY, now, took_s)
    _note_recent(attempt, "ok", now, is_begun=False)
    lease.is_begun = True


def settle_host(attempt: Attempt, lease: Lease, signal: Signal, clock: Clock) -> None:
    """Releases the permit of the host's breaker with the attempt's outcome."""
    deployment, now = attempt.target.deployment, clock.now()
    if signal is _UNHEALTHY:
        if attempt.failure is not None:
            _note_error(attempt, attempt.failure, now)
        if _is_ignored(attempt):
            signal = _NO_EVIDENCE
    transition = deployment.host.settle(lease.host, signal, now)
    if transition is not None:
        errors = deployment.upstream_errors
        log_transition(transition, errors, upstream=deployment.upstream.name, request_id=attempt.call_id)


def _settle_breaker(attempt: Attempt, lease: Lease, signal: Signal, now: float, took_s: float | None) -> None:
    """Releases the breaker's permit; if a response that began well has died, revises the success to a failure."""
    deployment = attempt.target.deployment
    if signal is _UNHEALTHY and _is_ignored(attempt):
        signal = _NO_EVIDENCE
    breaker = deployment.breaker if lease.suspect is None else lease.suspect.breaker
    if lease.is_begun and signal is _UNHEALTHY:
        transition = breaker.revise_to_failure(lease.permit, now)
    else:
        transition = breaker.settle(lease.permit, signal, now, took_s)
    _note_caller(attempt, lease, signal, now)
    if transition is None:
        return
    if lease.suspect is not None:
        whose = {**deployment.breaker_of(), "caller": lease.caller}
        log_transition(transition, deployment.errors, **whose, request_id=attempt.call_id)
        return
    if (transition.before, transition.after) == ("half_open", "closed"):
        deployment.gates.ramp(now, deployment.breaker.settings.slow_start)
    log_transition(transition, deployment.errors, **deployment.breaker_of(), request_id=attempt.call_id)


def _note_caller(attempt: Attempt, lease: Lease, signal: Signal, now: float) -> None:
    """Records the outcome for the attempt's caller: failures of one caller alone must not affect the others."""
    deployment = attempt.target.deployment
    if signal is _UNHEALTHY:
        if deployment.note_failure(lease.caller, now):
            _log.warning("calls of a single caller fail", **deployment.breaker_of(), caller=lease.caller)
    elif signal is _HEALTHY and not lease.is_begun:
        deployment.callers.note_ok(lease.caller, attempt.started_at, now, lease.own_key)


def _is_ignored(attempt: Attempt) -> bool:
    """Returns True if the config's `breaker.ignore` excludes the attempt's failure."""
    ignored = attempt.target.deployment.breaker.settings.ignore
    return bool(ignored) and attempt.failure is not None and attempt.failure.kind.label in ignored


def _note_latency(attempt: Attempt, signal: Signal, now: float, took_s: float) -> None:
    """Records latency. `took_s` ends at the first token or the whole response, else at the attempt's end."""
    deployment = attempt.target.deployment
    latency = deployment.first_tokens if attempt.is_stream else deployment.latency
    if attempt.answered_at is not None:
        latency.note(took_s, now)
        deployment.cost.note(took_s, now)
    elif attempt.failure is not None and attempt.failure.kind in _CUT:
        latency.note_cut(took_s, now)
        deployment.cost.note_cut(took_s, now)
    elif signal is _UNHEALTHY:
        deployment.cost.note_failure(took_s, now)


def _ending(attempt: Attempt, signal: Signal) -> Ending:
    """Returns what an attempt without success says about its deployment's capacity."""
    kind = attempt.failure.kind if attempt.failure is not None else None
    if kind is FailureKind.RATE_LIMIT:
        return "rate_limited"
    if signal is _NO_EVIDENCE:
        return "ignored"
    return "overloaded" if kind in _OVERLOADS else "failed"


def _note_recent(attempt: Attempt, ending: Ending, now: float, *, is_begun: bool) -> None:
    if ending == "ignored":
        return
    is_failure = ending != "ok"
    budget: RetryBudget  # as a C struct in the compiled build
    for budget in attempt.budgets:
        if not is_begun:
            budget.note(is_failure, now, is_retry=attempt.is_retry)
        elif is_failure:
            budget.recent.take_back(now)


def _note_rate_limit(attempt: Attempt, lease: Lease, clock: Clock) -> None:
    """Applies a 429's rate-limit headers and Retry-After to the gate."""
    failure, now = attempt.failure, clock.now()
    if failure is None:
        return
    if failure.answer is not None:
        hint = rate_hint(header_rules.lower_names(failure.answer.headers), clock.wall())
        if hint is not None:
            lease.gate.note_hint(hint, attempt.started_at, now, lease.slot.source)
    wait_s = failure.retry_after_s
    if wait_s is not None and wait_s >= _WORTH_HOLDING_S:
        until = now + min(wait_s, attempt.target.retry.max_retry_after)
        lease.gate.note_retry_after(until, now, lease.slot.source)


def _note_error(attempt: Attempt, failure: Failure, now: float) -> None:
    """Keeps the attempt's failure as evidence, before it may open a breaker. `settle_host` does so for connections that
    fail, `settle` for all others."""
    error = provider_error(failure, attempt.status, attempt.call_id, now)
    if error is not None:
        attempt.target.deployment.note_error(error)


def log_transition(transition: Transition, errors: ErrorLog, **whose: str) -> None:
    """Logs a change of state, with the errors that opened the breaker. The provider's words are left out.

    `whose` identifies the breaker, and the request that changed it, if there was one.
    """
    said: dict[str, object] = {"before": transition.before, "after": transition.after, "reason": transition.why}
    if transition.after == "open":
        said["errors"] = [
            {
                "status": error.status,
                "kind": error.kind.label,
                "code": error.code,
                "provider_request_id": error.request_id,
            }
            for error in errors.latest()
        ]
    _log.warning("breaker", **whose, **said, refused=transition.refused)
