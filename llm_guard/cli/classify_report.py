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
    FailureKind.TIMEOUT: "the provider did not respond in time",
    FailureKind.CONNECT_TIMEOUT: "the connection could not be established in time",
    FailureKind.NETWORK: "the connection failed",
    FailureKind.TRUNCATED: "the response was cut off",
    FailureKind.RETIRED: "the provider had closed the idle connection; a new connection solves it",
    FailureKind.CERTIFICATE: "TLS is misconfigured: check the certificate, its host name, and upstreams.X.tls",
    FailureKind.EGRESS: "the outgoing proxy failed, not the provider",
    FailureKind.MALFORMED: "the response is invalid",
    FailureKind.SERVER_ERROR: "the provider's server failed",
    FailureKind.EDGE_ERROR: "a proxy in front of the provider failed",
    FailureKind.BAD_SAMPLE: "the model's output could not be parsed by its own server; another sample may succeed",
    FailureKind.DIVERGED: "the continuation does not match the text already sent, so it cannot be joined to it",
    FailureKind.FETCH_FAILED: "a URL in the request could not be fetched by the provider",
    FailureKind.TRANSIENT: "the provider calls the error temporary",
    FailureKind.TOO_EARLY: "the request was sent as TLS early data; it may be sent again without",
    FailureKind.OVERLOADED: "the provider has no capacity right now",
    FailureKind.PREEMPTED: "the provider preempted it for a request of higher priority",
    FailureKind.GPU_OOM: "the GPU ran out of memory",
    FailureKind.MODEL_LOADING: "the model is being loaded",
    FailureKind.SCALING_UP: "the deployment is scaling up from zero, which takes minutes",
    FailureKind.RATE_LIMIT: "too many requests or tokens in a short window",
    FailureKind.OVER_LIMIT: "this one request is larger than the whole window; no wait helps",
    FailureKind.QUOTA_EXHAUSTED: "the account has no credit or quota left",
    FailureKind.WINDOW_EXHAUSTED: "the quota of an hours-long or days-long window is used up",
    FailureKind.NO_QUOTA: "the account's tier has no quota for this model; no wait helps",
    FailureKind.AUTH: "the credential is missing or invalid",
    FailureKind.CREDENTIALS: "the gateway has no valid credentials of the cloud",
    FailureKind.ACCOUNT_BLOCKED: "the account is blocked",
    FailureKind.PERMISSION: "the credential is valid but lacks the permission",
    FailureKind.BLOCKED: "a firewall or region rule blocks this client; the credential is fine",
    FailureKind.MODEL_NOT_FOUND: "the provider does not have this model",
    FailureKind.NOT_FOUND: "an object that the request refers to does not exist",
    FailureKind.WRONG_PATH: "the server does not know this path: check base_url",
    FailureKind.MISROUTED: "this server does not support the request; another may",
    FailureKind.CONFLICT: "another operation on the same object is in progress",
    FailureKind.CONTEXT_LENGTH: "the prompt is longer than the model's context window",
    FailureKind.DEPLOYMENT_CONTEXT: "the prompt is longer than the context window configured on this server",
    FailureKind.CONTENT_POLICY: "the content was refused by the provider's policy",
    FailureKind.PAYLOAD_TOO_LARGE: "the request is too large",
    FailureKind.DEPLOYMENT_PAYLOAD: "the request is larger than this tier or proxy accepts",
    FailureKind.INVALID_REQUEST: "the request is invalid",
    FailureKind.UNTRANSLATED: "the request as translated into another dialect was refused",
    FailureKind.CLIENT_CANCELLED: "the client disconnected",
    FailureKind.SUPERSEDED: "another attempt of the call was faster",
    FailureKind.OWN_POOL: "this gateway's own connection pool is full",
    FailureKind.OWN_RESOURCES: "the gateway's machine is out of resources",
    FailureKind.INTERNAL: "internal error of the gateway",
}

_CONCERNS = {
    Scope.CALL: "this call only",
    Scope.DEPLOYMENT: "this deployment",
    Scope.HOST: "the host, with all its models",
    Scope.CREDENTIAL: "the credential, with all its models",
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
        raise ValueError("status must be a number from 100 to 999")
    transport = record.get("transport") or ("http" if status else "network")
    if transport not in ("http", "stream", "network"):
        raise ValueError("transport must be http, stream or network")
    events = record.get("stream_events")
    if events is not None and not isinstance(events, list):
        raise ValueError("stream_events must be a list")
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
        return "no error: the response is valid"
    kind = verdict.kind
    rows = [
        ("meaning", f"{kind.category}: {_MEANING[kind]}"),
        ("evidence", f"{verdict.why}{_seen(evidence)}"),
        ("message", f'"{verdict.message[:300]}"' if verdict.message else "none found"),
        ("retry here", _retry(verdict)),
        ("fall back", _elsewhere(kind)),
        (
            "wait",
            f"{verdict.retry_after_s:g} s, as the provider requests" if verdict.retry_after_s else "none requested",
        ),
        ("breaker", "counted as a failure" if verdict.counts_against_breaker else "not counted"),
        ("affects", _CONCERNS[kind.scope]),
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
        raise ValueError("headers must be an object")
    return {str(name).lower(): _text(member) for name, member in value.items()}


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
        return "yes, with backoff" if verdict.retry_after_s is None else "yes, after the requested wait"
    if verdict.is_final:
        return "no: the provider forbids it (x-should-retry: false)"
    if verdict.kind.is_retriable:
        return f"no: the wait is longer than {LONGEST_RETRY_S:g} s"
    return "no: the same request would fail again"


def _elsewhere(kind: FailureKind) -> str:
    if kind.can_fall_back:
        return "yes: the next deployment is tried"
    if kind is FailureKind.CONTEXT_LENGTH:
        return "only to another model, whose context window may be larger"
    return "no: it would fail there as well"
