"""Explains a provider's error to a person or a program, for `llm-guard classify`.

Reads error records and formats the result; `resilience.classification.classify` classifies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llm_guard.outcome import FailureKind, Scope
from llm_guard.resilience.classification.classify import LONGEST_RETRY_S, Classification, Evidence, classify
from llm_guard.resilience.classification.vocabulary.families import family_of_name, family_of_url

_MEANING = {
    FailureKind.TIMEOUT: "it took too long",
    FailureKind.CONNECT_TIMEOUT: "no connection came about in time",
    FailureKind.NETWORK: "the connection failed",
    FailureKind.TRUNCATED: "the answer was cut off",
    FailureKind.RETIRED: "the connection had been closed by the other side; a new one is as good as any",
    FailureKind.CERTIFICATE: "TLS cannot work as it is set up: somebody has to repair it",
    FailureKind.EGRESS: "the proxy on the way out failed, not the provider",
    FailureKind.MALFORMED: "the answer cannot be read",
    FailureKind.SERVER_ERROR: "the provider's server failed",
    FailureKind.EDGE_ERROR: "a proxy in front of the provider failed",
    FailureKind.BAD_SAMPLE: "the model wrote something that its own server could not use; the next sample may do",
    FailureKind.DIVERGED: "its text cannot be joined to the stream that died: it repeats something else, or nothing",
    FailureKind.FETCH_FAILED: "what the request points at could not be fetched just now",
    FailureKind.TRANSIENT: "the provider says itself that it will pass",
    FailureKind.TOO_EARLY: "the request came as TLS early data; it may come again without",
    FailureKind.OVERLOADED: "the provider has no capacity right now",
    FailureKind.PREEMPTED: "it made room for a call of higher priority",
    FailureKind.GPU_OOM: "the accelerator ran out of memory",
    FailureKind.MODEL_LOADING: "the model is being loaded",
    FailureKind.SCALING_UP: "the deployment starts from zero, which takes minutes",
    FailureKind.RATE_LIMIT: "too many requests or tokens in a short window",
    FailureKind.OVER_LIMIT: "this one request is larger than the whole window; no wait helps",
    FailureKind.QUOTA_EXHAUSTED: "the account has no money or no allowance left",
    FailureKind.WINDOW_EXHAUSTED: "a window of hours or days is used up",
    FailureKind.NO_QUOTA: "the account's tier has no quota for this model; no wait helps",
    FailureKind.AUTH: "the credential is missing or not accepted",
    FailureKind.ACCOUNT_BLOCKED: "the account is blocked",
    FailureKind.PERMISSION: "the credential is known but may not do this",
    FailureKind.BLOCKED: "a firewall or a region rule refuses this way in; the credential is fine",
    FailureKind.MODEL_NOT_FOUND: "this model is not to be had here",
    FailureKind.NOT_FOUND: "what the request refers to is not there",
    FailureKind.WRONG_PATH: "the server does not know this path: look at base_url",
    FailureKind.MISROUTED: "this server cannot answer such a request; another may",
    FailureKind.CONFLICT: "something else is being done to the same object",
    FailureKind.CONTEXT_LENGTH: "the prompt is longer than the model's window",
    FailureKind.DEPLOYMENT_CONTEXT: "the prompt is longer than the window that this server is set to",
    FailureKind.CONTENT_POLICY: "the content was refused: that is the model's answer",
    FailureKind.PAYLOAD_TOO_LARGE: "the request is too large",
    FailureKind.DEPLOYMENT_PAYLOAD: "the request is larger than this tier or this proxy takes",
    FailureKind.INVALID_REQUEST: "the request is wrong in itself",
    FailureKind.CLIENT_CANCELLED: "the client has left",
    FailureKind.SUPERSEDED: "another attempt of the call was quicker",
    FailureKind.OWN_POOL: "this gateway's own connection pool is full",
    FailureKind.OWN_RESOURCES: "this machine is out of resources",
    FailureKind.INTERNAL: "this gateway failed itself",
}

_CONCERNS = {
    Scope.CALL: "this call",
    Scope.DEPLOYMENT: "this deployment",
    Scope.HOST: "the host, with every model on it",
    Scope.CREDENTIAL: "the credential, with every model it opens",
}


def report_lines(lines: Iterable[str], wall: float) -> Iterator[str]:
    """Yields a JSON line for each JSON line that is not blank; for one that cannot be read, a line with an `error`.

    Never raises. `wall`, in epoch seconds, is used where a `date` header is missing.
    """
    for line in lines:
        if line.strip():
            yield json.dumps(_report_line(line, wall))


def report(record: Mapping[str, Any], wall: float) -> dict[str, Any]:
    """Returns the fields of interface.md for one record of an error corpus. Raises ValueError for an invalid record."""
    return {"id": record.get("id"), **answers(classify(evidence_of(record), wall))}


def answers(verdict: Classification | None) -> dict[str, Any]:
    """Returns the fields of interface.md for a verdict, or for None: an exchange without an error."""
    return {
        "retriable": verdict is not None and verdict.is_retriable,
        "category": verdict.kind.category if verdict is not None else "unknown",
        "retry_after_s": verdict.retry_after_s if verdict is not None else None,
        "counts_against_breaker": verdict is not None and verdict.counts_against_breaker,
        "other_deployment_may_help": verdict is not None and verdict.kind.can_fall_back,
    }


def evidence_of(record: Mapping[str, Any]) -> Evidence:
    """Returns the evidence in a record. Raises ValueError for an invalid field."""
    status = record.get("status")
    if isinstance(status, str) and status.isascii() and status.isdigit():
        status = int(status)
    if status is not None and (not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 999):
        raise ValueError("status is no HTTP status")
    transport = record.get("transport") or ("http" if status else "network")
    if transport not in ("http", "stream", "network"):
        raise ValueError("transport is none of http, stream, network")
    events = record.get("stream_events")
    if events is not None and not isinstance(events, list):
        raise ValueError("stream_events is no list")
    return Evidence(
        status=status,
        headers=_headers(record.get("headers")),
        body=_text(record.get("body")),
        events=[_text(event) for event in events or ()] if transport == "stream" else None,
        network_kind=str(record.get("network_kind") or "") if transport == "network" else None,
        family=family_of_provider(str(record.get("provider") or "")),
    )


def family_of_provider(provider: str) -> str:
    """Returns the family of a provider, given by its common name or its base_url."""
    return family_of_url(provider) if "://" in provider else family_of_name(provider)


def explanation(evidence: Evidence, wall: float) -> str:
    """Returns lines for a terminal: what an error means, why, and what the gateway does about it."""
    verdict = classify(evidence, wall)
    if verdict is None:
        return "no error: the answer is what it should be"
    kind = verdict.kind
    rows = [
        ("meaning", f"{kind.category}: {_MEANING[kind]}"),
        ("evidence", f"{verdict.why}{_seen(evidence)}"),
        ("said", f'"{verdict.message[:300]}"' if verdict.message else "nothing that can be read"),
        ("retry here", _retry(verdict)),
        ("elsewhere", _elsewhere(kind)),
        ("wait", f"{verdict.retry_after_s:g} s, by the provider's own word" if verdict.retry_after_s else "none named"),
        ("breaker", "counts against it" if verdict.counts_against_breaker else "does not count"),
        ("concerns", _CONCERNS[kind.scope]),
        ("kind", f"{kind.label}, as in logs, metrics and upstreams.X.errors"),
    ]
    return "\n".join(f"{name:12}{text}" for name, text in rows)


def _report_line(line: str, wall: float) -> dict[str, Any]:
    name = None
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")
        name = record.get("id")
        return report(record, wall)
    except RecursionError:
        return {"id": name, "error": "nested too deeply"}
    except ValueError as error:
        return {"id": name, "error": str(error)}


def _headers(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("headers is no object")
    return {str(name).lower(): _text(each) for name, each in value.items()}


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _seen(evidence: Evidence) -> str:
    parts = [f"HTTP {evidence.status}" if evidence.status else "", evidence.family]
    seen = ", ".join(part for part in parts if part)
    return f" ({seen})" if seen else ""


def _retry(verdict: Classification) -> str:
    if verdict.is_retriable:
        return "yes, with backoff" if verdict.retry_after_s is None else "yes, after the wait"
    if verdict.is_final:
        return "no: the provider forbids it (x-should-retry: false)"
    if verdict.kind.is_retriable:
        return f"no: the wait is longer than {LONGEST_RETRY_S:g} s"
    return "no: the same request would fail again"


def _elsewhere(kind: FailureKind) -> str:
    if kind.can_fall_back:
        return "yes: the next deployment is asked"
    if kind is FailureKind.CONTEXT_LENGTH:
        return "not to the same model; another model's window may be larger"
    return "no: it would fail there as well"
